package resolver

import (
	"container/list"
	"encoding/binary"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// How long answers of upstreams are kept at most, and how long a failure is.
const (
	maxPositive = time.Hour
	maxNegative = 5 * time.Minute
	failureTTL  = time.Second
)

const (
	cacheBytes     = 4 << 20
	maxEntryBytes  = 16 << 10
	entryOverhead  = 256 // of the map, the list and the entry itself, roughly
	messageHeader  = 12
	recordOverhead = 10 // type, class, TTL and length
)

// packed is an answer in wire format without EDNS, and where its TTLs are.
type packed struct {
	wire   []byte
	ttls   []uint16
	failed bool // there is none
}

// pack brings an answer of an upstream into the form in which it is kept and sent.
func pack(m *dns.Msg) (packed, error) {
	out := *m
	out.Extra = nil
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			out.Extra = append(out.Extra, rr)
		}
	}
	out.Rcode &= 0xF // the rest of an extended code is in the OPT record
	out.RecursionAvailable, out.Authoritative, out.Truncated, out.Compress = true, false, false, true
	wire, err := out.Pack()
	if err != nil {
		return packed{}, err
	}
	if err := new(dns.Msg).Unpack(wire); err != nil { // a record without content, for example
		return packed{}, err
	}
	ttls, err := ttlOffsets(wire, len(out.Answer)+len(out.Ns)+len(out.Extra))
	return packed{wire: wire, ttls: ttls}, err
}

// ttlOffsets finds the TTLs of the records behind the only question.
func ttlOffsets(wire []byte, records int) (offsets []uint16, err error) {
	_, at, err := dns.UnpackDomainName(wire, messageHeader)
	if err != nil {
		return nil, err
	}
	at += 4 // type and class of the question
	for range records {
		if _, at, err = dns.UnpackDomainName(wire, at); err != nil {
			return nil, err
		}
		offsets = append(offsets, uint16(at+4))
		at += recordOverhead + int(binary.BigEndian.Uint16(wire[at+8:]))
	}
	return offsets, nil
}

// aged is a copy with shorter TTLs, and room for an OPT record.
func (p packed) aged(age time.Duration) []byte {
	out := make([]byte, len(p.wire), len(p.wire)+optBytes)
	copy(out, p.wire)
	seconds := uint32(age / time.Second)
	for _, at := range p.ttls {
		ttl := binary.BigEndian.Uint32(out[at:])
		binary.BigEndian.PutUint32(out[at:], ttl-min(ttl, seconds))
	}
	return out
}

// lifetime is how long an answer may be kept, by its TTLs.
func lifetime(m *dns.Msg) time.Duration {
	switch {
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return failureTTL
	case m.Rcode == dns.RcodeNameError || len(m.Answer) == 0:
		for _, rr := range m.Ns {
			if s, ok := rr.(*dns.SOA); ok {
				return min(time.Duration(min(s.Hdr.Ttl, s.Minttl))*time.Second, maxNegative)
			}
		}
		return 0
	}
	ttl := maxPositive
	for _, rr := range m.Answer {
		ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
	}
	return ttl
}

// cache keeps answers of upstreams. Those that were not used for the longest time make room for others.
type cache struct {
	mu      sync.Mutex
	entries map[string]*list.Element
	recent  list.List // of *entry, the last used first
	bytes   int
	era     int // counts how often it was cleared
}

type entry struct {
	key            string
	answer         packed
	stored, expire time.Time // with monotonic clocks, so that a clock jump does no harm
	bytes          int
}

func newCache() *cache { return &cache{entries: map[string]*list.Element{}} }

// get returns a copy of the answer, as old as it is now.
func (c *cache) get(key []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.entries[string(key)]
	if element == nil {
		return nil
	}
	e := element.Value.(*entry)
	if now := time.Now(); now.Before(e.expire) {
		c.recent.MoveToFront(element)
		return e.answer.aged(now.Sub(e.stored))
	}
	c.drop(element)
	return nil
}

// put keeps an answer to a question that was asked in the given era.
func (c *cache) put(era int, key string, answer packed, ttl time.Duration) {
	if ttl <= 0 || len(answer.wire) > maxEntryBytes {
		return
	}
	now := time.Now()
	e := &entry{
		key: key, answer: answer, stored: now, expire: now.Add(ttl),
		bytes: entryOverhead + len(key) + cap(answer.wire) + 2*cap(answer.ttls),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if era != c.era {
		return
	}
	if old := c.entries[key]; old != nil {
		c.drop(old)
	}
	c.entries[key] = c.recent.PushFront(e)
	for c.bytes += e.bytes; c.bytes > cacheBytes; {
		c.drop(c.recent.Back())
	}
}

func (c *cache) drop(element *list.Element) {
	e := c.recent.Remove(element).(*entry)
	delete(c.entries, e.key)
	c.bytes -= e.bytes
}

// clear forgets everything: other upstreams may know other names.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries, c.bytes = map[string]*list.Element{}, 0
	c.recent.Init()
	c.era++
}

func (c *cache) currentEra() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era
}
