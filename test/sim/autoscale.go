package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/autoscale"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// autoscaleEvery is longer than in the product, because most ticks do nothing.
const autoscaleEvery = 15 * time.Second

// scalable reports whether the API lets the cluster scale a workload. Broken ones are left out: nothing is known of them.
func scalable(s *v1.WorkloadSpec) bool {
	return s.GetKind() == "" && !s.GetSingleton() && s.GetRestart().GetPolicy() == "always" && s.GetMinAvailable() == 0 && !broken(s)
}

// actAutoscale changes the bounds of a workload, or ends its autoscaling.
func (w *World) actAutoscale(c *rand.Rand) {
	least := int32(c.IntN(3))
	a := &v1.Autoscale{Min: &least, Max: max(1, least) + int32(c.IntN(6)), Cpu: "50%", DownWindow: []string{"1m", "2m"}[c.IntN(2)]}
	if least == 0 {
		a.Idle = "2m"
	}
	if c.IntN(6) == 0 {
		a = nil
	}
	w.change(c, fmt.Sprintf("autoscale %v", a), func(_ *server, _ *state.Snapshot, _ *state.Batch, one *v1.Workload) bool {
		if !scalable(one.GetSpec()) || one.GetStatus().GetOwnerUid() != "" {
			return false // the API refuses it
		}
		one.Spec.Replicas, one.Spec.Autoscale = proto.Int32(max(1, spec.Replicas(one))), proto.CloneOf(a)
		one.Spec = spec.Normalized(one.Spec)
		spec.ForgetScale(one)
		return true
	})
}

// actLoad changes what the requests to a workload cost.
func (w *World) actLoad(c *rand.Rand) {
	load := float64(c.IntN(6)) * float64(c.IntN(6)) / 10
	if one := w.autoscaled(c); one != nil {
		uid := one.GetMetadata().GetUid()
		w.loads[uid], w.busy[uid] = load, w.now
		w.note("the load of %s is %v", one.GetMetadata().GetName(), load)
	}
}

// actSilence keeps the measurements of a busy workload from the leader for a while.
func (w *World) actSilence(c *rand.Rand) {
	one := w.autoscaled(c)
	if one == nil {
		return
	}
	uid, length := one.GetMetadata().GetUid(), draw(c, time.Second, time.Hour)
	w.loads[uid], w.busy[uid] = max(w.loads[uid], 1.5), w.now
	w.after(draw(c, time.Second, 10*time.Minute), func() {
		if w.healed {
			return
		}
		if !w.unmeasured(uid) {
			w.silentSince[uid] = w.now
		}
		w.silent[uid] = w.now + length
	})
}

// autoscaled draws a workload, one with autoscaling if it finds one quickly.
func (w *World) autoscaled(c *rand.Rand) (one *v1.Workload) {
	for range 8 {
		if one = w.workload(c); one.GetSpec().GetAutoscale() != nil {
			return one
		}
	}
	return one
}

// unmeasured reports whether nothing is known of a workload.
func (w *World) unmeasured(uid string) bool { return w.silent[uid] > w.now }

// autoscale is one tick of the loop of autoscaling. It pauses while a plan is compared with what comes of it.
func (l *loops) autoscale() {
	if l.dead || l.t.over {
		return
	}
	w, s := l.t.w, l.t.server
	snap := s.store.Snapshot()
	in := autoscale.Input{Now: w.wall(s), Measured: func(one *v1.Workload, scaling spec.Scaling) autoscale.Measured { return w.measure(snap, one, scaling) }}
	batch := &state.Batch{}
	if !w.tidy {
		batch = autoscale.Tick(in, snap, l.memory, w.uidsOf(s))
	}
	if batch.Len() == 0 {
		w.after(autoscaleEvery, l.autoscale)
		return
	}
	if w.flaw == Boundless {
		overshoot(batch.Transaction(w.clock()))
	}
	l.t.propose("autoscale", batch, snap, func(err error) {
		if l.settled(err) {
			w.after(autoscaleEvery, l.autoscale)
		}
	})
}

