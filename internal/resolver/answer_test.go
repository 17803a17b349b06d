package resolver

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/must"
)

const nxdomain, nodata, servfail, refused = "NXDOMAIN", "", "SERVFAIL", "REFUSED"

func TestNamesOfTheCluster(t *testing.T) {
	r := newResolver(t)
	must.Succeed(t, r.SetListen([]netip.AddrPort{netip.MustParseAddrPort("10.64.0.1:53"), netip.MustParseAddrPort("[fd00::64:1]:53")}))
	const zone = ".cloudless.internal."
	for _, c := range []struct {
		from  netip.Addr
		name  string
		qtype uint16
		want  string
	}{
		// A service resolves to its virtual addresses.
		{inShop, "api.shop" + zone, dns.TypeA, "10.96.0.1"},
		{inShop, "api.shop" + zone, dns.TypeAAAA, "fd00::96:1"},
		{inShop, "api.shop" + zone, dns.TypeANY, "10.96.0.1, fd00::96:1"},
		{inShop, "api.shop" + zone, dns.TypeHTTPS, nodata},
		{inShop, "API.Shop.CLOUDLESS.Internal.", dns.TypeA, "10.96.0.1"},
		// A headless service resolves to its ready endpoints.
		{inShop, "db.shop" + zone, dns.TypeA, "10.64.0.3, 10.64.1.4, 198.51.100.9"},
		{inShop, "db.shop" + zone, dns.TypeAAAA, "fd00::64:3"},
		// An endpoint has a name, whether or not it is ready. One without a replica is named after its address.
		{inShop, "db-0.db.shop" + zone, dns.TypeA, "10.64.0.3"},
		{inShop, "db-2.db.shop" + zone, dns.TypeA, "10.64.1.5"},
		{inShop, "db-1.db.shop" + zone, dns.TypeAAAA, nodata},
		{inShop, "api-a.api.shop" + zone, dns.TypeA, "10.64.0.2"},
		{inShop, "198-51-100-9.db.shop" + zone, dns.TypeA, "198.51.100.9"},
		{inShop, "db-9.db.shop" + zone, dns.TypeA, nxdomain},
		{inShop, "x.db-0.db.shop" + zone, dns.TypeA, nxdomain},
		// SRV records name the places where a port is served.
		{inShop, "_http._tcp.api.shop" + zone, dns.TypeSRV, "0 0 80 api.shop.cloudless.internal."},
		{inShop, "_53._udp.api.shop" + zone, dns.TypeSRV, "0 0 53 api.shop.cloudless.internal."},
		{inShop, "api.shop" + zone, dns.TypeSRV, "0 0 53 api.shop.cloudless.internal., 0 0 80 api.shop.cloudless.internal."},
		{
			inShop, "_PG._TCP.db.shop" + zone, dns.TypeSRV,
			"0 0 5432 198-51-100-9.db.shop.cloudless.internal., 0 0 5432 db-1.db.shop.cloudless.internal., 0 7 15432 db-0.db.shop.cloudless.internal.",
		},
		{inShop, "_http._udp.api.shop" + zone, dns.TypeSRV, nxdomain},
		{inShop, "_http._tcp.api.shop" + zone, dns.TypeA, nodata},
		{inShop, "_tcp.api.shop" + zone, dns.TypeSRV, nodata},
		{inShop, "_sctp.api.shop" + zone, dns.TypeSRV, nxdomain},
		{inShop, "http.tcp.api.shop" + zone, dns.TypeSRV, nxdomain},
		// What does not exist does not exist, and is not forwarded.
		{inShop, "web.shop" + zone, dns.TypeA, nxdomain},
		{inShop, "api.store" + zone, dns.TypeA, nxdomain},
		{inShop, "example.com" + zone, dns.TypeA, nxdomain},
		{inShop, "www.example.com.shop" + zone, dns.TypeA, nxdomain},
		// A namespace is a name that has only others below it.
		{inShop, "shop" + zone, dns.TypeA, nodata},
		{inShop, "bank" + zone, dns.TypeA, nxdomain},
		{host, "bank" + zone, dns.TypeA, nodata},
		// Other namespaces see only exported services.
		{inBank, "api.shop" + zone, dns.TypeA, "10.96.0.1"},
		{inBank, "_http._tcp.api.shop" + zone, dns.TypeSRV, "0 0 80 api.shop.cloudless.internal."},
		{inBank, "db.shop" + zone, dns.TypeA, nxdomain},
		{inBank, "db-0.db.shop" + zone, dns.TypeA, nxdomain},
		{inBank, "_pg._tcp.db.shop" + zone, dns.TypeSRV, nxdomain},
		{inShop, "secret.bank" + zone, dns.TypeA, nxdomain},
		{inBank, "secret.bank" + zone, dns.TypeA, "10.96.0.2"},
		// The machine sees everything, and other clients see nothing.
		{host, "secret.bank" + zone, dns.TypeA, "10.96.0.2"},
		{addr("10.64.0.1"), "secret.bank" + zone, dns.TypeA, "10.96.0.2"},
		{addr("::ffff:127.0.0.2"), "secret.bank" + zone, dns.TypeA, nxdomain},
		{stranger, "api.shop" + zone, dns.TypeA, refused},
		{stranger, "example.com.", dns.TypeA, refused},
		// Addresses have names, too, by the same rules.
		{inShop, "1.0.96.10.in-addr.arpa.", dns.TypePTR, "api.shop.cloudless.internal."},
		{inBank, "1.0.96.10.in-addr.arpa.", dns.TypePTR, "api.shop.cloudless.internal."},
		{inShop, "2.0.96.10.in-addr.arpa.", dns.TypePTR, nxdomain},
		{inShop, "2.0.64.10.in-addr.arpa.", dns.TypePTR, "api-a.api.shop.cloudless.internal."},
		{host, "2.0.64.10.IN-ADDR.arpa.", dns.TypePTR, "api-a.api.shop.cloudless.internal., s-0.secret.bank.cloudless.internal."},
		{inBank, "3.0.64.10.in-addr.arpa.", dns.TypePTR, nxdomain},
		{inShop, "3.0.64.10.in-addr.arpa.", dns.TypePTR, "db-0.db.shop.cloudless.internal."},
		{inShop, "3.0.64.10.in-addr.arpa.", dns.TypeA, nodata},
		{inShop, "99.9.64.10.in-addr.arpa.", dns.TypePTR, nxdomain},
		{inShop, "9.64.10.in-addr.arpa.", dns.TypePTR, nodata},
		{inShop, "3.0.0.0.4.6.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "db-0.db.shop.cloudless.internal."},
		// The zone has a start and a name server.
		{inShop, "cloudless.internal.", dns.TypeNS, "cloudless.internal."},
		{inShop, "cloudless.internal.", dns.TypeA, "10.64.0.1"},
		{inShop, "cloudless.internal.", dns.TypeAAAA, "fd00::64:1"},
		{inShop, "cloudless.internal.", dns.TypeSOA, "cloudless.internal. hostmaster.cloudless.internal. 1 60 10 600 1"},
		{inShop, "64.10.in-addr.arpa.", dns.TypeSOA, "cloudless.internal. hostmaster.cloudless.internal. 1 60 10 600 1"},
		// Some names are about the machine of the client.
		{inShop, "localhost.", dns.TypeA, "127.0.0.1"},
		{inShop, "db.localhost.", dns.TypeAAAA, "::1"},
		// Without upstreams, all other names fail.
		{inShop, "example.com.", dns.TypeA, servfail},
		{inShop, "xcloudless.internal.", dns.TypeA, servfail},
		{inShop, `x\.cloudless.internal.`, dns.TypeA, servfail},
		{inShop, "10.in-addr.arpa.", dns.TypePTR, servfail},
		{inShop, "1.0.0.11.in-addr.arpa.", dns.TypePTR, servfail},
		{inShop, "x.0.96.10.in-addr.arpa.", dns.TypePTR, servfail},
		// Some questions are never answered.
		{host, "cloudless.internal.", dns.TypeAXFR, refused},
	} {
		answer := lookup(t, r, c.from, c.name, c.qtype)
		if got := result(answer); got != c.want {
			t.Errorf("%v asks for %s %s: got %q, want %q", c.from, c.name, dns.TypeToString[c.qtype], got, c.want)
		}
		if got := answer.Question[0].Name; got != c.name {
			t.Errorf("asked for %s, the answer repeats %s", c.name, got)
		}
	}
}

// Clients may keep what does not exist for a moment only: it may exist soon.
func TestNegativeAnswersSayHowLongTheyHold(t *testing.T) {
	r := newResolver(t)
	for name, apex := range map[string]string{
		"none.shop.cloudless.internal.":         "cloudless.internal.",
		"db-1.db.shop.cloudless.internal.":      "cloudless.internal.",
		"shop.cloudless.internal.":              "cloudless.internal.",
		"9.9.70.10.in-addr.arpa.":               "70.10.in-addr.arpa.",
		"f.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.": "0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
	} {
		answer := lookup(t, r, inShop, name, dns.TypeAAAA)
		if len(answer.Answer) > 0 || len(answer.Ns) != 1 || !answer.Authoritative {
			t.Errorf("%s: got %v", name, answer)
			continue
		}
		start := answer.Ns[0].(*dns.SOA)
		if start.Hdr.Name != apex || start.Hdr.Ttl > 5 || start.Minttl > 5 {
			t.Errorf("%s: got %v, want one of %s", name, start, apex)
		}
	}
}

func TestAnswersExpireWithinSeconds(t *testing.T) {
	r := newResolver(t)
	for _, name := range []string{"api.shop", "db.shop", "db-0.db.shop", "_pg._tcp.db.shop"} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
			for _, rr := range lookup(t, r, inShop, name+".cloudless.internal", qtype).Answer {
				if rr.Header().Ttl > 5 {
					t.Errorf("%v may be kept for long", rr)
				}
			}
		}
	}
}

