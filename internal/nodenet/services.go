package nodenet

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Service is a set of ports that lead to backends on any node. Replicas and processes of this machine reach it by its
// virtual addresses, which must be in Ranges.Services.
type Service struct {
	// ID is unique and appears in the names of chains: up to 128 lower-case letters, digits, dots and dashes, such as
	// "api.shop".
	ID string
	// Addresses are virtual: at most one of each family. A headless service, and one that is only published, has none.
	Addresses []netip.Addr
	// Exported services are open to replicas of all namespaces, by their virtual addresses and by those of their
	// backends. Others are open to the replicas of the backends' namespace.
	Exported bool
	// Affinity is how long a client's connections go to the same backend after its last one; 0 for no affinity.
	Affinity time.Duration
	Ports    []ServicePort
	Backends []Backend
	// Group and Owner are those of the Endpoints that publish the same ports. They matter only for published ports: if
	// several groups want a port at once, the first by its name gets it.
	Group string
	Owner string
}

// ServicePort is a port of a service.
type ServicePort struct {
	Protocol string // "tcp" or "udp"
	// Port is that of the virtual addresses, 0 if it is only published. Target is where the backends listen.
	Port   uint16
	Target uint16
	// Publish is the port of this machine that leads here too, wherever the backends are; 0 for none. PublishAddress
	// limits it to one address of the machine. While the service has backends, it takes the place of Endpoint.Ports,
	// which lead only to the replicas of this node.
	Publish        uint16
	PublishAddress netip.Addr
}

// Backend is where connections go: a replica of any node, or an address outside the cluster.
type Backend struct {
	// Addresses are at most one of each family.
	Addresses []netip.Addr
	// Weight is the share of the new connections, compared with the other backends. A backend with 0 is draining: it
	// gets no new connections and keeps those that it has. A backend that is not named any more keeps its TCP
	// connections, and its UDP clients move on to others.
	Weight uint32
	// Distance ranks backends, for example 0 on this node, 1 in its zone, 2 elsewhere, or 0 for all. The nearest ones
	// with a weight get all new connections, except those of clients that have affinity to another one.
	Distance int
}

// services are what the servers have told.
type services struct {
	update sync.Mutex // held while services change; taken before other locks
	byID   map[string]Service
	// refused are services with published ports that another program or workload has. Those that are absent are to be
	// published at an address that the machine does not have now.
	refused, absent map[string]bool
}

// UpdateServices sets some services and removes others, in one transaction. It leaves out services that make no sense,
// and names them in the error. A caller that restarts calls SetServices before Run and Attach: then the rules never lack
// a service.
func (n *Network) UpdateServices(changed []Service, removed []string) error {
	n.services.update.Lock()
	defer n.services.update.Unlock()
	return n.updateServices(changed, removed)
}

// SetServices is UpdateServices for all of them: services that are not named are removed.
func (n *Network) SetServices(all []Service) error {
	n.services.update.Lock()
	defer n.services.update.Unlock()
	gone := maps.Clone(n.services.byID)
	for _, s := range all {
		delete(gone, s.ID)
	}
	return n.updateServices(all, slices.Collect(maps.Keys(gone)))
}

// updateServices writes what changes. The caller holds services.update.
func (n *Network) updateServices(changed []Service, removed []string) error {
	var errs []error
	gone := goneBackends{}
	publish := false
	for _, id := range removed {
		before := n.services.byID[id]
		publish = publish || len(before.published()) > 0
		gone.left(before, Service{})
		n.claims.release(servicePrefix + id)
		n.setPublished(before, Service{})
		delete(n.services.byID, id)
		delete(n.services.refused, id)
		delete(n.services.absent, id)
	}
	valid := make([]Service, 0, len(changed))
	for _, s := range slices.SortedStableFunc(slices.Values(changed), func(a, b Service) int { return strings.Compare(a.Group, b.Group) }) {
		if err := s.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		valid = append(valid, s)
		before, known := n.services.byID[s.ID]
		publish = publish || len(before.published())+len(s.published()) > 0
		gone.left(before, s)
		if !known || before.Group != s.Group || !slices.Equal(before.published(), s.published()) || n.services.refused[s.ID] || n.services.absent[s.ID] {
			n.claimPorts(s)
		}
		n.services.byID[s.ID] = s
		if n.services.refused[s.ID] {
			s.Backends = nil
		}
		n.setPublished(before, s)
	}
	errs = append(errs, n.writeServices(valid, removed, publish))
	gone.forget(n)
	return errors.Join(errs...)
}

