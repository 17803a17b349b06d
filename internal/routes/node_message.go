package routes

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// newRoute is a route as nodes must know it; nil if it is gone.
func newRoute(snap *state.Snapshot, r *v1.Route) *route {
	if r == nil {
		return nil
	}
	m := r.GetMetadata()
	made := &route{
		message:  &v1.IngressRoute{Uid: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), Spec: r.GetSpec()},
		selector: r.GetSpec().GetNodes(),
	}
	for _, b := range r.GetSpec().GetBackends() {
		made.message.ServiceUids = append(made.message.ServiceUids, made.lead(snap, m.GetNamespace(), b))
	}
	if name := CertificateOf(r); name != "" {
		made.certificate = path(m.GetNamespace(), name)
		if c := snap.CertificateByName(m.GetNamespace(), name); c != nil && usable(snap, c) {
			made.message.CertificateUid = c.GetMetadata().GetUid()
		}
	}
	return made
}

// lead notes what a backend names, and returns its uid; empty if it does not exist.
func (r *route) lead(snap *state.Snapshot, namespace string, b *v1.RouteBackend) string {
	switch {
	case b.GetS3():
		return ""
	case b.GetBucket() != nil:
		r.buckets = append(r.buckets, path(namespace, b.GetBucket().GetName()))
		return snap.BucketByName(namespace, b.GetBucket().GetName()).GetMetadata().GetUid()
	}
	r.services = append(r.services, path(namespace, b.GetService()))
	return snap.ServiceByName(namespace, b.GetService()).GetMetadata().GetUid()
}

// usable reports whether a certificate can be served: it was made, and has its key.
func usable(snap *state.Snapshot, c *v1.Certificate) bool {
	return c.GetSpec().GetChain() != "" && snap.CertificateKey(c.GetMetadata().GetUid()) != nil
}

// newService is a service as nodes must know it.
func newService(snap *state.Snapshot, s *v1.Service) *v1.IngressService {
	m := s.GetMetadata()
	message := &v1.IngressService{Uid: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName()}
	for _, p := range s.GetSpec().GetPorts() {
		port := &v1.IngressServicePort{Port: p.GetPort(), TargetPort: p.GetTargetPort(), Protocol: p.GetProtocol()}
		if port.Protocol == "" {
			port.Protocol = "tcp"
		}
		if port.TargetPort == 0 {
			port.TargetPort = port.Port
		}
		message.Ports = append(message.Ports, port)
	}
	serves := false
	for _, e := range services.Endpoints(snap, s) {
		one := &v1.IngressEndpoint{
			Id: e.GetMetadata().GetName(), Addresses: e.GetSpec().GetAddresses(), State: e.GetStatus().GetState(), Weight: e.GetStatus().GetWeight(),
			NodeUid: e.GetSpec().GetNodeUid(),
		}
		if r := snap.Replica(e.GetMetadata().GetUid()); r != nil {
			one.Id, one.RevisionUid, one.Canary = r.GetMetadata().GetUid(), r.GetSpec().GetRevisionUid(), services.Canary(snap, e)
		}
		serves = serves || one.GetState() != spec.EndpointUnready && one.GetWeight() > 0
		message.Endpoints = append(message.Endpoints, one)
	}
	for w := range services.Workloads(snap, s) {
		// A workload that was woken has no endpoint before its first replica has an address.
		message.Wakes = message.GetWakes() || spec.Asleep(w) || mayWake(w) && !serves
	}
	return message
}

// mayWake reports whether a workload may be scaled to zero, and a request to it therefore waits while it has no replica.
func mayWake(w *v1.Workload) bool {
	a := w.GetSpec().GetAutoscale()
	return a != nil && a.Min != nil && a.GetMin() == 0
}
