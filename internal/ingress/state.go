package ingress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/ingress/table"
)

// state is what requests see: the outcome of all messages so far. It does not change.
type state struct {
	routes     table.Table[*route]
	byUID      map[string]*route
	byPort     map[port]*route
	ports      map[port]bool // that should be open
	challenges []*v1.IngressChallenge
	alpn       map[string]*certificate // challenges by host
	trusted    []netip.Prefix
	httpPort,
	httpsPort int
	maxHead    int // the largest limit for a head of any route
	endpoints  map[*endpoint]bool
	superseded chan struct{} // closed when there is a newer state
}

// port is what a listener is for.
type port struct {
	protocol string // "tcp" or "udp"
	number   int
}

// route is an IngressRoute that is ready for use.
type route struct {
	uid, namespace, name string
	spec                 *v1.RouteSpec
	tls, redirect        bool
	certificate          *certificate // nil if there is none
	allow                []netip.Prefix
	backends             []*backend
	local                *meter

	timeout, connect, idle time.Duration
	retries                int
	maxHead                int
	maxBody                int64 // 0 for no limit
	compress, log          bool
	users                  map[string]string
	pages                  map[int]*v1.RouteErrorPage
	pin                    *v1.RoutePin
	protocol               string
}

// backend is a service that a route leads to, or a part of the object store.
type backend struct {
	uid             string // of the service or bucket; empty if there is none
	weight          int
	wakes, starting bool
	ready           choices
	leaving         choices // they end what they have, and take the requests of a route that has no others
	canary          choices // of them, for testers
}

const (
	defaultTimeout = time.Minute
	defaultConnect = 5 * time.Second
	defaultIdle    = time.Hour
	defaultRetries = 2
	defaultMaxHead = 64 << 10
	mostMaxHead    = 1 << 20
)

// build makes the state of everything that is known. The caller holds mu.
func (e *Engine) build() *state {
	s := &state{
		byUID: map[string]*route{}, byPort: map[port]*route{}, ports: map[port]bool{}, alpn: map[string]*certificate{},
		endpoints: map[*endpoint]bool{}, superseded: make(chan struct{}), maxHead: defaultMaxHead,
		httpPort:  cmp.Or(int(e.config.Settings.GetHttpPort()), 80),
		httpsPort: cmp.Or(int(e.config.Settings.GetHttpsPort()), 443),
		trusted:   prefixes(e.config.Settings.GetTrustedProxies()),
	}
	certificates := e.certificates()
	// The order decides between routes that are the same.
	ordered := slices.SortedFunc(maps.Values(e.config.Routes), func(a, b *v1.IngressRoute) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetUid(), b.GetUid()))
	})
	for _, known := range ordered {
		r := e.route(known, s, certificates)
		s.byUID[r.uid] = r
		switch {
		case r.spec.GetTcp() != 0:
			s.addPort("tcp", r.spec.GetTcp(), r)
		case r.spec.GetUdp() != 0:
			s.addPort("udp", r.spec.GetUdp(), r)
		case r.spec.GetHost() != "":
			s.routes.Add(r.spec.GetHost(), cmp.Or(r.spec.GetPath(), "/"), r)
			s.maxHead = max(s.maxHead, r.maxHead)
			s.ports[port{"tcp", s.httpPort}] = true
			if r.tls {
				s.ports[port{"tcp", s.httpsPort}] = true
			}
		}
	}
	for _, c := range e.config.Challenges {
		s.ports[port{"tcp", s.httpPort}] = true
		if c.GetCertificate() != nil {
			s.alpn[table.Host(c.GetHost())] = newCertificate(c.GetCertificate())
			s.ports[port{"tcp", s.httpsPort}] = true
		}
		s.challenges = append(s.challenges, c)
	}
	return s
}

func (s *state) addPort(protocol string, number int32, r *route) {
	p := port{protocol, int(number)}
	// Routes for hosts come first on their ports.
	if s.byPort[p] == nil && (protocol == "udp" || int(number) != s.httpPort && int(number) != s.httpsPort) {
		s.byPort[p] = r
		s.ports[p] = true
	}
}

// certificates returns those that are known. Unchanged ones stay the same, so that they are parsed once.
func (e *Engine) certificates() map[string]*certificate {
	before := map[*v1.IngressCertificate]*certificate{}
	for _, r := range e.current.Load().byUID {
		if r.certificate != nil {
			before[r.certificate.source] = r.certificate
		}
	}
	all := map[string]*certificate{}
	for uid, c := range e.config.Certificates {
		if all[uid] = before[c]; all[uid] == nil {
			all[uid] = newCertificate(c)
		}
	}
	return all
}

