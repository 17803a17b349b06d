package resolver

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// optBytes is the size of an OPT record without options.
const optBytes = 11

// Bits in the third and fourth byte of a message.
const (
	bitResponse  = 0x80
	bitTruncated = 0x02
	bitRecursion = 0x01
	bitUnchecked = 0x10
)

// request is a query of a client.
type request struct {
	msg    dns.Msg
	wire   []byte
	client *client
	opt    *dns.OPT
	stream bool // the answer may be long
}

// handle answers a message. If the answer has to come from an upstream, it returns nil and true, and calls later
// once. If the message gets no answer, it returns nil and false. It does not keep the message after it returns.
func (r *Resolver) handle(wire []byte, from netip.Addr, stream bool, later func([]byte)) (answer []byte, pending bool) {
	c := r.clients.of(from)
	if !c.budget.take(time.Since(r.began)) {
		r.counters.dropped.Add(1)
		return nil, false
	}
	if len(wire) < messageHeader || wire[2]&bitResponse != 0 {
		r.counters.malformed.Add(1)
		return nil, false
	}
	q := request{wire: wire, client: c, stream: stream}
	if err := q.msg.Unpack(wire); err != nil || len(q.msg.Question) != 1 {
		r.counters.malformed.Add(1)
		return q.formatError(), false
	}
	q.opt = q.msg.IsEdns0()
	if rcode := r.refusal(&q); rcode != dns.RcodeSuccess {
		r.counters.refused.Add(1)
		return q.pack(reply{rcode: rcode}), false
	}
	if name, ok := r.absent(&q); ok {
		return r.fetchFirst(&q, name, later)
	}
	if local, ok := r.local(&q); ok {
		return r.teach(&q, q.pack(local), later)
	}
	return r.foreign(&q, later)
}

// formatError repeats only the header of a message that cannot be parsed.
func (q *request) formatError() []byte {
	m := dns.Msg{MsgHdr: dns.MsgHdr{Id: binary.BigEndian.Uint16(q.wire), Response: true, Rcode: dns.RcodeFormatError}}
	m.Opcode = int(q.wire[2]>>3) & 0xF
	out, _ := m.Pack()
	return out
}

// limit is how long the answer may be.
func (q *request) limit() int {
	switch {
	case q.stream:
		return dns.MaxMsgSize
	case q.opt == nil:
		return dns.MinMsgSize
	}
	return max(dns.MinMsgSize, min(ednsSize, int(q.opt.UDPSize())))
}

// refusal is the code for queries that get no other answer.
func (r *Resolver) refusal(q *request) int {
	question := q.msg.Question[0]
	switch {
	case q.msg.Opcode != dns.OpcodeQuery:
		return dns.RcodeNotImplemented
	case q.opt != nil && q.opt.Version() != 0:
		return dns.RcodeBadVers
	case question.Qclass != dns.ClassINET, question.Qtype == dns.TypeAXFR, question.Qtype == dns.TypeIXFR:
		return dns.RcodeRefused
	case q.client.stranger && !r.zone.isReady():
		return dns.RcodeServerFailure // it may turn out to be a replica when the resolver learns about replicas
	case q.client.stranger:
		return dns.RcodeRefused
	}
	return dns.RcodeSuccess
}

