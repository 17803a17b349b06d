package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Reason says in one sentence what is wrong with a service that has these endpoints. It is empty if nothing is.
func Reason(snap *state.Snapshot, s *v1.Service, endpoints []*v1.Endpoint) string {
	workloads := slices.Collect(Workloads(snap, s))
	switch {
	case s.GetStatus().GetReason() != "":
		return s.GetStatus().GetReason() // it has no address
	case len(endpoints) == 0 && len(workloads) == 0:
		return nothingChosen(s)
	case len(endpoints) == 0:
		return noEndpoint(workloads)
	}
	usable := Usable(endpoints)
	if len(usable) == 0 || onOfflineNode(snap, usable[0]) {
		return notReady(endpoints)
	}
	return unknownWeight(s, workloads)
}

func nothingChosen(s *v1.Service) string {
	namespace, name := s.GetMetadata().GetNamespace(), s.GetMetadata().GetName()
	if selector := s.GetSpec().GetSelector(); len(selector) > 0 {
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(selector)) {
			labels = append(labels, key+"="+selector[key])
		}
		return fmt.Sprintf("no workload in namespace %s has the labels %s: label one, or change spec.selector", namespace, strings.Join(labels, ","))
	}
	return fmt.Sprintf("it has no endpoints: no workload in namespace %s is named %s; set spec.selector or spec.external, or register an endpoint with: %s",
		namespace, name, spec.Hint(namespace, "cloudless endpoint register "+name+" NAME ADDRESS"))
}

func noEndpoint(workloads []*v1.Workload) string {
	w := workloads[0]
	if network := w.GetSpec().GetNetwork(); network == "host" || network == "none" {
		return fmt.Sprintf("the replicas of workload %s have no address of their own, because its network is %s: set network: node, or register endpoints", w.GetMetadata().GetName(), network)
	}
	return fmt.Sprintf("no replica of workload %s has an address yet; see: %s",
		w.GetMetadata().GetName(), spec.Hint(w.GetMetadata().GetNamespace(), "cloudless ps "+w.GetMetadata().GetName()))
}

func notReady(endpoints []*v1.Endpoint) string {
	for _, e := range endpoints {
		if reason := e.GetStatus().GetReason(); reason != "" {
			return fmt.Sprintf("no endpoint is ready; of %s: %s", e.GetMetadata().GetName(), reason)
		}
	}
	return "no endpoint gets connections, because the weights of all its workloads are 0: raise one in spec.balancer.weights"
}

// unknownWeight names a workload that has a weight and is not chosen.
func unknownWeight(s *v1.Service, workloads []*v1.Workload) string {
	for _, name := range slices.Sorted(maps.Keys(s.GetSpec().GetBalancer().GetWeights())) {
		if !slices.ContainsFunc(workloads, func(w *v1.Workload) bool { return w.GetMetadata().GetName() == name }) {
			return fmt.Sprintf("spec.balancer.weights names %s, which is not among the workloads of the service", name)
		}
	}
	return ""
}
