package resolver

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// NameRule allows clients to connect to the addresses of names.
type NameRule struct {
	// Pattern is a name such as "api.example.com", or "*." and a name for all names below it.
	Pattern string
	// ID is for Options.Learn.
	ID uint32
}

// Learned is an address that a client has looked up under a name that a rule allows. The client connects from Client,
// which is of the same family.
type Learned struct {
	Client, Address netip.Addr
	Rule            uint32
	TTL             time.Duration
	// Again says that it was learned before.
	Again bool
}

// MatchesName reports whether a pattern allows a name. A pattern "*.example.com" allows names with any number of labels
// below example.com, and not example.com itself. Letter case and a final dot do not count.
func MatchesName(pattern, name string) bool {
	pattern, name = canonicalName(pattern), canonicalName(name)
	if below, wildcard := strings.CutPrefix(pattern, "*."); wildcard {
		rest, under := strings.CutSuffix(name, "."+below)
		return under && rest != "" && !strings.HasSuffix(rest, `\`) // an escaped dot is not the end of a label
	}
	return pattern != "" && pattern == name
}

func canonicalName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// maxLearned limits what is remembered for one client. Lookups of further addresses fail until some have expired, so that
// a client that looks up everything below a wildcard does not fill the sets of all.
const maxLearned = 4096

// relearnAfter is how long after an address was learned a lookup learns it again. It is less than the address counts.
const relearnAfter = 4 * time.Minute

// forgetAfter is how long an address is remembered as learned after the last lookup.
const forgetAfter = time.Hour

// learning is what a client may learn, and has learned.
type learning struct {
	rules  []NameRule
	v4, v6 netip.Addr

	mu    sync.Mutex
	known map[learnedKey]time.Time // when it was learned last
}

type learnedKey struct {
	address netip.Addr
	rule    uint32
}

// learn sets the rules for a client. What was learned for rules that stay, stays.
func (c *client) learn(given Client, rules []NameRule) {
	before := c.learns.Load()
	if len(rules) == 0 {
		c.learns.Store(nil)
		return
	}
	after := &learning{rules: rules, known: map[learnedKey]time.Time{}}
	for _, a := range given.Addresses {
		if a = a.Unmap(); a.Is4() {
			after.v4 = a
		} else {
			after.v6 = a
		}
	}
	if before != nil {
		if slices.Equal(before.rules, rules) && before.v4 == after.v4 && before.v6 == after.v6 {
			return
		}
		before.mu.Lock()
		for key, at := range before.known {
			if slices.ContainsFunc(rules, func(r NameRule) bool { return r.ID == key.rule }) {
				after.known[key] = at
			}
		}
		before.mu.Unlock()
	}
	c.learns.Store(after)
}

// matching are the rules that allow a name.
func (l *learning) matching(name string) (ids []uint32) {
	for _, r := range l.rules {
		if MatchesName(r.Pattern, name) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// address is the client's own of the family of another address.
func (l *learning) address(of netip.Addr) netip.Addr {
	if of.Is4() {
		return l.v4
	}
	return l.v6
}

var errTooManyLearned = errors.New("a replica has looked up too many addresses of names that its egress rules allow")

// news are the addresses that have to be learned before the client may get them.
func (l *learning) news(ids []uint32, found map[netip.Addr]time.Duration) (list []Learned, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for address, ttl := range found {
		own := l.address(address)
		if !own.IsValid() {
			continue
		}
		for _, id := range ids {
			at, known := l.known[learnedKey{address, id}]
			if known && now.Sub(at) < relearnAfter {
				continue
			}
			list = append(list, Learned{Client: own, Address: address, Rule: id, TTL: ttl, Again: known && now.Sub(at) < forgetAfter})
		}
	}
	if len(l.known)+len(list) > maxLearned {
		for key, at := range l.known {
			if now.Sub(at) > relearnAfter {
				delete(l.known, key)
			}
		}
		if len(l.known)+len(list) > maxLearned {
			return nil, errTooManyLearned
		}
	}
	return list, nil
}

// note remembers what was learned.
func (l *learning) note(list []Learned) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range list {
		l.known[learnedKey{one.Address, one.Rule}] = time.Now()
	}
}

// teach passes on an answer when the client may connect to the addresses in it. Like handle, it returns the answer, or
// nil and true if it calls later.
func (r *Resolver) teach(q *request, answer []byte, later func([]byte)) ([]byte, bool) {
	l := q.client.learns.Load()
	if l == nil || r.learn == nil {
		return answer, false
	}
	name := q.msg.Question[0].Name
	ids := l.matching(name)
	if len(ids) == 0 {
		return answer, false
	}
	var m dns.Msg
	if err := m.Unpack(answer); err != nil || m.Rcode != dns.RcodeSuccess {
		return answer, false
	}
	_, ours := inZone(strings.ToLower(name))
	found := addressesOf(&m)
	for address := range found {
		if !ours && r.isOwn(address) { // a foreign name does not lead into the cluster
			delete(found, address)
		}
	}
	failed := q.pack(reply{rcode: dns.RcodeServerFailure})
	list, err := l.news(ids, found)
	switch {
	case err != nil:
		r.log.Warn("a lookup fails", "name", name, "client", l.v4, "error", err)
		return failed, false
	case len(list) == 0:
		return answer, false
	}
	r.background.Go(func() {
		if err := r.learn(list); err != nil {
			r.log.Warn("a lookup fails, because its client could not connect to the addresses", "name", name, "client", l.v4, "error", err)
			later(failed)
			return
		}
		l.note(list)
		later(answer)
	})
	return nil, true
}

func (r *Resolver) isOwn(a netip.Addr) bool {
	return slices.ContainsFunc(*r.ranges.Load(), func(p netip.Prefix) bool { return p.Contains(a) })
}

// Relearn learns everything again that clients have looked up lately: the rules may have lost it.
func (r *Resolver) Relearn() {
	if r.learn == nil {
		return
	}
	seen := map[*learning]bool{}
	for _, c := range *r.clients.replicas.Load() {
		l := c.learns.Load()
		if l == nil || seen[l] {
			continue
		}
		seen[l] = true
		var list []Learned
		l.mu.Lock()
		for key, at := range l.known {
			if left := forgetAfter - time.Since(at); left > 0 {
				list = append(list, Learned{Client: l.address(key.address), Address: key.address, Rule: key.rule, TTL: left, Again: true})
			}
		}
		l.mu.Unlock()
		if len(list) == 0 {
			continue
		}
		if err := r.learn(list); err != nil {
			r.log.Warn("addresses that replicas have looked up are not known to the rules; programs must look them up again", "error", err)
			l.mu.Lock()
			clear(l.known)
			l.mu.Unlock()
		}
	}
}

// addressesOf are the addresses of the name that a message was asked for, and of the aliases that it leads to, with the
// shortest TTL on the way.
func addressesOf(m *dns.Msg) map[netip.Addr]time.Duration {
	names := map[string]uint32{canonicalName(m.Question[0].Name): 1<<32 - 1}
	for range m.Answer { // aliases need not be in order
		grown := false
		for _, rr := range m.Answer {
			alias, is := rr.(*dns.CNAME)
			if !is {
				continue
			}
			ttl, on := names[canonicalName(alias.Hdr.Name)]
			target := canonicalName(alias.Target)
			if _, known := names[target]; on && !known {
				names[target], grown = min(ttl, alias.Hdr.Ttl), true
			}
		}
		if !grown {
			break
		}
	}
	found := map[netip.Addr]time.Duration{}
	for _, rr := range m.Answer {
		ttl, on := names[canonicalName(rr.Header().Name)]
		if !on {
			continue
		}
		for _, ip := range addressesIn(rr) {
			if a, ok := netip.AddrFromSlice(ip); ok {
				found[a.Unmap()] = time.Duration(min(ttl, rr.Header().Ttl)) * time.Second
			}
		}
	}
	return found
}

// addressesIn are the addresses in a record. Browsers connect to the hints of HTTPS records as well.
func addressesIn(rr dns.RR) (all []net.IP) {
	hints := func(values []dns.SVCBKeyValue) {
		for _, v := range values {
			switch v := v.(type) {
			case *dns.SVCBIPv4Hint:
				all = append(all, v.Hint...)
			case *dns.SVCBIPv6Hint:
				all = append(all, v.Hint...)
			}
		}
	}
	switch rr := rr.(type) {
	case *dns.A:
		all = append(all, rr.A)
	case *dns.AAAA:
		all = append(all, rr.AAAA)
	case *dns.SVCB:
		hints(rr.Value)
	case *dns.HTTPS:
		hints(rr.Value)
	}
	return all
}
