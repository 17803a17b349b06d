package resolver

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/cloudless/cloudless/internal/must"
)

// The clients of the tests: the machine, a replica of each of two namespaces, and an unknown one.
var (
	host     = netip.MustParseAddr("127.0.0.1")
	inShop   = netip.MustParseAddr("127.0.0.2")
	inBank   = netip.MustParseAddr("127.0.0.3")
	stranger = netip.MustParseAddr("192.0.2.66")
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// api is a service with virtual addresses, db a headless one, and secret one of another namespace.
var testServices = []Service{
	{
		Name: Name{"shop", "api"}, Exported: true, V4: addr("10.96.0.1"), V6: addr("fd00::96:1"),
		Ports:     []Port{{"http", "tcp", 80}, {"", "udp", 53}},
		Endpoints: []Endpoint{{Name: "api-a", V4: addr("10.64.0.2"), V6: addr("fd00::64:2"), Ready: true}},
	},
	{
		Name: Name{"shop", "db"}, Ports: []Port{{"pg", "tcp", 5432}},
		Endpoints: []Endpoint{
			{Name: "db-0", V4: addr("10.64.0.3"), V6: addr("fd00::64:3"), Ready: true, Ports: []uint16{15432}, Weight: 7},
			{Name: "db-1", V4: addr("10.64.1.4"), Ready: true},
			{Name: "db-2", V4: addr("10.64.1.5")},
			{V4: addr("198.51.100.9"), Ready: true},
		},
	},
	{Name: Name{"bank", "secret"}, V4: addr("10.96.0.2"), Endpoints: []Endpoint{{Name: "s-0", V4: addr("10.64.0.2")}}},
}

// newResolver is one that knows the services and clients of the tests, and no upstreams.
func newResolver(t testing.TB) *Resolver {
	t.Helper()
	r, err := New(Options{Log: slog.New(slog.DiscardHandler)})
	must.Succeed(t, err)
	r.Replace(testServices)
	r.SetClients(map[netip.Addr]Client{inShop: {Namespace: "shop"}, inBank: {Namespace: "bank"}}, nil)
	r.SetRanges([]netip.Prefix{
		netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/48"),
	})
	return r
}

func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
}

// send passes a message to the resolver as if it had come by UDP, and waits for the answer.
func send(t testing.TB, r *Resolver, from netip.Addr, m *dns.Msg) *dns.Msg {
	t.Helper()
	return exchangeWith(t, r, from, m, false)
}

func exchangeWith(t testing.TB, r *Resolver, from netip.Addr, m *dns.Msg, stream bool) *dns.Msg {
	t.Helper()
	wire, err := m.Pack()
	must.Succeed(t, err)
	later := make(chan []byte, 1)
	out, pending := r.handle(wire, from, stream, func(answer []byte) { later <- answer })
	clear(wire) // the buffer of a socket is reused
	if pending {
		out = <-later
	}
	if out == nil {
		t.Fatalf("no answer to %v", m.Question)
	}
	answer := new(dns.Msg)
	must.Succeed(t, answer.Unpack(out))
	if answer.Id != m.Id || !answer.Response {
		t.Fatalf("%v does not answer %v", answer, m)
	}
	return answer
}

func lookup(t testing.TB, r *Resolver, from netip.Addr, name string, qtype uint16) *dns.Msg {
	t.Helper()
	return send(t, r, from, question(name, qtype))
}

// data are the contents of records, sorted.
func data(records []dns.RR) string {
	var all []string
	for _, rr := range records {
		if rr.Header().Rrtype != dns.TypeOPT {
			all = append(all, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// result is an answer in a few words.
func result(m *dns.Msg) string {
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	return data(m.Answer)
}

// fixed makes the resolver get every foreign answer from a function instead of an upstream.
func fixed(r *Resolver, answer func(*query) (*dns.Msg, error)) {
	r.exchange = func(_ context.Context, q *query) (*dns.Msg, error) { return answer(q) }
}

// answerWith is an upstream's answer with the given records.
func answerWith(t testing.TB, q *query, records ...string) *dns.Msg {
	t.Helper()
	m := q.message(true)
	m.Response = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		must.Succeed(t, err)
		if rr.Header().Rrtype == dns.TypeSOA {
			m.Ns = append(m.Ns, rr)
		} else {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}
