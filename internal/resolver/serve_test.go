package resolver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/must"
)

// run serves on a free port of the loopback until the test ends.
func run(t *testing.T, r *Resolver) netip.AddrPort {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan netip.AddrPort, 1)
	r.listening = func(address netip.AddrPort, err error) {
		must.Succeed(t, err)
		served <- address
	}
	must.Succeed(t, r.SetListen([]netip.AddrPort{netip.AddrPortFrom(host, 0)}))
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); must.Succeed(t, <-ended) })
	return <-served
}

// upstreamServer answers with a handler, by UDP and TCP.
func upstreamServer(t *testing.T, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	packets, listener, err := open(t.Context(), netip.AddrPortFrom(host, 0))
	for errors.Is(err, syscall.EADDRINUSE) { // the port is free for one of the protocols only
		packets, listener, err = open(t.Context(), netip.AddrPortFrom(host, 0))
	}
	must.Succeed(t, err)
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: listener, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// from dials as the given client.
func from(client netip.Addr, network string) *net.Dialer {
	if network == "tcp" {
		return &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
	}
	return &net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(client, 0))}
}

func over(t *testing.T, network string, client netip.Addr, to netip.AddrPort, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Dialer: from(client, network), UDPSize: dns.MaxMsgSize}
	for {
		answer, _, err := c.ExchangeContext(t.Context(), m, to.String())
		if network == "udp" && errors.Is(err, os.ErrDeadlineExceeded) {
			continue // programs ask again, too: a new address may lose a packet
		}
		must.Succeed(t, err)
		return answer
	}
}

func TestServesPacketsAndConnections(t *testing.T) {
	to := run(t, newResolver(t))
	for _, network := range []string{"udp", "tcp"} {
		for client, want := range map[netip.Addr]string{host: "10.96.0.2", inBank: "10.96.0.2", inShop: nxdomain} {
			if got := result(over(t, network, client, to, question("secret.bank.cloudless.internal", dns.TypeA))); got != want {
				t.Errorf("%v by %s: got %s, want %s", client, network, got, want)
			}
		}
	}
}

func TestConnectionServesSeveralQueries(t *testing.T) {
	r := newResolver(t)
	asked := countingUpstream(t, r, "example.com. 60 IN A 192.0.2.1")
	to := run(t, r)
	raw, err := from(inShop, "tcp").DialContext(t.Context(), "tcp", to.String())
	must.Succeed(t, err)
	conn := &dns.Conn{Conn: raw}
	defer conn.Close()
	names := []string{"api.shop.cloudless.internal", "example.com", "example.com", "db-0.db.shop.cloudless.internal"}
	for _, name := range names { // all at once
		must.Succeed(t, conn.WriteMsg(question(name, dns.TypeA)))
	}
	for _, want := range []string{"10.96.0.1", "192.0.2.1", "192.0.2.1", "10.64.0.3"} {
		m, err := conn.ReadMsg()
		must.Succeed(t, err)
		if got := result(m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// One client cannot take all connections.
func TestConnectionsOfAClientAreLimited(t *testing.T) {
	to := run(t, newResolver(t))
	dial := func(client netip.Addr) *dns.Conn {
		raw, err := from(client, "tcp").DialContext(t.Context(), "tcp", to.String())
		must.Succeed(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		return &dns.Conn{Conn: raw}
	}
	works := func(c *dns.Conn) bool {
		if err := c.WriteMsg(question("api.shop.cloudless.internal", dns.TypeA)); err != nil {
			return false
		}
		m, err := c.ReadMsg()
		return err == nil && result(m) == "10.96.0.1"
	}
	for i := range maxClientConns {
		if !works(dial(inShop)) {
			t.Fatalf("connection %d does not work", i)
		}
	}
	if works(dial(inShop)) {
		t.Error("one more works")
	}
	if !works(dial(inBank)) {
		t.Error("one of another client does not")
	}
}

// Answers that do not fit into a packet come by TCP, from the upstream and to the client.
func TestTruncatedAnswersOfUpstreamsAreFetchedByTCP(t *testing.T) {
	r := newResolver(t)
	r.SetUpstreams([]netip.AddrPort{upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if w.RemoteAddr().Network() == "udp" {
			m.Truncated = true
		} else {
			for i := range 100 {
				rr, _ := dns.NewRR(fmt.Sprintf("big.example. 60 IN TXT %d-%s", i, strings.Repeat("x", 100)))
				m.Answer = append(m.Answer, rr)
			}
		}
		_ = w.WriteMsg(m)
	})})
	to := run(t, r)
	for range 2 { // from the upstream, then from the cache
		if m := over(t, "tcp", inShop, to, question("big.example", dns.TypeTXT)); m.Truncated || len(m.Answer) != 100 {
			t.Errorf("by TCP: %d records, truncated: %v", len(m.Answer), m.Truncated)
		}
		if m := over(t, "udp", inShop, to, question("big.example", dns.TypeTXT)); !m.Truncated || len(m.Answer) > 4 {
			t.Errorf("by UDP: %d records, truncated: %v", len(m.Answer), m.Truncated)
		}
	}
}

// An attacker must guess the id and the question; after some wrong guesses the question is asked by TCP.
func TestForgedAnswersAreIgnored(t *testing.T) {
	for _, forged := range []int{1, maxForeign - 1, maxForeign, 100} {
		r := newResolver(t)
		r.SetUpstreams([]netip.AddrPort{upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
			right := new(dns.Msg).SetReply(q)
			rr, _ := dns.NewRR("example.com. 60 IN A 192.0.2.1")
			right.Answer = []dns.RR{rr}
			if w.RemoteAddr().Network() == "udp" {
				for i := range forged {
					wrong := right.Copy()
					bad, _ := dns.NewRR("example.com. 60 IN A 203.0.113.66")
					wrong.Answer = []dns.RR{bad}
					if i%2 == 0 {
						wrong.Id++
					} else {
						wrong.Question[0].Name = "example.org."
					}
					_ = w.WriteMsg(wrong)
				}
			}
			_ = w.WriteMsg(right)
		})})
		if got := result(lookup(t, r, inShop, "example.com", dns.TypeA)); got != "192.0.2.1" {
			t.Errorf("after %d forged answers: got %s", forged, got)
		}
	}
}

