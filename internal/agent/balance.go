package agent

import (
	"fmt"
	"net/netip"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/resolver"
	"github.com/cloudless/cloudless/internal/spec"
)

// place is where this node is.
type place struct{ node, zone string }

// How far away an endpoint is.
const (
	onThisNode = iota
	inThisZone
	elsewhere
)

func (p place) distance(e *v1.NetworkEndpoint) int {
	switch {
	case e.GetNodeUid() != "" && e.GetNodeUid() == p.node:
		return onThisNode
	case e.GetZone() != "" && e.GetZone() == p.zone:
		return inThisZone
	}
	return elsewhere
}

// balancedID is unique among services.
func balancedID(n resolver.Name) string { return n.Name + "." + n.Namespace }

func balancedIDs(names []resolver.Name) (ids []string) {
	for _, n := range names {
		ids = append(ids, balancedID(n))
	}
	return ids
}

// balanced is a service as the node's network balances it.
func (p place) balanced(s *v1.NetworkService) (one nodenet.Service, err error) {
	one = nodenet.Service{ID: balancedID(resolver.Name{Namespace: s.GetNamespace(), Name: s.GetName()}), Exported: s.GetExported(), Affinity: s.GetAffinity().AsDuration()}
	for _, text := range s.GetAddresses() {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return one, err
		}
		one.Addresses = append(one.Addresses, address)
	}
	for _, given := range s.GetPorts() {
		port := nodenet.ServicePort{Protocol: protocolOf(given.GetProtocol()), Port: uint16(given.GetPort()), Target: uint16(given.GetTargetPort())}
		if port.Target == 0 {
			port.Target = port.Port
		}
		one.Ports = append(one.Ports, port)
	}
	one.Group, one.Owner = s.GetWorkloadUid(), ownerOf(s.GetName(), s.GetNamespace())
	for _, given := range s.GetPublished() {
		port := portOf(given)
		one.Ports = append(one.Ports, nodenet.ServicePort{Protocol: port.Protocol, Target: port.Inside, Publish: port.Host, PublishAddress: port.Address})
	}
	one.Backends, err = p.backends(s.GetEndpoints(), s.GetNearestFirst())
	return one, err
}

// backends are the endpoints that get connections. Those that leave soon get new ones only if there are no others.
func (p place) backends(endpoints []*v1.NetworkEndpoint, nearestFirst bool) (list []nodenet.Backend, err error) {
	takes := spec.EndpointDraining
	for _, e := range endpoints {
		if e.GetState() == spec.EndpointReady && e.GetWeight() > 0 {
			takes = spec.EndpointReady
		}
	}
	for _, e := range endpoints {
		if e.GetState() == spec.EndpointUnready {
			continue
		}
		var b nodenet.Backend
		for _, text := range e.GetAddresses() {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("endpoint %s: %w", e.GetName(), err)
			}
			b.Addresses = append(b.Addresses, address)
		}
		if e.GetState() == takes {
			b.Weight = uint32(e.GetWeight())
		}
		if nearestFirst {
			b.Distance = p.distance(e)
		}
		list = append(list, b)
	}
	return list, nil
}
