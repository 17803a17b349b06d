package resolver

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// How long clients may keep an answer, in seconds. Virtual addresses are stable; endpoints come and go.
const (
	serviceTTL  = 5
	endpointTTL = 1
	negativeTTL = 1
)

// view is what a client may see.
type view struct {
	host      bool // everything
	namespace string
}

// reply is an answer of the zone.
type reply struct {
	rcode         int
	answer, extra []dns.RR
	apex          string // of the zone that is responsible, for SOA records
	serial        uint32
}

// lookup answers a question about a name in the zone. The name is as the client wrote it; below is what, in lower case,
// comes before the zone.
func (z *zone) lookup(name, below string, qtype uint16, v view) reply {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if !z.ready {
		return reply{rcode: dns.RcodeServerFailure}
	}
	r := z.find(name, below, qtype, v)
	r.apex, r.serial = Zone+".", z.serial
	return r
}

// The answers for a name that has no records of the type, and for one that has none at all.
var exists, missing = reply{}, reply{rcode: dns.RcodeNameError}

func (z *zone) find(name, below string, qtype uint16, v view) reply {
	if below == "" {
		return reply{answer: z.apexRecords(name, qtype, z.self)}
	}
	rest, namespace := cutLast(below)
	if rest == "" {
		if z.namespaceVisible(namespace, v) {
			return exists
		}
		return missing
	}
	rest, service := cutLast(rest)
	s := z.services[service+"."+namespace]
	if s == nil || !s.visibleTo(v) {
		return missing
	}
	switch labels := strings.Count(rest, ".") + 1; {
	case rest == "":
		return s.own(name, qtype)
	case labels == 1 && strings.HasPrefix(rest, "_"):
		if slices.ContainsFunc(s.Ports, func(p Port) bool { return "_"+strings.ToLower(p.Protocol) == rest }) {
			return exists
		}
	case labels == 1:
		if i := slices.Index(s.labels, rest); i >= 0 {
			return reply{answer: s.Endpoints[i].addresses(nil, name, qtype)}
		}
	case labels == 2:
		return s.portRecords(name, rest, qtype)
	}
	return missing
}

// cutLast cuts the last label off.
func cutLast(name string) (rest, last string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

// own are the records of the service's own name.
func (r *record) own(name string, qtype uint16) (out reply) {
	if qtype == dns.TypeSRV {
		for port := range r.Ports {
			out.answer = r.srv(out.answer, name, port)
		}
		out.extra = r.targets()
		return out
	}
	if !r.headless() {
		out.answer = addressRecords(nil, name, qtype, serviceTTL, r.V4, r.V6)
		return out
	}
	for _, i := range rand.Perm(len(r.Endpoints)) {
		if e := &r.Endpoints[i]; e.Ready {
			out.answer = e.addresses(out.answer, name, qtype)
		}
	}
	return out
}

// portRecords are those of a name such as _http._tcp below the service.
func (r *record) portRecords(name, rest string, qtype uint16) reply {
	port, protocol, _ := strings.Cut(rest, ".")
	if !strings.HasPrefix(port, "_") || !strings.HasPrefix(protocol, "_") {
		return missing
	}
	i, found := r.port(port[1:], protocol[1:])
	switch {
	case !found:
		return missing
	case qtype == dns.TypeSRV || qtype == dns.TypeANY:
		return reply{answer: r.srv(nil, name, i), extra: r.targets()}
	}
	return exists
}

// srv appends the places where a port is served.
func (r *record) srv(to []dns.RR, name string, port int) []dns.RR {
	if !r.headless() {
		return append(to, srvRecord(name, serviceTTL, r.fqdn, r.Ports[port].Port, 0))
	}
	for _, i := range rand.Perm(len(r.Endpoints)) {
		if e := &r.Endpoints[i]; e.Ready {
			to = append(to, srvRecord(name, endpointTTL, r.endpointName(i), r.targetPort(i, port), e.Weight))
		}
	}
	return to
}

// targets are the addresses of the names in SRV records.
func (r *record) targets() (out []dns.RR) {
	if !r.headless() {
		return addressRecords(nil, r.fqdn, dns.TypeANY, serviceTTL, r.V4, r.V6)
	}
	for i := range r.Endpoints {
		if e := &r.Endpoints[i]; e.Ready {
			out = e.addresses(out, r.endpointName(i), dns.TypeANY)
		}
	}
	return out
}

func srvRecord(name string, ttl uint32, target string, port, weight uint16) dns.RR {
	return &dns.SRV{Hdr: header(name, dns.TypeSRV, ttl), Target: target, Port: port, Weight: weight}
}

func (e *Endpoint) addresses(to []dns.RR, name string, qtype uint16) []dns.RR {
	return addressRecords(to, name, qtype, endpointTTL, e.V4, e.V6)
}

func addressRecords(to []dns.RR, name string, qtype uint16, ttl uint32, v4, v6 netip.Addr) []dns.RR {
	if v4.IsValid() && (qtype == dns.TypeA || qtype == dns.TypeANY) {
		to = append(to, &dns.A{Hdr: header(name, dns.TypeA, ttl), A: v4.AsSlice()})
	}
	if v6.IsValid() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY) {
		to = append(to, &dns.AAAA{Hdr: header(name, dns.TypeAAAA, ttl), AAAA: v6.AsSlice()})
	}
	return to
}

func header(name string, rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// apexRecords are those of the zone's own name, which is the name of its name server as well.
func (z *zone) apexRecords(name string, qtype uint16, self []netip.Addr) (out []dns.RR) {
	if qtype == dns.TypeSOA || qtype == dns.TypeANY {
		out = append(out, soa(name, z.serial))
	}
	if qtype == dns.TypeNS || qtype == dns.TypeANY {
		out = append(out, &dns.NS{Hdr: header(name, dns.TypeNS, serviceTTL), Ns: Zone + "."})
	}
	for _, a := range self {
		if a.Is4() {
			out = addressRecords(out, name, qtype, serviceTTL, a, netip.Addr{})
		} else {
			out = addressRecords(out, name, qtype, serviceTTL, netip.Addr{}, a)
		}
	}
	return out
}

// soa is the record that says how long a negative answer may be kept.
func soa(apex string, serial uint32) dns.RR {
	return &dns.SOA{
		Hdr: header(apex, dns.TypeSOA, negativeTTL), Ns: Zone + ".", Mbox: "hostmaster." + Zone + ".",
		Serial: serial, Refresh: 60, Retry: 10, Expire: 600, Minttl: negativeTTL,
	}
}

// inZone returns what comes before the zone in a name that belongs to it.
func inZone(name string) (below string, ok bool) {
	if strings.IndexByte(name, '\\') >= 0 && !dns.IsSubDomain(Zone+".", name) {
		return "", false // an escaped dot is not the end of a label
	}
	if name == Zone+"." {
		return "", true
	}
	return strings.CutSuffix(name, zoneSuffix)
}
