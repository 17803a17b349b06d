package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// namespaces are those of workloads.
var namespaces = []string{spec.DefaultNamespace, "team"}

// namespaceOf is that of a workload, by its name.
func namespaceOf(name string) string { return namespaces[int(name[len(name)-1])%len(namespaces)] }

// anyQuota draws a quota: nothing, little or enough.
func anyQuota(c *rand.Rand) *v1.Quota {
	q := &v1.Quota{}
	if c.IntN(2) == 0 {
		q.Replicas = proto.Int64(int64(c.IntN(20)))
	}
	if c.IntN(2) == 0 {
		q.Cpu = fmt.Sprintf("%dm", 500*c.IntN(16))
	}
	if c.IntN(3) == 0 {
		q.Memory = fmt.Sprintf("%dMi", 256*c.IntN(24))
	}
	return q
}

// actQuota lets an operator create, change or delete a namespace.
func (w *World) actQuota(c *rand.Rand) {
	name, quota, lift := namespaces[c.IntN(len(namespaces))], anyQuota(c), c.IntN(3) == 0
	w.operate("quota of "+name, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.NamespaceByName(name)
		switch {
		case old == nil && lift:
			return false
		case old == nil:
			b.Create(&v1.Namespace{
				ApiVersion: spec.APIVersion, Kind: spec.KindNamespace, Metadata: &v1.Metadata{Uid: w.uidsOf(s)(), Name: name},
				Spec: &v1.NamespaceSpec{Quota: proto.CloneOf(quota)},
			})
		case lift:
			b.DeleteVersion(state.KindNamespace, old.GetMetadata().GetUid(), old.GetMetadata().GetVersion())
		default:
			n := proto.CloneOf(old)
			n.Spec.Quota = proto.CloneOf(quota)
			b.Update(n, old.GetMetadata().GetVersion())
		}
		return true
	}, nil)
}

// allowance is what is left of a quota, and what is limited at all.
type allowance struct {
	left    scheduler.Resources
	limited [len(scheduler.Resources{})]bool
	// replicas is -1 for no limit.
	replicas int64
}

func newAllowance(q *v1.Quota) allowance {
	a := allowance{replicas: -1}
	if q == nil {
		return a
	}
	if q.Replicas != nil {
		a.replicas = q.GetReplicas()
	}
	if q.GetCpu() != "" {
		a.left[scheduler.CPU], _ = spec.ParseCPU(q.GetCpu())
		a.limited[scheduler.CPU] = true
	}
	if q.GetMemory() != "" {
		a.left[scheduler.Memory], _ = spec.ParseBytes(q.GetMemory())
		a.limited[scheduler.Memory] = true
	}
	return a
}

// allowed is what is left of the quota of a namespace, judged by the nodes of another
// moment: replicas on offline nodes do not count. have is how many count.
func (w *World) allowed(quota *v1.Quota, snap, nodes *state.Snapshot, namespace, without string) (left allowance, have int64) {
	left = newAllowance(quota)
	for r := range snap.Replicas(namespace, "") {
		n := nodes.Node(r.GetSpec().GetNodeUid())
		if n == nil || spec.Ended(r.GetStatus().GetPhase()) || n.GetStatus().GetState() == "offline" || r.GetMetadata().GetUid() == without {
			continue
		}
		have++
		if need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid()); ok {
			for i, amount := range need.Resources {
				left.left[i] -= amount
			}
		}
	}
	return left, have
}

// withinQuota reports whether the quota allows one more replica of a workload, without one
// that would go.
func (w *World) withinQuota(snap *state.Snapshot, one *v1.Workload, need needs, without string) bool {
	namespace := one.GetMetadata().GetNamespace()
	left, have := w.allowed(snap.NamespaceByName(namespace).GetSpec().GetQuota(), snap, snap, namespace, without)
	for i, amount := range need.Resources {
		if left.limited[i] && amount > 0 && amount > left.left[i] {
			return false
		}
	}
	return left.replicas < 0 || have < left.replicas
}

// checkQuotas checks that nothing is placed beyond a quota: not in the state that the loop
// has seen, and not under another quota than the one it has seen.
func (w *World) checkQuotas(p *proposal, before, after *state.Snapshot) {
	if p.who != "replicas" || p.base == nil {
		return
	}
	placed := map[string]scheduler.Resources{} // the largest needs, by namespace
	for _, change := range p.tx.GetChanges() {
		r := change.GetPut().GetReplica()
		if r == nil || r.GetSpec().GetNodeUid() == "" || before.Replica(r.GetMetadata().GetUid()).GetSpec().GetNodeUid() != "" {
			continue
		}
		need, _ := w.needsOf(after, r.GetSpec().GetRevisionUid())
		largest := placed[r.GetMetadata().GetNamespace()]
		for i := range largest {
			largest[i] = max(largest[i], need.Resources[i])
		}
		placed[r.GetMetadata().GetNamespace()] = largest
	}
	for _, name := range slices.Sorted(maps.Keys(placed)) {
		seen := p.base.NamespaceByName(name)
		if seen.GetSpec().GetQuota() == nil {
			continue
		}
		if now := before.NamespaceByName(name); now.GetMetadata().GetVersion() != seen.GetMetadata().GetVersion() {
			w.fail("a placement is checked against the current quota", "namespace %s is at version %d, seen was %d",
				name, now.GetMetadata().GetVersion(), seen.GetMetadata().GetVersion())
		}
		left, have := w.allowed(seen.GetSpec().GetQuota(), after, p.base, name, "")
		for i, amount := range placed[name] {
			if left.limited[i] && amount > 0 && left.left[i] < 0 {
				w.fail("nothing is placed beyond a quota", "namespace %s has %d %s too much of %v", name, -left.left[i], scheduler.Resource(i), seen.GetSpec().GetQuota())
			}
		}
		if left.replicas >= 0 && have > left.replicas {
			w.fail("nothing is placed beyond a quota", "namespace %s has %d replicas of %d", name, have, left.replicas)
		}
	}
}

// unlimited is the state as seen by a loop that ignores quotas.
func unlimited(store *state.Store) *state.Snapshot {
	fork := store.Fork()
	var b state.Batch
	for n := range fork.Snapshot().Namespaces("") {
		b.Delete(state.KindNamespace, n.GetMetadata().GetUid())
	}
	if b.Len() > 0 {
		if _, err := fork.Apply(b.Transaction(fork.Snapshot().Cluster().GetMetadata().GetCreateTime().AsTime())); err != nil {
			return store.Snapshot()
		}
	}
	return fork.Snapshot()
}
