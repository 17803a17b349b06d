package resolver

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cloudless/cloudless/internal/must"
)

// Whatever a client sends, it gets either nothing or one answer to that message, of a size that it accepts.
func FuzzHandle(f *testing.F) {
	for _, m := range []*dns.Msg{
		question("api.shop.cloudless.internal", dns.TypeA),
		question("_pg._tcp.db.shop.cloudless.internal", dns.TypeSRV).SetEdns0(1232, true),
		question("3.0.64.10.in-addr.arpa", dns.TypePTR),
		question("example.com", dns.TypeTXT).SetEdns0(600, false),
	} {
		wire, err := m.Pack()
		must.Succeed(f, err)
		f.Add(wire, false)
	}
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), true)
	f.Fuzz(func(t *testing.T, wire []byte, stream bool) {
		r := newResolver(t)
		fixed(r, func(q *query) (*dns.Msg, error) {
			if q.qtype%2 == 0 {
				return nil, errors.New("unreachable")
			}
			return answerWith(t, q, "example.com. 60 IN TXT text", "example.com. 60 IN A 192.0.2.1"), nil
		})
		later := make(chan []byte, 1)
		answer, pending := r.handle(wire, inShop, stream, func(answer []byte) { later <- answer })
		if pending {
			answer = <-later
		}
		if answer == nil {
			if pending || len(wire) >= messageHeader && wire[2]&bitResponse == 0 {
				t.Fatalf("%x gets no answer", wire)
			}
			return
		}
		if len(answer) < messageHeader || answer[2]&bitResponse == 0 || binary.BigEndian.Uint16(answer) != binary.BigEndian.Uint16(wire) {
			t.Fatalf("%x does not answer %x", answer, wire)
		}
		if limit := map[bool]int{false: ednsSize, true: dns.MaxMsgSize}[stream]; len(answer) > limit {
			t.Fatalf("the answer to %x has %d bytes", wire, len(answer))
		}
		if err := new(dns.Msg).Unpack(answer); err != nil {
			t.Fatalf("the answer %x to %x: %v", answer, wire, err)
		}
	})
}

// Whatever an upstream sends, the client gets a message that it can read, whose TTLs only become shorter.
func FuzzAnswerOfUpstream(f *testing.F) {
	q := query{name: "example.com.", qtype: dns.TypeTXT}
	for _, records := range [][]string{
		{"example.com. 60 IN TXT text", "example.com. 3600 IN SOA a. b. 1 2 3 4 30"},
		{"example.com. 300 IN CNAME www.example.com.", "www.example.com. 60 IN AAAA 2001:db8::1"},
	} {
		wire, err := answerWith(f, &q, records...).Pack()
		must.Succeed(f, err)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(dns.Msg)
		if err := m.Unpack(wire); err != nil || !q.answeredBy(m, m) {
			return // never gets further
		}
		r := newResolver(t)
		fixed(r, func(*query) (*dns.Msg, error) { return m, nil })
		for range 2 { // from the upstream, then perhaps from the cache
			answer := send(t, r, inShop, question("example.com", dns.TypeTXT).SetEdns0(1232, false))
			if answer.IsEdns0() == nil {
				t.Fatalf("an answer without EDNS: %v", answer)
			}
		}
		kept, err := pack(m)
		if err != nil {
			return
		}
		young, old := new(dns.Msg), new(dns.Msg)
		must.Succeed(t, young.Unpack(kept.aged(0)))
		must.Succeed(t, old.Unpack(kept.aged(10*time.Second)))
		for i, rr := range young.Answer {
			if before, after := rr.Header().Ttl, old.Answer[i].Header().Ttl; after != before-min(before, 10) {
				t.Fatalf("the TTL %d becomes %d", before, after)
			}
		}
	})
}
