package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/netd"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/resolver"
	"github.com/cloudless/cloudless/internal/spec"
)

// services are those that replicas of this node may use.
type services struct {
	mu    sync.Mutex                    // held until a change has reached the resolver and the rules, so that an older one never follows
	known map[string]*v1.NetworkService // by uid
	zone  string                        // of this node
}

// applyServices passes on what a server says of services. One that makes no sense is left out.
func (a *Agent) applyServices(n *v1.Network) {
	s := &a.meshState.services
	s.mu.Lock()
	defer s.mu.Unlock()
	all := n.GetFull()
	if all {
		s.known = map[string]*v1.NetworkService{}
	}
	if n.Zone != nil && s.zone != n.GetZone() {
		s.zone, all = n.GetZone(), true // other endpoints are near now
	}
	removed := s.remove(n.GetRemovedServices())
	for _, given := range n.GetServices() {
		s.known[given.GetUid()] = given
	}
	changed := n.GetServices()
	if all {
		changed = slices.Collect(maps.Values(s.known))
	}
	names, balanced := a.describeServices(changed)
	var err error
	switch {
	case all:
		a.mesh.SetServices(names)
		err = a.network.SetServices(balanced)
	case len(names)+len(removed) > 0:
		a.mesh.UpdateServices(names, removed)
		err = a.network.UpdateServices(balanced, balancedIDs(removed))
	}
	if err != nil {
		a.log.Error("connections to some services fail", "error", err)
	}
	if len(n.GetFollowed()) > 0 {
		a.meshState.follows.confirm(n.GetFollowed(), s.in)
		a.mesh.Fetched(n.GetFollowed())
	}
}

// describeServices describes services for the resolver and for the node's network.
func (a *Agent) describeServices(given []*v1.NetworkService) (names []resolver.Service, balanced []nodenet.Service) {
	here := place{node: strings.TrimPrefix(a.meshBase.ID, "node/"), zone: a.meshState.services.zone}
	states := a.ownStates()
	for _, one := range given {
		one = withOwnStates(one, states)
		name, err := nameOf(one)
		if err == nil {
			var b nodenet.Service
			if b, err = here.balanced(one); err == nil {
				names, balanced = append(names, name), append(balanced, b)
			}
		}
		if err != nil {
			a.log.Error("a service is left out", "service", one.GetName(), "namespace", one.GetNamespace(), "error", err)
		}
	}
	return names, balanced
}

// ownStates are the states of endpoints on this node, by their addresses. Servers may not know them yet, or be away.
// Replicas that serve have none if they are blue-green or canaries, or have not served for long enough: only servers know
// whether their revision gets traffic.
func (a *Agent) ownStates() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	states := map[string]string{}
	for _, r := range a.replicas {
		_, status := r.running()
		for _, address := range status.GetAddresses() {
			switch {
			case stillServes(status):
				states[address] = spec.EndpointDraining
			case !spec.ServesNow(status):
				states[address] = spec.EndpointUnready
			case !status.GetSettling() && !sharesTraffic(r.wanted().assignment.GetRevision().GetSpec().GetWorkload()):
				states[address] = spec.EndpointReady
			}
		}
	}
	return states
}

// sharesTraffic reports whether a deployment of the workload decides which revisions get traffic.
func sharesTraffic(w *v1.WorkloadSpec) bool {
	return slices.Contains([]string{spec.StrategyBlueGreen, spec.StrategyCanary}, spec.StrategyOf(w))
}

// stillServes reports whether a replica is being stopped, but has not had its stop signal, or has not ended since. It must
// take new connections until this node knows of another endpoint.
func stillServes(s *v1.ReplicaStatus) bool {
	return s.GetPhase() == spec.PhaseStopping && s.GetPid() > 0 && s.GetUnready() == ""
}

// withOwnStates is a service whose endpoints on this node are unready, draining or not as the node itself knows. Draining
// ones that serve stay so: that is up to the servers.
func withOwnStates(s *v1.NetworkService, states map[string]string) *v1.NetworkService {
	own := func(e *v1.NetworkEndpoint) string {
		for _, address := range e.GetAddresses() {
			state := states[address]
			if (state == spec.EndpointUnready) != (e.GetState() == spec.EndpointUnready) || state == spec.EndpointDraining && e.GetState() == spec.EndpointReady {
				return state
			}
		}
		return ""
	}
	if !slices.ContainsFunc(s.GetEndpoints(), func(e *v1.NetworkEndpoint) bool { return own(e) != "" }) {
		return s
	}
	s = proto.CloneOf(s)
	for _, e := range s.GetEndpoints() {
		if state := own(e); state != "" {
			e.State = state
		}
	}
	return s
}