// local answers questions about names of the cluster and of this machine.
func (r *Resolver) local(q *request) (reply, bool) {
	question := q.msg.Question[0]
	name := strings.ToLower(question.Name)
	if below, ok := inZone(name); ok {
		r.counters.cluster.Add(1)
		return r.zone.lookup(question.Name, below, question.Qtype, q.client.view), true
	}
	if asked, ok := reversePrefix(name); ok {
		for _, within := range *r.ranges.Load() {
			if within.Bits() <= asked.Bits() && within.Contains(asked.Addr()) {
				r.counters.reverse.Add(1)
				return r.zone.lookupAddress(question.Name, asked, within, question.Qtype, q.client.view), true
			}
		}
	}
	if name == "localhost." || strings.HasSuffix(name, ".localhost.") {
		answer := addressRecords(nil, question.Name, question.Qtype, serviceTTL, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
		return reply{answer: answer, apex: "localhost."}, true
	}
	return reply{}, false
}

// foreign answers from the cache or an upstream.
func (r *Resolver) foreign(q *request, later func([]byte)) ([]byte, bool) {
	ask := query{
		name: strings.ToLower(q.msg.Question[0].Name), qtype: q.msg.Question[0].Qtype,
		dnssec: q.opt != nil && q.opt.Do(), unchecked: q.msg.CheckingDisabled, authenticity: q.msg.AuthenticatedData,
	}
	var space [280]byte
	key := ask.key(space[:0])
	if kept := r.cache.get(key); kept != nil {
		r.counters.cached.Add(1)
		return r.teach(q, q.finish(kept), later)
	}
	if !r.admission.enter(q.client) {
		r.counters.overloaded.Add(1)
		return q.pack(reply{rcode: dns.RcodeServerFailure}), false
	}
	q.wire = append([]byte(nil), q.wire[:min(len(q.wire), messageHeader+256)]...) // its buffer is reused
	r.forward(ask, string(key), func(answer packed) {
		r.admission.leave(q.client)
		if out, pending := r.teach(q, q.finish(answer.aged(0)), later); !pending {
			later(out)
		}
	})
	return nil, true
}

// finish makes an upstream's answer one to this request: id, flags, the case of the name, EDNS and size.
func (q *request) finish(out []byte) []byte {
	copy(out, q.wire[:2])
	out[2] = out[2]&^bitRecursion | q.wire[2]&bitRecursion
	out[3] = out[3]&^bitUnchecked | q.wire[3]&bitUnchecked
	copyName(out, q.wire)
	if q.opt != nil {
		out = appendOPT(out, q.opt.Do())
	}
	if len(out) <= q.limit() {
		return out
	}
	var m dns.Msg
	if err := m.Unpack(out); err != nil {
		return q.pack(reply{rcode: dns.RcodeServerFailure})
	}
	return packWithin(&m, q.limit())
}

// copyName copies the question's name, if it is the same but for its case.
func copyName(to, from []byte) {
	for at := messageHeader; at < len(from) && at < len(to) && from[at] == to[at]; {
		length := int(from[at])
		if length == 0 || length > 63 || at+length >= min(len(from), len(to)) {
			return
		}
		copy(to[at+1:at+1+length], from[at+1:at+1+length])
		at += 1 + length
	}
}

func appendOPT(out []byte, dnssec bool) []byte {
	out = append(out, 0)
	out = binary.BigEndian.AppendUint16(out, dns.TypeOPT)
	out = binary.BigEndian.AppendUint16(out, ednsSize)
	flags := uint32(0)
	if dnssec {
		flags = 1 << 15
	}
	out = binary.BigEndian.AppendUint32(out, flags)
	out = binary.BigEndian.AppendUint16(out, 0)
	binary.BigEndian.PutUint16(out[10:], binary.BigEndian.Uint16(out[10:])+1)
	return out
}

// pack makes a message of a reply from this machine.
func (q *request) pack(from reply) []byte {
	m := dns.Msg{Question: q.msg.Question, Answer: from.answer, Extra: from.extra, Compress: len(from.answer) > 1}
	m.MsgHdr = dns.MsgHdr{
		Id: q.msg.Id, Response: true, Opcode: q.msg.Opcode, Rcode: from.rcode, Authoritative: from.apex != "",
		RecursionDesired: q.msg.RecursionDesired, RecursionAvailable: true, CheckingDisabled: q.msg.CheckingDisabled,
	}
	if len(from.answer) == 0 && from.apex != "" {
		m.Ns = []dns.RR{soa(from.apex, from.serial)}
	}
	if q.opt != nil {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(ednsSize)
		if q.opt.Do() {
			opt.SetDo()
		}
		m.Extra = append(m.Extra, opt)
	}
	return packWithin(&m, q.limit())
}

// packWithin leaves out what does not fit. Additional records are only a help: without them an answer is complete.
func packWithin(m *dns.Msg, limit int) []byte {
	out, err := m.Pack()
	if err == nil && len(out) <= limit {
		return out
	}
	opt := m.IsEdns0()
	if m.Extra = nil; opt != nil {
		m.Extra = []dns.RR{opt}
	}
	m.Truncate(limit)
	if out, err = m.Pack(); err != nil {
		return nil
	}
	return out
}
