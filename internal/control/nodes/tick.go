package nodes

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxChanges keeps one transaction small when thousands of nodes change at once; the next
// tick does the rest.
const maxChanges = 500

// Tick returns the changes that are due for all nodes and when the next tick is due without
// news, zero if never. since is when this server began to lead: before that it cannot have
// heard of any node. seen is what it has observed, by node uid.
func Tick(now, since time.Time, snap *state.Snapshot, seen map[string]Observation, newUID func() string) (*state.Batch, time.Time) {
	config := snap.Cluster().GetSpec()
	return tick(now, since, snap.Nodes(""), func(n *v1.Node) (Observation, spec.Liveness) {
		return seen[n.GetMetadata().GetUid()], spec.LivenessOf(config, n)
	}, newUID)
}

// tick is Tick for some nodes.
func tick(now, since time.Time, nodes iter.Seq[*v1.Node], seen func(*v1.Node) (Observation, spec.Liveness), newUID func() string) (*state.Batch, time.Time) {
	batch := &state.Batch{}
	var next time.Time
	for old := range nodes {
		o, live := seen(old)
		n, until := judge(now, since, old, o, live)
		if !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
		if n == old {
			continue
		}
		if batch.Len() >= maxChanges {
			return batch, now
		}
		batch.Update(n, old.GetMetadata().GetVersion())
		if before, after := old.GetStatus().GetState(), n.GetStatus().GetState(); before != after {
			batch.Create(event(now, newUID(), n, before))
		}
	}
	return batch, next
}

// judge returns what a node should look like, which is old itself if nothing changes, and
// until when that holds without news.
func judge(now, since time.Time, old *v1.Node, o Observation, live spec.Liveness) (*v1.Node, time.Time) {
	p, until, why := o.look(now, since, live)
	before := old.GetStatus()
	status := before
	switch {
	case p == heard && o.Status != nil:
		status = o.Status
	case p == heard && before.GetState() == spec.NodeOffline:
		status = withoutReady(before) // the leader set that condition, not the agent
	}
	availability, because := availabilityOf(old.GetSpec(), status)
	after := follow(before.GetState(), p, canRun(status), availability)
	if p != heard && (after == spec.NodeOffline || after == spec.NodeEnrolling) {
		until = time.Time{} // it stays as it is until there is news
	}

	// A goodbye says more than the silence before it.
	leaves := after == spec.NodeOffline && (before.GetState() != spec.NodeOffline || why != "" && why == o.Goodbye && why != before.GetReason())
	next := &v1.NodeStatus{}
	proto.Merge(next, status)
	next.Reliability, next.LastSeen = before.GetReliability(), before.GetLastSeen()
	next.State, next.Reason = after, reason(after, before, because, status)
	if next.GetMesh() == nil {
		next.Mesh = before.GetMesh() // an agent that has just started does not know it yet, but its network process runs
	}
	switch {
	case p == heard:
		next.LastSeen, next.SaidGoodbye = nil, false // the leader knows better
	case leaves:
		next.Reason, next.SaidGoodbye = why, o.Goodbye != "" && why == o.Goodbye
		next.LastSeen = timestamppb.New(latest(before.GetLastSeen().AsTime(), o.LastSeen, since))
		next.Conditions = notReady(next.GetConditions(), next.GetReason(), now)
	}
	if after == before.GetState() && proto.Equal(before, next) {
		return old, until
	}
	n := proto.CloneOf(old)
	n.Status = proto.CloneOf(next)
	return n, until
}

// canRun reads the agent's Ready condition. An agent without it counts as ready.
func canRun(status *v1.NodeStatus) bool {
	i := slices.IndexFunc(status.GetConditions(), isReady)
	return i < 0 || status.GetConditions()[i].GetStatus()
}

func isReady(c *v1.Condition) bool { return c.GetType() == "Ready" }

func withoutReady(status *v1.NodeStatus) *v1.NodeStatus {
	status = proto.CloneOf(status)
	status.Conditions = slices.DeleteFunc(status.GetConditions(), isReady)
	return status
}

// notReady are the conditions of a node that is away: Ready is false, all others stay as
// last heard.
func notReady(conditions []*v1.Condition, reason string, now time.Time) []*v1.Condition {
	conditions = slices.Clone(conditions)
	ready := &v1.Condition{Type: "Ready", Reason: "The node is offline: " + reason + ".", ChangeTime: timestamppb.New(now)}
	if i := slices.IndexFunc(conditions, isReady); i >= 0 {
		conditions[i] = ready
		return conditions
	}
	return append([]*v1.Condition{ready}, conditions...)
}

// reason is one sentence about a state, empty if there is nothing to say.
func reason(now string, before *v1.NodeStatus, outOfService string, reported *v1.NodeStatus) string {
	switch now {
	case spec.NodeOffline:
		return before.GetReason()
	case spec.NodeFailed:
		if i := slices.IndexFunc(reported.GetConditions(), isReady); i >= 0 && !reported.GetConditions()[i].GetStatus() {
			return reported.GetConditions()[i].GetReason()
		}
		return before.GetReason()
	case spec.NodeCordoned, spec.NodeDraining:
		return outOfService
	}
	return ""
}

// availabilityOf is the availability of a node, and why: what its operator set, or what its
// machine asks for if that takes it further out of service.
func availabilityOf(wanted *v1.NodeSpec, status *v1.NodeStatus) (availability, why string) {
	has := func(kind string) string {
		for _, c := range status.GetConditions() {
			if c.GetType() == kind && c.GetStatus() {
				return c.GetReason()
			}
		}
		return ""
	}
	availability, why = wanted.GetAvailability(), availabilityReason(wanted)
	departs, low := has(spec.Departing), has(spec.LowBattery)
	switch {
	case availability == spec.AvailabilityDraining:
	case departs != "":
		return spec.AvailabilityDraining, departs
	case availability == "" && low != "":
		return spec.AvailabilityCordoned, low
	}
	return availability, why
}

// availabilityReason says who took a node out of service, and why.
func availabilityReason(wanted *v1.NodeSpec) string {
	by, why := wanted.GetAvailabilityBy(), wanted.GetAvailabilityReason()
	switch {
	case by == "":
		return why
	case why == "":
		return "by " + by
	}
	return fmt.Sprintf("%s (by %s)", why, by)
}

func event(now time.Time, uid string, n *v1.Node, before string) *v1.Event {
	severity, kind, text := state.SeverityInfo, "", n.GetStatus().GetReason()
	switch n.GetStatus().GetState() {
	case spec.NodeReady:
		kind, text = "Ready", "was "+before
	case spec.NodeOffline:
		severity, kind = state.SeverityWarning, "Offline"
	case spec.NodeFailed:
		severity, kind = state.SeverityWarning, "Failed"
	case spec.NodeCordoned:
		kind = "Cordoned"
	case spec.NodeDraining:
		kind = "Draining"
	}
	return state.NewEvent(uid, now, n, severity, kind, text, "control/nodes")
}