func (e *Engine) route(known *v1.IngressRoute, s *state, certificates map[string]*certificate) *route {
	spec, h := known.GetSpec(), known.GetSpec().GetHttp()
	mode := spec.GetTls().GetMode()
	r := &route{
		uid: known.GetUid(), namespace: known.GetNamespace(), name: known.GetName(), spec: spec,
		tls: mode != "" && mode != "off", certificate: certificates[known.GetCertificateUid()], allow: prefixes(spec.GetAllow()),
		timeout: duration(h.GetTimeout(), defaultTimeout), connect: duration(h.GetConnectTimeout(), defaultConnect), idle: duration(h.GetIdleTimeout(), defaultIdle),
		retries: defaultRetries, maxHead: min(int(size(h.GetMaxHeaders(), defaultMaxHead)), mostMaxHead), maxBody: size(h.GetMaxBody(), 0),
		compress: h.GetCompress(), log: h.GetAccessLog(), pin: h.GetPin(), protocol: h.GetBackendProtocol(),
	}
	r.redirect = r.tls && h.GetPlain() != "serve"
	if r.connect == 0 {
		r.connect = defaultConnect
	}
	if h != nil && h.Retries != nil {
		r.retries = int(h.GetRetries())
	}
	for _, u := range h.GetUsers() {
		if r.users == nil {
			r.users = map[string]string{}
		}
		r.users[u.GetName()] = u.GetPasswordHash()
	}
	for _, p := range h.GetErrorPages() {
		if r.pages == nil {
			r.pages = map[int]*v1.RouteErrorPage{}
		}
		r.pages[int(p.GetStatus())] = p
	}
	r.local = e.traffic.meter(meterKey{route: r.uid})
	for i, b := range spec.GetBackends() {
		uid := ""
		if i < len(known.GetServiceUids()) {
			uid = known.GetServiceUids()[i]
		}
		weight := 1
		if b.Weight != nil {
			weight = int(b.GetWeight())
		}
		r.backends = append(r.backends, e.backend(r, b, uid, weight, s))
	}
	r.useLeaving()
	return r
}

// useLeaving uses the endpoints that leave soon, if the route has no others: they are better than nothing.
func (r *route) useLeaving() {
	others := slices.ContainsFunc(r.backends, func(b *backend) bool { return b.weight > 0 && (b.ready.total() > 0 || b.wakes) })
	for _, b := range r.backends {
		if !others {
			b.ready = b.leaving
			continue
		}
		for _, c := range b.leaving.all {
			c.to.closeIdle(time.Now()) // so that no request meets a connection that closes
		}
	}
}

func (e *Engine) backend(r *route, spec *v1.RouteBackend, uid string, weight int, s *state) *backend {
	b := &backend{uid: uid, weight: weight}
	if spec.GetBucket() != nil && uid != "" || spec.GetS3() {
		to := e.store(origin.Greeting{Route: r.uid, Bucket: spec.GetBucket().GetName()})
		s.endpoints[to] = true
		b.ready.add(choice{to: to, id: strings.TrimSpace("store " + spec.GetBucket().GetName()), weight: 1, meter: r.local})
		return b
	}
	service := e.config.Services[uid]
	if service == nil {
		return b
	}
	protocol := "tcp"
	if r.spec.GetUdp() != 0 {
		protocol = "udp"
	}
	target := targetPort(service, spec.GetPort(), protocol)
	if target == 0 {
		return b
	}
	b.wakes = service.GetWakes()
	for _, known := range service.GetEndpoints() {
		to := e.endpoint(known, target)
		if to == nil {
			continue
		}
		s.endpoints[to] = true // also one that drains: it keeps what it has
		c := choice{
			to: to, id: known.GetId(), weight: int(known.GetWeight()),
			meter: e.traffic.meter(meterKey{route: r.uid, service: uid, revision: known.GetRevisionUid()}),
		}
		switch known.GetState() {
		case "ready":
			b.ready.add(c)
			if known.GetCanary() {
				c.weight = max(c.weight, 1) // a tester comes whatever its share is
				b.canary.add(c)
			}
		case "draining":
			b.leaving.add(c)
		default:
			b.starting = true
		}
	}
	return b
}

// targetPort is where endpoints listen for a port of a service, which may be left out if there is only one.
func targetPort(s *v1.IngressService, number int32, protocol string) int32 {
	var found []*v1.IngressServicePort
	for _, p := range s.GetPorts() {
		if cmp.Or(p.GetProtocol(), "tcp") == protocol && (number == 0 || p.GetPort() == number) {
			found = append(found, p)
		}
	}
	if len(found) == 0 || number == 0 && len(found) > 1 {
		return 0
	}
	return cmp.Or(found[0].GetTargetPort(), found[0].GetPort())
}

// prefixes parses addresses and ranges. What is neither is left out: the servers have checked it.
func prefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

func within(all []netip.Prefix, a netip.Addr) bool {
	for _, p := range all {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func duration(text string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d
	}
	return otherwise
}