// writeServices writes the parts of services and, if they publish ports, those of ports that they take over or give back.
func (n *Network) writeServices(changed []Service, removed []string, publish bool) error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	parts := map[string]*nft.Part{}
	if publish && n.rules.parts[basePart] {
		parts = n.pending()
	}
	for _, id := range removed {
		parts[servicePrefix+id] = nil
	}
	for _, s := range changed {
		parts[servicePrefix+s.ID] = n.servicePart(s)
	}
	return n.write(parts)
}

// servicePrefix begins the names of services among parts and claims.
const servicePrefix = "service/"

var validServiceID = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)

func (s Service) validate() error {
	if !validServiceID.MatchString(s.ID) {
		return fmt.Errorf("service %q: its id cannot be part of a chain's name", s.ID)
	}
	if s.Affinity < 0 {
		return fmt.Errorf("service %s: affinity of %v", s.ID, s.Affinity)
	}
	for _, p := range s.Ports {
		if p.Protocol != "tcp" && p.Protocol != "udp" || p.Port == 0 && p.Publish == 0 || p.Target == 0 {
			return fmt.Errorf("service %s: port %d to %d of protocol %q", s.ID, p.Port, p.Target, p.Protocol)
		}
	}
	for _, list := range append([][]netip.Addr{s.Addresses}, addressesOf(s.Backends)...) {
		if slices.ContainsFunc(list, func(a netip.Addr) bool { return !a.IsValid() || a.Is4In6() || a.Zone() != "" }) {
			return fmt.Errorf("service %s: addresses %v", s.ID, list)
		}
	}
	return nil
}

func addressesOf(backends []Backend) [][]netip.Addr {
	var lists [][]netip.Addr
	for _, b := range backends {
		lists = append(lists, b.Addresses)
	}
	return lists
}

// published are the ports of the machine that lead to the service.
func (s Service) published() []Port {
	var ports []Port
	for _, p := range s.Ports {
		if p.Publish != 0 {
			ports = append(ports, Port{Protocol: p.Protocol, Address: p.PublishAddress, Host: p.Publish, Inside: p.Target})
		}
	}
	return ports
}

// claimPorts holds the published ports of a service, all or none, except those at an address of another machine.
func (n *Network) claimPorts(s Service) {
	n.claims.release(servicePrefix + s.ID)
	all := s.published()
	ports := slices.DeleteFunc(slices.Clone(all), func(p Port) bool { return p.Address.IsValid() && !isOwn(p.Address) })
	delete(n.services.absent, s.ID)
	if len(ports) < len(all) {
		n.services.absent[s.ID] = true
	}
	err := n.checkPorts(ports)
	if err == nil {
		err = n.claims.take(Endpoint{UID: servicePrefix + s.ID, Group: s.Group, Owner: s.Owner, Ports: ports}, false)
	}
	if err == nil {
		delete(n.services.refused, s.ID)
		return
	}
	if taken, ok := errors.AsType[*PortError](err); ok {
		err = fmt.Errorf("port %s is used by %s; free it, or publish another", taken.Port, taken.User)
	}
	if !n.services.refused[s.ID] {
		n.sendEvent(Event{Warning: true, Reason: "PortTaken", Message: fmt.Sprintf("service %s is not published on this node: %v", s.ID, err)})
	}
	n.services.refused[s.ID] = true
}

// isOwn reports whether the machine has an address.
func isOwn(a netip.Addr) bool {
	addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	return err == nil && slices.ContainsFunc(addrs, func(have netlink.Addr) bool {
		p, ok := prefixOf(have.IPNet)
		return ok && (p.Addr() == a || a.IsLoopback() && p.Addr().IsLoopback() && p.Contains(a))
	})
}

