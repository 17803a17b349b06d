package services

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Implicit returns the service that a workload has by itself, without a uid and addresses, or nil if it has none. The
// service has the name, the labels and the ports of the workload.
func Implicit(w *v1.Workload) *v1.Service {
	if w == nil || !spec.HasService(w.GetSpec()) {
		return nil
	}
	m := w.GetMetadata()
	s := &v1.Service{
		ApiVersion: spec.APIVersion, Kind: spec.KindServiceObject,
		Metadata: &v1.Metadata{Namespace: m.GetNamespace(), Name: m.GetName(), Labels: maps.Clone(m.GetLabels())},
		Spec:     &v1.ServiceSpec{Ports: servicePorts(w.GetSpec().GetPorts())},
		Status:   &v1.ServiceStatus{Workload: m.GetName(), WorkloadUid: m.GetUid()},
	}
	spec.NormalizeService(s)
	return s
}

// servicePorts are the ports of a workload as those of a service: a port that is published several times is listed once.
func servicePorts(of []*v1.Port) (ports []*v1.ServicePort) {
	listed := map[string]bool{}
	for _, p := range of {
		key := fmt.Sprintf("%d/%s", p.GetPort(), p.GetProtocol())
		if !listed[key] {
			listed[key] = true
			ports = append(ports, &v1.ServicePort{Name: p.GetName(), Protocol: p.GetProtocol(), Port: p.GetPort()})
		}
	}
	return ports
}

// Become returns a stored service with the labels, spec and owner of another one. It keeps its uid and its addresses, so
// that it stays the same service for its clients. It returns the stored one itself if nothing differs.
func Become(stored, wanted *v1.Service) *v1.Service {
	now := proto.CloneOf(stored)
	m := wanted.GetMetadata()
	now.Metadata.Labels, now.Metadata.Annotations = maps.Clone(m.GetLabels()), maps.Clone(m.GetAnnotations())
	now.Spec = proto.CloneOf(wanted.GetSpec())
	if now.Status == nil {
		now.Status = &v1.ServiceStatus{}
	}
	now.Status.Workload, now.Status.WorkloadUid = wanted.GetStatus().GetWorkload(), wanted.GetStatus().GetWorkloadUid()
	if proto.Equal(stored, now) {
		return stored
	}
	return now
}
