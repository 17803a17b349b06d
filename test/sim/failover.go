package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// anyFailover draws how fast lost replicas are replaced: half of the clusters have no limit. It
// has a random source of its own, so that the stories of old seeds stay the same.
func anyFailover(seed uint64) *v1.Failover {
	c := rand.New(rand.NewPCG(seed, 0xfa11))
	if c.IntN(2) == 0 {
		return nil
	}
	return &v1.Failover{Replicas: new(int32(1 + c.IntN(4))), Per: []string{"1s", "", "1m", "10m"}[c.IntN(4)]}
}

// paced are the replacements of lost replicas that one leader made, by its own clock.
type paced struct {
	by    *term
	times []time.Time
}

// checkPace checks that a leader replaces no more lost replicas than the configuration allows.
// The next leader has another clock, which may be wrong.
func (w *World) checkPace(p *proposal, before, after *state.Snapshot) {
	limit := spec.FailoverOf(before.Cluster().GetSpec())
	if p.who != "replicas" || limit.Replicas == 0 {
		return
	}
	all := &w.oracle.paced
	now := p.tx.GetTime().AsTime()
	if all.by != w.leader || len(all.times) > 0 && now.Before(all.times[len(all.times)-1]) {
		*all = paced{by: w.leader}
	}
	all.times = slices.DeleteFunc(all.times, func(at time.Time) bool { return now.Sub(at) >= limit.Per })
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		if uid := r.GetMetadata().GetUid(); r.GetSpec().GetReplaces().GetCause() == placement.CauseLost && before.Replica(uid) == nil && after.Replica(uid) != nil {
			all.times = append(all.times, now)
		}
	}
	if len(all.times) > limit.Replicas {
		w.fail("lost replicas are replaced at the configured rate", "%d were replaced within %s: %s", len(all.times), limit.Per, limit)
	}
}
