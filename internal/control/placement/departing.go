package placement

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Departing lists the replicas that are to leave a draining node, oldest first, and what each
// waits for.
func (Queries) Departing(snap *state.Snapshot, n *v1.Node) (all []*v1.DepartingReplica) {
	if !spec.Drains(n) {
		return nil
	}
	d := departing{snap: snap, node: n, stays: map[string]stay{}}
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if !spec.Live(r.GetStatus().GetPhase()) {
			continue
		}
		why := d.explain(r)
		all = append(all, &v1.DepartingReplica{
			Namespace: r.GetMetadata().GetNamespace(), Workload: r.GetSpec().GetWorkload(), Replica: r.GetMetadata().GetName(),
			Reason: why.reason, Blocked: why.blocked,
		})
	}
	return all
}

// Undrainable says why a drain that was forecast would not do, service by service, and what would
// help: some replicas could not leave the node, or a service that serves would not serve any
// more. It returns nothing if the drain would do.
func (Queries) Undrainable(before, after *state.Snapshot, n *v1.Node) (reasons []string, help string) {
	d := departing{snap: after, node: n, foreseen: true}
	help = "make room on another one"
	seen := map[string]bool{}
	for r := range before.ReplicasOn(n.GetMetadata().GetUid()) {
		w := after.Workload(r.GetSpec().GetWorkloadUid())
		if seen[w.GetMetadata().GetUid()] || !spec.Live(r.GetStatus().GetPhase()) || w.GetMetadata().GetDeleteTime() != nil ||
			w.GetSpec().GetKind() != "" || w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways {
			continue
		}
		seen[w.GetMetadata().GetUid()] = true
		why := ""
		switch now := Serving(before, w); {
		case d.has(w):
			if stays := d.explainService(w, now); stays.blocked {
				why = stays.reason
			}
		case now > 0 && spec.Replicas(w) > 0 && Serving(after, w) == 0:
			if refused := d.refusals(w); refused != "" {
				why = fmt.Sprintf("%s has %s now and would have none, because %s", w.GetMetadata().GetName(), spec.Count(now, "serving replica"), refused)
			}
		}
		if why != "" {
			reasons = append(reasons, why)
			if w.GetSpec().GetMinAvailable() > 0 {
				help = "lower minAvailable"
			}
		}
	}
	return reasons, help
}

// has reports whether a replica of a workload is still on the node.
func (d *departing) has(w *v1.Workload) bool {
	for r := range d.snap.ReplicasOn(d.node.GetMetadata().GetUid()) {
		if r.GetSpec().GetWorkloadUid() == w.GetMetadata().GetUid() && spec.Live(r.GetStatus().GetPhase()) {
			return true
		}
	}
	return false
}

// departing explains the replicas of one draining node.
type departing struct {
	snap  *state.Snapshot
	node  *v1.Node
	model *Model
	// foreseen is whether the state is that of a forecast.
	foreseen bool
	// stays by workload uid: the replicas of a service on one node wait for the same.
	stays map[string]stay
}

// stay is why a replica is still there. It is blocked if time alone does not help.
type stay struct {
	reason  string
	blocked bool
}

func (d *departing) explain(r *v1.Replica) stay {
	w := d.snap.Workload(r.GetSpec().GetWorkloadUid())
	switch kind := w.GetSpec().GetKind(); {
	case r.GetSpec().GetDesired() == spec.DesiredStopped:
		return stay{reason: "it is stopping"}
	case kind == spec.KindDaemon:
		return stay{reason: "it leaves last, when only daemons are on the node"}
	case kind == spec.KindJob || w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways:
		if deadline := d.node.GetSpec().GetDrain().GetDeadline(); deadline != nil {
			return stay{reason: "it may finish its work until " + deadline.AsTime().Format(time.TimeOnly) + " UTC"}
		}
		return stay{reason: "it finishes its work first"}
	}
	why, known := d.stays[w.GetMetadata().GetUid()]
	if !known {
		why = d.explainService(w, Serving(d.snap, w))
		d.stays[w.GetMetadata().GetUid()] = why
	}
	return why
}

// explainService says what the replicas of a service wait for. now is how many of them serve now.
func (d *departing) explainService(w *v1.Workload, now int) stay {
	for _, r := range ByUID(d.snap, w.GetMetadata().GetUid()) {
		node := d.snap.Node(r.GetSpec().GetNodeUid())
		if Wanted(r) && node != nil && !spec.Drains(node) && !Away(d.snap, r) && !spec.Steady(r) {
			why := fmt.Sprintf("it waits until %s serves on node %s", r.GetMetadata().GetName(), r.GetSpec().GetNode())
			if detail := r.GetStatus().GetUnready(); detail != "" {
				why += ": " + detail
			}
			return stay{reason: why}
		}
	}
	refused := d.refusals(w)
	if refused == "" {
		return stay{reason: "it waits for its replacement"}
	}
	name, then, keep, wanted := w.GetMetadata().GetName(), Serving(d.snap, w), int(w.GetSpec().GetMinAvailable()), int(spec.Replicas(w))
	would := fmt.Sprintf("%d now and would have %d before node %s is empty, because %s", now, then, d.node.GetMetadata().GetName(), refused)
	switch {
	case keep > 0 && now == then:
		return stay{fmt.Sprintf("%s needs %s (minAvailable) and has %d; %s", name, spec.Count(keep, "serving replica"), then, refused), true}
	case keep > 0:
		return stay{fmt.Sprintf("%s needs %s (minAvailable): it has %s", name, spec.Count(keep, "serving replica"), would), true}
	case now == then:
		return stay{fmt.Sprintf("%d of %s of %s serve, and a drain takes one at a time; %s", then, spec.Count(wanted, "replica"), name, refused), true}
	}
	return stay{fmt.Sprintf("%s may lack one of its %s during a drain: it has %s", name, spec.Count(wanted, "replica"), would), true}
}

// refusals says why no other node takes one more replica of a service. It is empty if one does.
func (d *departing) refusals(w *v1.Workload) string {
	if why := AwaitsSecret(d.snap, d.snap.Revision(w.GetStatus().GetRevisionUid()), time.Now()); why != "" {
		return "a new replica " + why
	}
	if d.model == nil {
		d.model = NewModel(d.snap)
	}
	revision, err := d.model.Revision(d.snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return err.Error()
	}
	plan := d.model.View.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Count: 1}}, Reasons: true})
	if len(plan.Unplaced) == 0 {
		return ""
	}
	if quota := plan.Unplaced[0].Quota; quota != "" {
		return quota
	}
	var texts []string
	for _, n := range plan.Unplaced[0].Nodes {
		if n.Node != d.node.GetMetadata().GetUid() {
			texts = append(texts, n.NodeName+": "+n.String())
		}
	}
	switch {
	case len(texts) == 0:
		return "there is no other node"
	case len(texts) > maxRefusals:
		texts = append(texts[:maxRefusals], fmt.Sprintf("and %s", spec.Count(len(texts)-maxRefusals, "more node")))
	}
	if d.foreseen {
		return "no other node would fit: " + strings.Join(texts, "; ")
	}
	return "no other node fits: " + strings.Join(texts, "; ")
}

// maxRefusals is how many nodes a sentence explains.
const maxRefusals = 3

// Serving counts the replicas of a workload that serve and are to go on.
func Serving(snap *state.Snapshot, w *v1.Workload) (serving int) {
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if Wanted(r) && spec.Serves(r) && !Away(snap, r) {
			serving++
		}
	}
	return serving
}