// servingChanged updates the services of a replica of this node that has begun or ceased to serve, without waiting for
// the servers.
func (a *Agent) servingChanged(addresses []string) {
	a.ingress.ServingChanged(addresses)
	if a.mesh == nil {
		return
	}
	s := &a.meshState.services
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed []*v1.NetworkService
	for _, one := range s.known {
		if slices.ContainsFunc(one.GetEndpoints(), func(e *v1.NetworkEndpoint) bool {
			return slices.ContainsFunc(e.GetAddresses(), func(a string) bool { return slices.Contains(addresses, a) })
		}) {
			changed = append(changed, one)
		}
	}
	if len(changed) == 0 {
		return
	}
	names, balanced := a.describeServices(changed)
	a.mesh.UpdateServices(names, nil)
	if err := a.network.UpdateServices(balanced, nil); err != nil {
		a.log.Error("connections to some services fail", "error", err)
	}
}

// in reports whether there are services in a namespace.
func (s *services) in(namespace string) bool {
	for _, one := range s.known {
		if one.GetNamespace() == namespace {
			return true
		}
	}
	return false
}

// remove forgets services and returns their names.
func (s *services) remove(uids []string) (names []resolver.Name) {
	for _, uid := range uids {
		if gone := s.known[uid]; gone != nil {
			names = append(names, resolver.Name{Namespace: gone.GetNamespace(), Name: gone.GetName()})
			delete(s.known, uid)
		}
	}
	return names
}

// nameOf is a service as clients look it up.
func nameOf(s *v1.NetworkService) (one resolver.Service, err error) {
	one = resolver.Service{Name: resolver.Name{Namespace: s.GetNamespace(), Name: s.GetName()}, Exported: s.GetExported()}
	if one.V4, one.V6, err = addressesFrom(s.GetAddresses()); err != nil {
		return one, err
	}
	var targets []uint16
	for _, p := range s.GetPorts() {
		one.Ports = append(one.Ports, resolver.Port{Name: p.GetName(), Protocol: protocolOf(p.GetProtocol()), Port: uint16(p.GetPort())})
		targets = append(targets, uint16(p.GetTargetPort()))
	}
	for _, e := range s.GetEndpoints() {
		end := resolver.Endpoint{Name: e.GetName(), Ready: e.GetState() == spec.EndpointReady, Ports: targets, Weight: uint16(min(e.GetWeight(), 1<<16-1))}
		if end.V4, end.V6, err = addressesFrom(e.GetAddresses()); err != nil {
			return one, fmt.Errorf("endpoint %s: %w", e.GetName(), err)
		}
		one.Endpoints = append(one.Endpoints, end)
	}
	return one, nil
}

func protocolOf(given string) string {
	if given == "" {
		return "tcp"
	}
	return given
}

// addressesFrom are at most one address of each family.
func addressesFrom(texts []string) (v4, v6 netip.Addr, err error) {
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return v4, v6, err
		case address.Is4():
			v4 = address
		default:
			v6 = address
		}
	}
	return v4, v6, nil
}

// configureNames starts the resolver.
func (a *Agent) configureNames(setup mesh.Setup, serviceRanges []string) error {
	virtual, err := prefixesFrom(serviceRanges)
	if err != nil {
		return fmt.Errorf("the ranges of services: %w", err)
	}
	names := netd.Names{Ranges: slices.Concat(setup.Ranges, virtual), Table: a.network.Table()}
	for _, own := range setup.Addresses {
		names.Listen = append(names.Listen, netip.AddrPortFrom(own.Addr(), nodenet.DNSPort))
	}
	a.mesh.SetNames(names)
	return nil
}

// resolverProblem reports that replicas cannot look up names, or that they can again.
func (a *Agent) resolverProblem(why string) {
	s := &a.meshState
	s.mu.Lock()
	before := s.resolverProblem
	s.resolverProblem = why
	s.mu.Unlock()
	switch {
	case why == before:
	case why != "":
		a.reportEvent("warning", "ResolverFailed", "", sentence("Replicas of this node cannot look up names: "+why+"; stop the other program on this port, or limit it to other addresses."))
	default:
		a.reportEvent("info", "ResolverMended", "", "Replicas of this node can look up names again.")
	}
}

// follows are the namespaces whose services programs of this machine look up.
type follows struct {
	wake chan struct{} // a session must ask for more

	mu sync.Mutex
	// confirmed says, for each namespace, whether its services are known.
	confirmed map[string]bool
}

func newFollows() follows { return follows{wake: make(chan struct{}, 1), confirmed: map[string]bool{}} }

// followNamespace makes the services of a namespace known to programs of this machine. A namespace with services stays
// followed: that costs little. Lookups in more namespaces than a server accepts fail, because nothing answers them.
func (a *Agent) followNamespace(namespace string) {
	f := &a.meshState.follows
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.confirmed[namespace] {
		a.mesh.Fetched([]string{namespace})
		return
	}
	if len(f.confirmed) == spec.MaxFollowed {
		return
	}
	f.confirmed[namespace] = false
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follows) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.confirmed))
}

// confirm notes that the services of namespaces are known. A namespace without services is not followed any more, so that
// lookups of names that do not exist leave room for others.
func (f *follows) confirm(namespaces []string, exists func(string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, namespace := range namespaces {
		if exists(namespace) {
			f.confirmed[namespace] = true
		} else {
			delete(f.confirmed, namespace)
		}
	}
}
