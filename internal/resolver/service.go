package resolver

import (
	"net/netip"
	"strconv"
	"strings"
	"sync"
)

// Zone is the domain of the cluster.
const Zone = "cloudless.internal"

// zoneSuffix is what names in the zone end with.
const zoneSuffix = "." + Zone + "."

// Name identifies a service.
type Name struct{ Namespace, Name string }

func (n Name) key() string { return strings.ToLower(n.Name + "." + n.Namespace) }

// Service is a name that clients can look up. The resolver keeps its slices: callers must not change them.
type Service struct {
	Name
	// Exported makes the service visible in all namespaces.
	Exported bool
	// V4 and V6 are the virtual addresses. A headless service has none, and resolves to its ready endpoints.
	V4, V6    netip.Addr
	Ports     []Port
	Endpoints []Endpoint
}

func (s *Service) headless() bool { return !s.V4.IsValid() && !s.V6.IsValid() }

// Port is a port of a service.
type Port struct {
	Name     string // may be empty: its number is always a name
	Protocol string // tcp or udp
	Port     uint16
}

// Endpoint is a replica or an external address behind a service.
type Endpoint struct {
	// Name is the label below the service's name. If it is empty, it is made from the address.
	Name   string
	V4, V6 netip.Addr
	// Ready endpoints are those that a headless service resolves to. The endpoint's own name resolves in any case,
	// because members of a distributed system must find each other before they are ready.
	Ready bool
	// Ports are where the endpoint listens, in the order of the service's ports. A missing one is the service's.
	Ports  []uint16
	Weight uint16 // in SRV records
}

// endpointLabel is the name of an endpoint below that of its service.
func endpointLabel(e *Endpoint) string {
	if e.Name != "" {
		return strings.ToLower(e.Name)
	}
	address := e.V4
	if !address.IsValid() {
		address = e.V6
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(address.WithZone("").String())
}

// record is a service as the zone holds it.
type record struct {
	Service
	fqdn   string
	labels []string // of the endpoints
}

func newRecord(s Service) *record {
	r := &record{Service: s, fqdn: s.key() + zoneSuffix, labels: make([]string, len(s.Endpoints))}
	for i := range s.Endpoints {
		r.labels[i] = endpointLabel(&s.Endpoints[i])
	}
	return r
}

// endpointName is the full name of an endpoint.
func (r *record) endpointName(i int) string { return r.labels[i] + "." + r.fqdn }

func (r *record) visibleTo(v view) bool {
	return v.host || r.Exported || strings.EqualFold(v.namespace, r.Namespace)
}

// port finds a port by its name or number.
func (r *record) port(name, protocol string) (int, bool) {
	for i, p := range r.Ports {
		if strings.EqualFold(p.Protocol, protocol) && (strings.EqualFold(p.Name, name) || strconv.Itoa(int(p.Port)) == name) {
			return i, true
		}
	}
	return 0, false
}

// targetPort is where an endpoint serves a port of the service.
func (r *record) targetPort(endpoint, port int) uint16 {
	if ports := r.Endpoints[endpoint].Ports; port < len(ports) && ports[port] != 0 {
		return ports[port]
	}
	return r.Ports[port].Port
}

// owner is what an address belongs to: a service or, if endpoint is not negative, one of its endpoints.
type owner struct {
	*record
	endpoint int
}

func (o owner) name() string {
	if o.endpoint < 0 {
		return o.fqdn
	}
	return o.endpointName(o.endpoint)
}

// zone holds the names of the cluster.
type zone struct {
	mu         sync.RWMutex
	ready      bool
	serial     uint32
	self       []netip.Addr                  // of the name server
	services   map[string]*record            // by Name.key
	namespaces map[string]map[string]*record // the same by namespace, for names that only have others below them
	owners     map[netip.Addr][]owner
}

func (z *zone) reset() {
	z.services, z.namespaces, z.owners = map[string]*record{}, map[string]map[string]*record{}, map[netip.Addr][]owner{}
}

func (z *zone) replace(all []Service) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.reset()
	for _, s := range all {
		z.put(s)
	}
	z.ready = true
	z.serial++
}

func (z *zone) update(changed []Service, removed []Name) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, n := range removed {
		z.remove(n.key())
	}
	for _, s := range changed {
		z.put(s)
	}
	z.serial++
}

func (z *zone) put(s Service) {
	key := s.key()
	z.remove(key)
	r := newRecord(s)
	z.services[key] = r
	namespace := strings.ToLower(s.Namespace)
	if z.namespaces[namespace] == nil {
		z.namespaces[namespace] = map[string]*record{}
	}
	z.namespaces[namespace][key] = r
	z.own(s.V4, owner{r, -1})
	z.own(s.V6, owner{r, -1})
	for i, e := range s.Endpoints {
		z.own(e.V4, owner{r, i})
		z.own(e.V6, owner{r, i})
	}
}

func (z *zone) own(address netip.Addr, o owner) {
	if address.IsValid() {
		address = address.Unmap()
		z.owners[address] = append(z.owners[address], o)
	}
}

func (z *zone) remove(key string) {
	r := z.services[key]
	if r == nil {
		return
	}
	delete(z.services, key)
	namespace := strings.ToLower(r.Namespace)
	if delete(z.namespaces[namespace], key); len(z.namespaces[namespace]) == 0 {
		delete(z.namespaces, namespace)
	}
	z.disown(r.V4, r)
	z.disown(r.V6, r)
	for _, e := range r.Endpoints {
		z.disown(e.V4, r)
		z.disown(e.V6, r)
	}
}

func (z *zone) disown(address netip.Addr, r *record) {
	if !address.IsValid() {
		return
	}
	address = address.Unmap()
	var others []owner
	for _, o := range z.owners[address] {
		if o.record != r {
			others = append(others, o)
		}
	}
	if len(others) == 0 {
		delete(z.owners, address)
		return
	}
	z.owners[address] = others
}

// namespaceVisible reports whether a client sees a service of the namespace.
func (z *zone) namespaceVisible(namespace string, v view) bool {
	for _, r := range z.namespaces[namespace] {
		if r.visibleTo(v) {
			return true
		}
	}
	return false
}

func (z *zone) isReady() bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.ready
}

// lacks reports whether a service is not here, if that is known already.
func (z *zone) lacks(name Name) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.ready && z.services[name.key()] == nil
}

func (z *zone) setSelf(addresses []netip.Addr) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.self = addresses
}
