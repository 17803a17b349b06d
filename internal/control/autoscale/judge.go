package autoscale

import (
	"fmt"
	"math"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// answer is what the targets of a service ask for.
type answer struct {
	// replicas is the number that they ask for, within the bounds.
	replicas int
	values   []*v1.ScaleValue
	// deciding is the target that asks for the most, nil if none is known.
	deciding *v1.ScaleValue
	// missing are the targets that nothing is known of.
	missing []string
	// allMissing is whether nothing is known of any target, although replicas serve.
	allMissing bool
	// nothingServes is whether no replica serves yet, so that nothing can be known.
	nothingServes bool
}

// target is what the measurements of one target say.
type target struct {
	name, goal string
	value      string // of an average replica, empty if it is unknown
	problem    string
	// Needed are the replicas that would be exactly at the target: at least, if what is not measured needs none, and at
	// most, if what is not measured is at the target.
	least, most float64
	known       bool
}

// judge asks every target. The one that asks for the most replicas counts; one that nothing is known of keeps those that
// there are.
func (t *tick) judge(w *v1.Workload, s spec.Scaling, measured Measured, m *record, now int) (a answer) {
	serving, warm := map[string]bool{}, []Usage{}
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if uid := r.GetMetadata().GetUid(); t.serves(r) {
			serving[uid] = true
			if u, known := measured.Replicas[uid]; m.warm(t.Now, uid) && known {
				warm = append(warm, u)
			}
		}
	}
	m.forgetReplicas(serving)
	defer func() {
		if s.Least == 0 && !measured.RequestsKnown {
			a.values = append(a.values, &v1.ScaleValue{Target: "idle", Goal: spec.FormatDuration(s.Idle), Problem: "no route counts its requests, so it is not scaled to zero"})
		}
	}()
	a.nothingServes = len(serving) == 0
	targets := targetsOf(s, measured, warm, now)
	known := 0
	for _, one := range targets {
		value := &v1.ScaleValue{Target: one.name, Value: one.value, Goal: one.goal, Problem: one.problem}
		a.values = append(a.values, value)
		if !one.known {
			a.missing = append(a.missing, one.name)
			continue
		}
		known++
		if n := one.replicas(now); a.deciding == nil || n > a.replicas {
			a.replicas, a.deciding = n, value
		}
	}
	if len(a.missing) > 0 || known == 0 {
		a.replicas = max(a.replicas, now)
	}
	a.allMissing = len(targets) > 0 && known == 0 && !a.nothingServes
	a.replicas = min(max(a.replicas, s.Least, 1), s.Most)
	return a
}

// replicas is how many replicas a target asks for, of a service that has some number.
func (t target) replicas(now int) int {
	switch n := float64(now); {
	case t.least > n*(1+tolerance):
		return whole(t.least)
	case t.most < n*(1-tolerance):
		return whole(t.most)
	}
	return now
}

// whole rounds up, but not because of an error of the arithmetic.
func whole(n float64) int {
	const error, most = 1e-9, 1 << 30
	return int(math.Ceil(min(n, most) - error))
}

func targetsOf(s spec.Scaling, measured Measured, warm []Usage, now int) (all []target) {
	if s.CPU > 0 {
		all = append(all, ofReplicas(spec.TargetCPU, s.CPU, now, warm, spec.Share, func(u Usage) (float64, bool) {
			return u.CPU / s.CPURequest, u.CPUKnown && s.CPURequest > 0
		}))
	}
	if s.Memory > 0 {
		all = append(all, ofReplicas(spec.TargetMemory, s.Memory, now, warm, spec.Share, func(u Usage) (float64, bool) {
			return u.Memory / s.MemoryRequest, u.MemoryKnown && s.MemoryRequest > 0
		}))
	}
	if s.Requests > 0 {
		one := target{name: spec.TargetRequests, goal: spec.Number(s.Requests) + "/s", known: measured.RequestsKnown}
		if one.known {
			one.least = measured.Requests / s.Requests
			one.most = one.least
			one.value = spec.Number(measured.Requests/float64(now)) + "/s"
		}
		all = append(all, one)
	}
	if s.Metric != nil {
		one := ofReplicas(s.Metric.GetName(), s.Metric.GetValue(), now, warm, spec.Number, func(u Usage) (float64, bool) { return u.Metric, u.MetricKnown })
		if i := slices.IndexFunc(warm, func(u Usage) bool { return u.MetricProblem != "" }); i >= 0 {
			one.problem = warm[i].MetricProblem
		}
		all = append(all, one)
	}
	return all
}

// ofReplicas is a target that each replica is measured by.
func ofReplicas(name string, goal float64, now int, warm []Usage, words func(float64) string, measure func(Usage) (float64, bool)) target {
	one := target{name: name, goal: words(goal)}
	sum, known := 0.0, 0
	for _, u := range warm {
		if value, ok := measure(u); ok && !math.IsNaN(value) && !math.IsInf(value, 0) {
			sum += max(value, 0)
			known++
		}
	}
	if known == 0 {
		return one
	}
	one.known, one.value = true, words(sum/float64(known))
	one.least = sum / goal
	one.most = one.least + float64(max(0, now-known))
	if known < now {
		one.problem = fmt.Sprintf("%d of %s measured", known, spec.Count(now, "replica"))
	}
	return one
}

// problem says why nothing is known of a target, if that is known.
func (a answer) problem() string {
	for _, v := range a.values {
		if v.GetProblem() != "" && v.GetValue() == "" {
			return ": " + v.GetProblem()
		}
	}
	return ""
}

// outText explains a step out. The targets ask for more than one step may add, or more than max.
func (a answer) outText(s spec.Scaling, step, wanted int) string {
	switch {
	case step < wanted:
		return a.measuredText() + fmt.Sprintf("; that takes %d, and a step at most doubles or adds %d", wanted, stepLeast)
	case step == s.Most:
		return a.measuredText() + fmt.Sprintf("; %d is the most that it may have", s.Most)
	}
	return a.measuredText()
}

func (a answer) inText(s spec.Scaling, to int) string {
	text := a.measuredText()
	if s.DownWindow > 0 {
		text += fmt.Sprintf(", and no more were needed within %s", spec.FormatDuration(s.DownWindow))
	}
	if to == s.Least {
		text += fmt.Sprintf("; %d is the fewest that it may have", to)
	}
	return text
}

// measuredText is the measurement that decides.
func (a answer) measuredText() string {
	if a.deciding == nil {
		return "its bounds ask for it"
	}
	return fmt.Sprintf("%s is %s and should be %s", a.deciding.GetTarget(), a.deciding.GetValue(), a.deciding.GetGoal())
}
