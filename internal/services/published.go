package services

import (
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Published returns the ports of every node that lead to the endpoints of a service, and the workload that publishes
// them: the one with the service's name.
func Published(snap *state.Snapshot, s *v1.Service) (*v1.Workload, []*v1.Port) {
	w := snap.WorkloadByName(s.GetMetadata().GetNamespace(), s.GetMetadata().GetName())
	return w, PublishedPorts(w)
}

// PublishedPorts are the ports that a workload publishes on every node.
func PublishedPorts(w *v1.Workload) (ports []*v1.Port) {
	if !spec.HasService(w.GetSpec()) || w.GetSpec().GetNetwork() != "node" {
		return nil
	}
	for _, p := range w.GetSpec().GetPorts() {
		if p.GetPublish() != 0 && p.GetPublishMode() != spec.PublishHost {
			ports = append(ports, p)
		}
	}
	return ports
}

func samePublished(a, b *v1.Workload) bool {
	x, y := PublishedPorts(a), PublishedPorts(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if !proto.Equal(x[i], y[i]) {
			return false
		}
	}
	return true
}

// PublishedTwice returns the first port that a workload cannot publish because another workload does, or nil. Every node
// answers on a port that is published in the whole cluster. With publishMode host, the scheduler keeps two workloads on
// different nodes.
func PublishedTwice(w, other *v1.Workload) *v1.Port {
	wide, otherWide := PublishedPorts(w), PublishedPorts(other)
	for _, p := range w.GetSpec().GetPorts() {
		for _, q := range other.GetSpec().GetPorts() {
			if p.GetPublish() != 0 && samePort(p, q) && (slices.Contains(wide, p) || slices.Contains(otherWide, q)) {
				return p
			}
		}
	}
	return nil
}

// samePort reports whether two published ports have an address of a node in common.
func samePort(p, q *v1.Port) bool {
	a, b := p.GetPublishAddress(), q.GetPublishAddress()
	return p.GetPublish() == q.GetPublish() && p.GetProtocol() == q.GetProtocol() && (a == "" || b == "" || a == b)
}
