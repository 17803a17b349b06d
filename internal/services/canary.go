package services

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Canary reports whether an endpoint runs the new revision of a canary deployment that has not ended. Testers may be led to
// such endpoints whatever their share of the traffic is.
func Canary(snap *state.Snapshot, e *v1.Endpoint) bool {
	r := snap.Replica(e.GetMetadata().GetUid())
	if r == nil {
		return false
	}
	d := snap.Deployment(snap.Workload(r.GetSpec().GetWorkloadUid()).GetStatus().GetDeploymentUid())
	return spec.CanaryOpen(d) && r.GetSpec().GetRevisionUid() == d.GetSpec().GetRevisionUid()
}

// split divides the traffic of one workload between the new revision of a canary deployment and all others, however many
// replicas each of them has. A nil split does nothing.
type split struct {
	traffic
	canaries, others []*v1.Endpoint
}

// split returns nil if the traffic of the workload is not divided.
func (t traffic) split() *split {
	if t.canary == "" {
		return nil
	}
	return &split{traffic: t}
}

func (s *split) add(r *v1.Replica, e *v1.Endpoint) {
	switch {
	case s == nil:
	case r.GetSpec().GetRevisionUid() == s.canary:
		s.canaries = append(s.canaries, e)
	default:
		s.others = append(s.others, e)
	}
}

// weigh replaces the weights of the workload's endpoints. Their sum over the ready ones stays as it is, so that the workload
// keeps its share among the workloads of the service. While one of the two sets has no ready endpoint, the other one gets
// everything.
func (s *split) weigh() {
	fresh, old := readyOf(s.canaries), readyOf(s.others)
	total := sum(fresh) + sum(old)
	if total == 0 || s.atLeast && sum(fresh)*100 >= total*int64(s.share) {
		return // the workload gets no traffic, or the new revision has more than its share already
	}
	spread(s.canaries, len(fresh), total*int64(s.share))
	spread(s.others, len(old), total*int64(100-s.share))
}

func readyOf(endpoints []*v1.Endpoint) (ready []*v1.Endpoint) {
	for _, e := range endpoints {
		if e.GetStatus().GetState() == spec.EndpointReady {
			ready = append(ready, e)
		}
	}
	return ready
}

func sum(endpoints []*v1.Endpoint) (total int64) {
	for _, e := range endpoints {
		total += int64(e.GetStatus().GetWeight())
	}
	return total
}

// spread gives each endpoint the same part of a weight, which is in hundredths. ready is how many of them take connections;
// the others have the same weight, because a node may know earlier than the servers that one of them is ready.
func spread(endpoints []*v1.Endpoint, ready int, hundredths int64) {
	each := int64(max(ready, 1)) * 100
	for _, e := range endpoints {
		e.Status.Weight = int32(max((hundredths+each/2)/each, 1))
	}
}