// publishAgain tries to publish the services whose ports were taken, and reports whether none is left.
func (n *Network) publishAgain() bool {
	n.services.update.Lock()
	defer n.services.update.Unlock()
	var again []Service
	for id := range n.services.refused {
		again = append(again, n.services.byID[id])
	}
	for id := range n.services.absent {
		if s := n.services.byID[id]; !n.services.refused[id] && slices.ContainsFunc(s.published(), func(p Port) bool { return !n.claims.has(servicePrefix+id, p.key()) && isOwn(p.Address) }) {
			again = append(again, s)
		}
	}
	if len(again) > 0 {
		if err := n.updateServices(again, nil); err != nil {
			n.log.Debug("services could not be published", "error", err)
		}
	}
	return len(n.services.refused) == 0
}

// everywhere is where a port leads that a service publishes.
type everywhere struct {
	service string // its id
	to      []netip.AddrPort
}

// setPublished notes where the published ports of a service lead. Ports without backends are left to the endpoints of
// this node.
func (n *Network) setPublished(before, now Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range before.published() {
		if n.everywhere[p.key()].service == before.ID { // another service may have the port
			delete(n.everywhere, p.key())
		}
	}
	for _, p := range now.published() {
		if to := slots(now.Backends, p.Inside); len(to) > 0 {
			n.everywhere[p.key()] = everywhere{service: now.ID, to: to}
		}
	}
}

// servicePart is the part of the table for a service.
func (n *Network) servicePart(s Service) *nft.Part {
	all := &nft.Part{}
	if s.Affinity > 0 {
		for _, to := range usable(s.Backends, 0) {
			all.Sets = append(all.Sets, s.clients(to.Addr()))
		}
	}
	for _, p := range s.Ports {
		b := s.balancer(p)
		b.describe(all)
		for _, vip := range s.Addresses {
			if f := familyOfAddr(vip); p.Port != 0 && len(b.of(f)) > 0 {
				key := string(vip.AsSlice()) + portElement(portKey{protocol: p.Protocol, number: p.Port})
				all.Elements = append(all.Elements, nft.Element{Set: setServices + f.suffix, Key: key, Goto: b.chain})
			}
		}
		if p.Publish != 0 && len(b.slots) > 0 && !n.services.refused[s.ID] {
			published := portKey{protocol: p.Protocol, addr: p.PublishAddress, number: p.Publish}
			all.Elements = append(all.Elements, published.element(b.chain))
		}
		if s.Exported {
			all.Elements = append(all.Elements, exported(s.Backends, p)...)
		}
	}
	return all
}

// exported opens a port of backends to all namespaces.
func exported(backends []Backend, p ServicePort) []nft.Element {
	port := portElement(portKey{protocol: p.Protocol, number: p.Target})
	var elements []nft.Element
	for _, b := range backends {
		for _, addr := range b.Addresses {
			elements = append(elements, nft.Element{Set: setExported + familyOfAddr(addr).suffix, Key: string(addr.AsSlice()) + port})
		}
	}
	return elements
}

// balancer is that of a port.
func (s Service) balancer(p ServicePort) balancer {
	chain := fmt.Sprintf("service_%s_%s_%d", s.ID, p.Protocol, p.Port)
	if p.Port == 0 {
		chain = fmt.Sprintf("service_%s_published_%s", s.ID, portKey{protocol: p.Protocol, addr: p.PublishAddress, number: p.Publish}.chain())
	}
	b := balancer{chain: chain, slots: slots(s.Backends, p.Target)}
	if s.Affinity > 0 {
		b.usable, b.clients = usable(s.Backends, p.Target), s.clients
	}
	return b
}

// maxClients limits the clients that a backend with affinity remembers.
const maxClients = 65536

// clients is the set of clients that a backend keeps, for all ports of the service. A set with another timeout is another
// set.
func (s Service) clients(of netip.Addr) nft.Set {
	return nft.Set{
		Name: fmt.Sprintf("clients_%s_%s_%dms", s.ID, nameOf(of), s.Affinity.Milliseconds()),
		Key:  familyOfAddr(of).addressType(), Dynamic: true, Timeout: s.Affinity, Size: maxClients,
	}
}
