package resolver

import (
	"encoding/binary"
	"errors"
	"testing"

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