// measure is what is known of a workload: its replicas share the load.
func (w *World) measure(snap *state.Snapshot, one *v1.Workload, scaling spec.Scaling) autoscale.Measured {
	uid := one.GetMetadata().GetUid()
	load := w.loads[uid]
	if load > 0 {
		w.busy[uid] = w.now
	}
	m := autoscale.Measured{Replicas: map[string]autoscale.Usage{}}
	silent := w.unmeasured(uid)
	if silent && w.flaw != Presuming {
		return m
	}
	m.RequestsKnown, m.Requests = !silent && w.flaw != Oversleeping, load
	m.Quiet = !silent && load == 0 && w.now-w.busy[uid] >= scaling.Idle
	var serving []string
	for r := range snap.ReplicasOf(uid) {
		if wanted(r) && spec.Serves(r) && !placement.Away(snap, r) {
			serving = append(serving, r.GetMetadata().GetUid())
		}
	}
	for _, r := range serving {
		u := autoscale.Usage{CPU: load / float64(len(serving)), CPUKnown: true}
		if silent {
			u.CPU = 0
		}
		m.Replicas[r] = u
	}
	return m
}

// overshoot scales beyond the bounds.
func overshoot(tx *statev1.Transaction) {
	for _, change := range tx.GetChanges() {
		if one := change.GetPut().GetWorkload(); one.GetStatus().GetScale() != nil {
			_, most := spec.Bounds(one.GetSpec())
			one.Status.Scale.Replicas = most + 1
		}
	}
}

// checkScale checks a decision of autoscaling.
func (w *World) checkScale(p *proposal, before, after *v1.Workload) {
	if p.who != "autoscale" || before == nil || after.GetStatus().GetScale() == nil {
		return
	}
	w.note("autoscale %s: %s (missing %q)", after.GetMetadata().GetName(), after.GetStatus().GetScale().GetReason(), after.GetStatus().GetScale().GetMissing())
	name, was, is := after.GetMetadata().GetName(), spec.Replicas(before), after.GetStatus().GetScale().GetReplicas()
	if least, most := spec.Bounds(after.GetSpec()); is < least || is > most {
		w.fail("autoscaling stays within its bounds", "%s gets %d replicas, from %d to %d are allowed", name, is, least, most)
	}
	// The decision may be older than the silence, or only follow other bounds.
	uid := after.GetMetadata().GetUid()
	decided := p.base.Workload(uid).GetStatus().GetScale()
	if is < was && w.unmeasured(uid) && w.now-w.silentSince[uid] > time.Minute && (decided == nil || decided.GetReplicas() == was) {
		w.fail("missing measurements keep replicas", "%s goes from %d to %d, and nothing is known of it", name, was, is)
	}
	if after.GetStatus().GetScale().GetReason() == "" {
		w.fail("autoscaling explains itself", "%s has %d replicas", name, is)
	}
}

// scaleAmiss says why the number of an autoscaled workload does not fit to its load, if that can be known.
func (w *World) scaleAmiss(snap *state.Snapshot, one *v1.Workload, add func(string, ...any)) {
	if one.GetSpec().GetAutoscale() == nil || one.GetMetadata().GetDeleteTime() != nil {
		return
	}
	scaling, n, serving := spec.ScalingOf(one.GetSpec()), int(spec.Replicas(one)), 0
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(r) && spec.Serves(r) && !placement.Away(snap, r) {
			serving++
		}
	}
	if serving != n {
		return // there is no room
	}
	load := w.loads[one.GetMetadata().GetUid()]
	need := load / scaling.CPURequest / scaling.CPU
	switch {
	case n == 0 && load > 0:
		add("it sleeps, and its load is %v", load)
	case n > 0 && scaling.Least == 0 && load == 0:
		add("it has %d replicas and no load", n)
	case n < scaling.Most && need > float64(n)*1.1+1e-6:
		add("it has %d replicas and needs %v", n, need)
	case n > max(1, scaling.Least, int(math.Ceil(need-1e-6))) && need < float64(n)*0.9-1e-6:
		add("it has %d replicas and needs only %v", n, need)
	}
}