func TestUpstreamWithoutEDNS(t *testing.T) {
	r := newResolver(t)
	r.SetUpstreams([]netip.AddrPort{upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.IsEdns0() != nil {
			m = new(dns.Msg).SetRcodeFormatError(q)
			m.Question = q.Question
		} else {
			rr, _ := dns.NewRR("example.com. 60 IN A 192.0.2.1")
			m.Answer = []dns.RR{rr}
		}
		_ = w.WriteMsg(m)
	})})
	answer := send(t, r, inShop, question("EXAMPLE.com", dns.TypeA).SetEdns0(1232, true))
	if result(answer) != "192.0.2.1" || answer.IsEdns0() == nil || !answer.IsEdns0().Do() || answer.Answer[0].Header().Name != "EXAMPLE.com." {
		t.Errorf("got %v", answer)
	}
}

// Ids and ports of questions are random, so that no other machine can answer in the upstream's place.
func TestQuestionsAreHardToGuess(t *testing.T) {
	r := newResolver(t)
	var mu sync.Mutex
	ids, ports := map[uint16]bool{}, map[string]bool{}
	r.SetUpstreams([]netip.AddrPort{upstreamServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		ids[q.Id], ports[w.RemoteAddr().String()] = true, true
		mu.Unlock()
		_ = w.WriteMsg(new(dns.Msg).SetReply(q))
	})})
	for i := range 50 {
		lookup(t, r, inShop, fmt.Sprintf("%d.example", i), dns.TypeA)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) < 45 || len(ports) < 45 {
		t.Errorf("of 50 questions, %d have different ids and %d different ports", len(ids), len(ports))
	}
}

// A program that has the port first is named in the error, and delays the resolver only as long as it has it.
func TestListensWhenThePortIsFree(t *testing.T) {
	other, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.Succeed(t, err)
	address := other.LocalAddr().(*net.UDPAddr).AddrPort()
	r := newResolver(t)
	must.Succeed(t, r.SetListen([]netip.AddrPort{address}))
	reports := make(chan error, 100)
	r.listening = func(_ netip.AddrPort, err error) { reports <- err }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	if err := <-reports; err == nil || !strings.Contains(err.Error(), address.String()) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
	must.Succeed(t, other.Close())
	for err := range reports {
		if err == nil {
			break
		}
	}
	if got := result(over(t, "udp", inShop, address, question("api.shop.cloudless.internal", dns.TypeA))); got != "10.96.0.1" {
		t.Errorf("got %s", got)
	}
	// It moves to another address, and ends even with a connection and a query that wait.
	fixed(r, func(*query) (*dns.Msg, error) { <-r.ctx.Done(); return nil, r.ctx.Err() })
	must.Succeed(t, r.SetListen([]netip.AddrPort{netip.AddrPortFrom(addr("127.0.0.9"), address.Port())}))
	must.Succeed(t, <-reports)
	raw, err := net.Dial("tcp", netip.AddrPortFrom(addr("127.0.0.9"), address.Port()).String())
	must.Succeed(t, err)
	must.Succeed(t, (&dns.Conn{Conn: raw}).WriteMsg(question("example.com", dns.TypeA)))
	if _, err := net.Dial("tcp", address.String()); err == nil {
		t.Error("the former address is still served")
	}
	cancel()
	must.Succeed(t, <-ended)
	if _, err := raw.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("the connection is open: %v", err)
	}
}