func TestServiceRecordsComeWithAddresses(t *testing.T) {
	r := newResolver(t)
	for name, want := range map[string]string{
		"_http._tcp.api.shop.cloudless.internal": "10.96.0.1, fd00::96:1",
		"api.shop.cloudless.internal":            "10.96.0.1, fd00::96:1",
		"_pg._tcp.db.shop.cloudless.internal":    "10.64.0.3, 10.64.1.4, 198.51.100.9, fd00::64:3",
	} {
		if got := data(lookup(t, r, inShop, name, dns.TypeSRV).Extra); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// Clients that take the first address spread over all endpoints.
func TestEndpointsComeInRandomOrder(t *testing.T) {
	r := newResolver(t)
	first := map[string]bool{}
	for len(first) < 3 {
		first[data(lookup(t, r, inShop, "db.shop.cloudless.internal", dns.TypeA).Answer[:1])] = true
	}
}

func TestChangeIsVisibleAtOnce(t *testing.T) {
	r := newResolver(t)
	ask := func(want string) {
		t.Helper()
		if got := result(lookup(t, r, inShop, "web.shop.cloudless.internal", dns.TypeA)); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	web := Service{Name: Name{"shop", "web"}, V4: addr("10.96.0.7")}
	ask(nxdomain)
	r.Update([]Service{web}, nil)
	ask("10.96.0.7")
	web.V4 = addr("10.96.0.8")
	r.Update([]Service{web}, []Name{web.Name}) // removed and created again
	ask("10.96.0.8")
	r.Update(nil, []Name{web.Name})
	ask(nxdomain)
	r.Replace([]Service{web})
	ask("10.96.0.8")
	r.SetClients(nil, nil)
	r.SetClients(map[netip.Addr]Client{inShop: {Namespace: "bank"}}, nil)
	ask(nxdomain)
}

// A resolver that has just started does not know which names exist, and must not deny them.
func TestNamesFailUntilTheyAreKnown(t *testing.T) {
	r, err := New(Options{Log: slog.New(slog.DiscardHandler)})
	must.Succeed(t, err)
	r.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")})
	for _, from := range []netip.Addr{host, inShop, stranger} {
		for _, name := range []string{"api.shop.cloudless.internal", "2.0.64.10.in-addr.arpa"} {
			if got := result(lookup(t, r, from, name, dns.TypePTR)); got != servfail {
				t.Errorf("%v asks for %s: got %s", from, name, got)
			}
		}
	}
}

// Whatever the changes, the zone is the one that a full replacement would make.
func TestUpdatesAddUpToReplacement(t *testing.T) {
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		return addr(fmt.Sprintf("10.64.0.%d", rapid.IntRange(1, 9).Draw(t, "address")))
	})
	service := rapid.Custom(func(t *rapid.T) Service {
		s := Service{
			Name:     Name{rapid.SampledFrom([]string{"shop", "bank"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")},
			Exported: rapid.Bool().Draw(t, "exported"),
		}
		if rapid.Bool().Draw(t, "virtual") {
			s.V4 = address.Draw(t, "v4")
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			s.Endpoints = append(s.Endpoints, Endpoint{Name: fmt.Sprint("r", i), V4: address.Draw(t, "endpoint"), Ready: true})
		}
		return s
	})
	rapid.Check(t, func(rt *rapid.T) {
		changed, model := newResolver(t), map[Name]Service{}
		changed.Replace(nil)
		for range rapid.IntRange(1, 8).Draw(rt, "updates") {
			if s := service.Draw(rt, "service"); rapid.Bool().Draw(rt, "remove") {
				changed.Update(nil, []Name{s.Name})
				delete(model, s.Name)
			} else {
				changed.Update([]Service{s}, nil)
				model[s.Name] = s
			}
		}
		replaced := newResolver(t)
		var all []Service
		for _, s := range model {
			all = append(all, s)
		}
		replaced.Replace(all)
		names := []string{"shop", "bank", "r0.a.shop", "r1.b.bank"}
		for _, n := range []string{"a", "b", "c"} {
			names = append(names, n+".shop", n+".bank")
		}
		for i, n := range names {
			names[i] = n + ".cloudless.internal"
		}
		for i := range 9 {
			names = append(names, fmt.Sprintf("%d.0.64.10.in-addr.arpa", i+1))
		}
		for _, name := range names {
			for _, from := range []netip.Addr{host, inShop, inBank} {
				got, want := result(lookup(t, changed, from, name, dns.TypeANY)), result(lookup(t, replaced, from, name, dns.TypeANY))
				if got != want {
					rt.Fatalf("%v asks for %s: got %q, want %q", from, name, got, want)
				}
			}
		}
	})
}

// Every address has one reverse name, and every other name of that form is above one.
func TestReverseNamesStandForAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		address, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address"))
		if address.Is4In6() {
			return // its reverse name is that of an IPv4 address
		}
		name, err := dns.ReverseAddr(address.String())
		if err != nil {
			t.Fatal(err)
		}
		got, ok := reversePrefix(name)
		if !ok || got.Addr() != address || !got.IsSingleIP() {
			t.Fatalf("%s is %v", name, got)
		}
		labels := strings.SplitAfter(name, ".")
		above, ok := reversePrefix(strings.Join(labels[rapid.IntRange(1, len(labels)-4).Draw(t, "cut"):], ""))
		if !ok || above.IsSingleIP() || !above.Contains(address) {
			t.Fatalf("above %s is %v", name, above)
		}
	})
	for _, name := range []string{"256.0.0.10.in-addr.arpa.", "01.0.0.10.in-addr.arpa.", "+1.0.0.10.in-addr.arpa.", "1.1.1.1.1.in-addr.arpa.", "..in-addr.arpa.", "10.ip6.arpa.", "g.ip6.arpa.", "in-addr.arpa."} {
		if got, ok := reversePrefix(name); ok {
			t.Errorf("%s is %v", name, got)
		}
	}
}

// The answer to a large question comes in part by UDP, and completely by TCP.
func TestLargeAnswersAreTruncated(t *testing.T) {
	r := newResolver(t)
	var many []Endpoint
	for i := range 2000 {
		many = append(many, Endpoint{Name: fmt.Sprint("m-", i), V4: netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)}), Ready: true})
	}
	r.Update([]Service{{Name: Name{"shop", "many"}, Ports: []Port{{"x", "tcp", 1}}, Endpoints: many}}, nil)
	for _, c := range []struct{ edns, most int }{{0, 512}, {100, 512}, {800, 800}, {4096, ednsSize}} {
		m := question("many.shop.cloudless.internal", dns.TypeA)
		if c.edns > 0 {
			m.SetEdns0(uint16(c.edns), false)
		}
		answer := send(t, r, inShop, m)
		answer.Compress = true
		if size := answer.Len(); !answer.Truncated || size > c.most || size < c.most*3/4 || (answer.IsEdns0() != nil) != (c.edns > 0) {
			t.Errorf("with EDNS size %d: %d bytes, %d records, truncated: %v", c.edns, size, len(answer.Answer), answer.Truncated)
		}
	}
	if answer := exchangeWith(t, r, inShop, question("many.shop.cloudless.internal", dns.TypeA), true); answer.Truncated || len(answer.Answer) != len(many) {
		t.Errorf("by TCP: %d records, truncated: %v", len(answer.Answer), answer.Truncated)
	}
	// Additional records only help: they are left out without a sign.
	r.Update([]Service{{Name: Name{"shop", "many"}, Ports: []Port{{"x", "tcp", 1}}, Endpoints: many[:8]}}, nil)
	if answer := lookup(t, r, inShop, "_x._tcp.many.shop.cloudless.internal", dns.TypeSRV); answer.Truncated || len(answer.Answer) != 8 || len(answer.Extra) > 0 {
		t.Errorf("got %v", answer)
	}
}

func TestUnusualMessages(t *testing.T) {
	r := newResolver(t)
	for text, c := range map[string]struct {
		change func(*dns.Msg)
		want   int
	}{
		"update":        {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"two questions": {func(m *dns.Msg) { m.Question = slices.Repeat(m.Question, 2) }, dns.RcodeFormatError},
		"no question":   {func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		"chaos":         {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"EDNS 1":        {func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		"usual":         {func(*dns.Msg) {}, dns.RcodeSuccess},
	} {
		m := question("api.shop.cloudless.internal", dns.TypeA)
		c.change(m)
		if got := send(t, r, inShop, m); got.Rcode != c.want {
			t.Errorf("%s: got %s", text, dns.RcodeToString[got.Rcode])
		}
	}
	for _, wire := range [][]byte{nil, make([]byte, 11), {0, 0, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0}} {
		if answer, pending := r.handle(wire, inShop, false, nil); answer != nil || pending {
			t.Errorf("%v is answered", wire)
		}
	}
}
