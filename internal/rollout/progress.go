package rollout

import (
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// maxCrashes is how often a new replica may end before the deployment fails: one that always
// ends would otherwise hold it up until its deadline.
const maxCrashes = 3

// Progress is how far a deployment is.
type Progress struct {
	// Want is how many replicas the current revision should have, and Proven how many have proven
	// themselves or have done their work. Outdated counts those of other revisions that are not
	// gone.
	Want, Proven, Outdated int
	// Crashed is the uid of a replica of the current revision that ends again and again, if
	// there is one.
	Crashed string
	// Unready is the uid of a replica of the current revision that does not serve, if there is
	// one.
	Unready string
}

// ProgressOf reads how far the rollout of a workload's revision is. A replica has proven itself when it is steady. If one
// is enough, see [spec.ProvenByOne], all others that serve have proven themselves with it.
func ProgressOf(revision string, w *v1.WorkloadSpec, want int, replicas []Replica) Progress {
	p, serving := Progress{Want: want}, 0
	for _, r := range replicas {
		switch {
		case spec.Ended(r.Phase):
			if r.Revision == revision && r.Desired != spec.DesiredStopped && done(r.Phase, w.GetRestart().GetPolicy()) {
				p.Proven++
				serving++
			}
		case r.Revision != revision:
			p.Outdated++
		case r.Desired == spec.DesiredStopped || r.Away:
		case r.Steady:
			p.Proven++
			serving++
		case r.Serves:
			serving++
		default:
			p.Unready = r.UID
			if r.Crashes >= maxCrashes {
				p.Crashed = r.UID
			}
		}
	}
	if p.Proven > 0 && spec.ProvenByOne(w) {
		p.Proven = serving
	}
	return p
}

// Score grows as the deployment progresses.
func (p Progress) Score() int { return p.Proven - p.Outdated }

// Complete reports whether every replica of the new revision has proven itself.
func (p Progress) Complete() bool { return p.Proven >= p.Want }

// Verdict is the end of a deployment, or when to look again.
type Verdict struct {
	Succeeded, Failed bool
	Reason            string
	// Again is when the deployment fails if there is no progress until then.
	Again time.Time
}

// Judge says whether a deployment has ended. since is when it last made progress. keepsOld is
// whether outdated replicas may stay after its end, as in a blue-green deployment.
func (p Progress) Judge(now, since time.Time, patience time.Duration, keepsOld bool) Verdict {
	switch deadline := since.Add(patience); {
	case p.Complete() && (p.Outdated == 0 || keepsOld):
		return Verdict{Succeeded: true}
	case p.Crashed != "":
		return Verdict{Failed: true, Reason: fmt.Sprintf("ended %d times", maxCrashes)}
	case !now.Before(deadline):
		return Verdict{Failed: true, Reason: "no progress for " + spec.FormatDuration(patience)}
	default:
		return Verdict{Again: deadline}
	}
}