// A UDP route has the port at every address of the machine. The resolver gets what is sent to its own, whoever was first.
func TestListensBesideARoute(t *testing.T) {
	route := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	first, err := route.ListenPacket(t.Context(), "udp", ":0")
	must.Succeed(t, err)
	defer first.Close()
	address := netip.AddrPortFrom(addr("127.0.0.1"), first.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	packets, listener, err := open(t.Context(), address)
	must.Succeed(t, err)
	defer func() { _, _ = packets.Close(), listener.Close() }()
	second, err := route.ListenPacket(t.Context(), "udp", fmt.Sprintf(":%d", address.Port()))
	must.Succeed(t, err)
	defer second.Close()
	client, err := net.Dial("udp", address.String())
	must.Succeed(t, err)
	defer client.Close()
	_, err = client.Write([]byte("a query"))
	must.Succeed(t, err)
	must.Succeed(t, packets.SetReadDeadline(time.Now().Add(10*time.Second)))
	query := make([]byte, 100)
	n, err := packets.Read(query)
	must.Succeed(t, err)
	if string(query[:n]) != "a query" {
		t.Errorf("got %q", query[:n])
	}
}

func TestListensOnlyOnSingleAddresses(t *testing.T) {
	r := newResolver(t)
	for _, text := range []string{"0.0.0.0:53", "[::]:53"} {
		if err := r.SetListen([]netip.AddrPort{netip.MustParseAddrPort(text)}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v", err)
		}
	}
}

// One replica has as many queries waiting for a silent upstream as it may, and asks for other names as fast as it gets
// answers. The lookups of another replica all succeed meanwhile, with a usual client.
func TestFloodDoesNotKeepOthersFromAnswers(t *testing.T) {
	r := newResolver(t)
	fixed(r, func(q *query) (*dns.Msg, error) {
		if q.name == "example.com." {
			return answerWith(t, q, "example.com. 0 IN A 192.0.2.1"), nil
		}
		<-r.ctx.Done()
		return nil, r.ctx.Err()
	})
	to := run(t, r)
	const loops, queries = 16, 20_000
	var flood sync.WaitGroup
	for loop := range loops {
		raw, err := from(inBank, "udp").DialContext(t.Context(), "udp", to.String())
		must.Succeed(t, err)
		flood.Go(func() { floodWith(t, &dns.Conn{Conn: raw}, loop, queries/loops) })
	}
	over := make(chan struct{})
	go func() { flood.Wait(); close(over) }()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return from(inShop, network).DialContext(ctx, network, to.String())
	}}
	for lookups := 0; ; lookups++ {
		for name, want := range map[string]string{"api.shop.cloudless.internal.": "10.96.0.1", "example.com.": "192.0.2.1"} {
			got, err := resolver.LookupNetIP(t.Context(), "ip4", name)
			if err != nil || fmt.Sprint(got) != "["+want+"]" {
				t.Fatalf("%s: got %v, %v", name, got, err)
			}
		}
		select {
		case <-over:
			if s := r.Stats(); s.Overloaded == 0 || s.Cluster < queries/2 {
				t.Errorf("during %d lookups, the flood was not one: %+v", lookups, s)
			}
			return
		default:
		}
	}
}

// floodWith asks for names in turns that wait for the upstream, as long as more of them may wait, and that do not.
func floodWith(t *testing.T, conn *dns.Conn, loop, queries int) {
	defer conn.Close()
	waiting := true
	for i := range queries {
		if waiting && i%2 == 0 {
			if err := conn.WriteMsg(question(fmt.Sprintf("%d-%d.example", loop, i), dns.TypeA)); err != nil {
				t.Error(err)
				return
			}
		}
		if err := conn.WriteMsg(question("api.shop.cloudless.internal", dns.TypeA)); err != nil {
			t.Error(err)
			return
		}
		m, err := conn.ReadMsg()
		if err != nil {
			t.Error(err)
			return
		}
		waiting = waiting && result(m) != servfail
	}
}
