// Package autoscale is the leader's loop that decides how many replicas a service with autoscaling has, and when a
// service is scaled to zero and woken.
//
// Tick is pure: a time, a snapshot, measurements and what earlier ticks remember in, changes out. What its author wrote
// stays as it is: the decided number is in the workload's status, and spec.Replicas combines both. Unknown is never
// zero: what cannot be measured keeps replicas running. A new leader remembers nothing, so it scales in only when it has
// measured for a whole window.
//
// It knows nothing of nodes, placement or how requests are counted: package replicas creates and stops the replicas, and
// the measurements come through small interfaces.
package autoscale

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// tolerance is by how much the measurements may differ from the target before the number changes.
	tolerance = 0.1
	// stepFactor and stepLeast bound how fast a service grows: to that multiple, or by so many replicas if that is more.
	stepFactor, stepLeast = 2, 4
	// patience is how long nothing can be measured before the status and an event say so. A new leader hears from the
	// nodes within seconds.
	patience = time.Minute
	// maxChanges keeps one transaction small; the next tick does the rest.
	maxChanges = 256
)

// Reasons of events.
const (
	eventOut     = "ScaledOut"
	eventIn      = "ScaledIn"
	eventZero    = "ScaledToZero"
	eventWoken   = "Woken"
	eventMissing = "MetricsMissing"
)

// Measured is what is known of one service.
type Measured struct {
	// Replicas has the usage of the replicas that were measured, by uid.
	Replicas map[string]Usage
	// Requests is how many requests a second its routes get, if that is known.
	Requests      float64
	RequestsKnown bool
	// Quiet is whether there has certainly been no request for as long as the service must be idle.
	Quiet bool
}

// Usage is what one replica uses.
type Usage struct {
	// CPU is in CPUs, Memory in bytes.
	CPU, Memory           float64
	CPUKnown, MemoryKnown bool
	Metric                float64
	MetricKnown           bool
	MetricProblem         string
}

// Input is what a tick decides on, besides the state.
type Input struct {
	Now time.Time
	// Measured returns what is known of an autoscaled workload.
	Measured func(w *v1.Workload, scaling spec.Scaling) Measured
	// Woken has the uids of services that a request waits for.
	Woken map[string]bool
}

// Autoscaled yields the workloads that Tick decides about.
func Autoscaled(snap *state.Snapshot) func(yield func(*v1.Workload) bool) {
	return func(yield func(*v1.Workload) bool) {
		for w := range snap.Workloads("", "") {
			if w.GetSpec().GetAutoscale() != nil && w.GetMetadata().GetDeleteTime() == nil && !yield(w) {
				return
			}
		}
	}
}

// Tick returns the changes that are due now.
func Tick(in Input, snap *state.Snapshot, memory *Memory, newUID func() string) *state.Batch {
	t := &tick{Input: in, snap: snap, newUID: newUID, batch: &state.Batch{}}
	t.woken = t.wokenWorkloads()
	memory.begin()
	for w := range Autoscaled(snap) {
		if t.batch.Len() >= maxChanges {
			memory.keep(w)
			continue
		}
		t.batch.BeginPart()
		m := memory.of(w, in.Now)
		t.workload(w, m)
		m.fresh = false
		t.batch.EndPart()
	}
	memory.end()
	return t.batch
}

type tick struct {
	Input
	snap   *state.Snapshot
	newUID func() string
	batch  *state.Batch
	woken  map[string]bool // workloads, by uid
}

// wokenWorkloads are the workloads behind the services that a request waits for.
func (t *tick) wokenWorkloads() map[string]bool {
	woken := map[string]bool{}
	for uid := range t.Woken {
		s := t.snap.Service(uid)
		if s == nil {
			continue
		}
		for w := range services.Workloads(t.snap, s) {
			woken[w.GetMetadata().GetUid()] = true
		}
	}
	return woken
}

func (t *tick) workload(w *v1.Workload, m *record) {
	scaling := spec.ScalingOf(w.GetSpec())
	now := int(spec.Replicas(w))
	measured := t.Measured(w, scaling)
	m.values = nil
	switch decided := w.GetStatus().GetScale(); {
	case now == 0:
		t.asleep(w, scaling, measured)
		return
	case decided != nil && int(decided.GetReplicas()) != now:
		m.hold(t.Now, now)
		t.change(w, now, fmt.Sprintf("it is scaled %s now", scaling), nil)
		return
	case t.idle(w, scaling, measured):
		t.change(w, 0, fmt.Sprintf("no request came for %s; the next one wakes it", spec.FormatDuration(scaling.Idle)), nil)
		return
	}
	a := t.judge(w, scaling, measured, m, now)
	m.values = a.values
	wanted := a.replicas
	if wanted < now && spec.DeploymentOpen(t.snap.Deployment(w.GetStatus().GetDeploymentUid())) {
		wanted = now
	}
	switch to := m.stabilise(t.Now, now, wanted, scaling); {
	case to > now:
		step := min(to, max(now*stepFactor, now+stepLeast))
		t.change(w, step, a.outText(scaling, step, to), a.values)
	case to < now:
		t.change(w, to, a.inText(scaling, to), a.values)
	default:
		t.noteMissing(w, a, m, now)
	}
}

// asleep wakes a service without replicas if a request came.
func (t *tick) asleep(w *v1.Workload, scaling spec.Scaling, measured Measured) {
	why := "a request waits for it"
	switch {
	case t.woken[w.GetMetadata().GetUid()]:
	case measured.RequestsKnown && measured.Requests > 0:
		why = "requests came"
	default:
		return
	}
	t.change(w, max(1, scaling.Least), why, nil)
}

// idle reports whether a service may be scaled to zero: there was certainly no request for long enough, nor was it
// created, scaled or woken meanwhile.
func (t *tick) idle(w *v1.Workload, scaling spec.Scaling, measured Measured) bool {
	if scaling.Least > 0 || !measured.Quiet || t.woken[w.GetMetadata().GetUid()] ||
		spec.DeploymentOpen(t.snap.Deployment(w.GetStatus().GetDeploymentUid())) {
		return false
	}
	scale := w.GetStatus().GetScale()
	for _, since := range []*timestamppb.Timestamp{w.GetMetadata().GetCreateTime(), scale.GetTime(), scale.GetWokenTime()} {
		// A time in the far future is from a server whose clock was ahead.
		if ago := t.Now.Sub(since.AsTime()); ago < scaling.Idle && ago > -scaling.Idle {
			return false
		}
	}
	return true
}

// noteMissing records that nothing can be measured, or that it can be measured again.
func (t *tick) noteMissing(old *v1.Workload, a answer, m *record, now int) {
	if !a.allMissing {
		m.missingSince = time.Time{}
	} else if m.missingSince.IsZero() {
		m.missingSince = t.Now
	}
	noted := old.GetStatus().GetScale().GetMissing()
	missing := ""
	if a.allMissing {
		missing = strings.Join(a.missing, ", ")
	}
	switch {
	case a.allMissing == (noted != "") || a.nothingServes:
		return
	case a.allMissing && t.Now.Sub(m.missingSince) < patience:
		return
	}
	w := proto.CloneOf(old)
	if w.Status.Scale == nil {
		w.Status.Scale = &v1.ScaleStatus{}
	}
	w.Status.Scale.Replicas, w.Status.Scale.Missing = int32(now), missing
	w.Status.Scale.Reason = "it is measured again"
	if missing != "" {
		w.Status.Scale.Reason = fmt.Sprintf("it stays at %s, because nothing is known of %s%s", spec.Count(now, "replica"), missing, a.problem())
		t.event(w, eventMissing, w.Status.Scale.Reason, state.SeverityWarning)
	}
	w.Status.Scale.Values = a.values
	t.batch.Update(w, old.GetMetadata().GetVersion())
}

// change decides on another number. The reason becomes a sentence with both numbers.
func (t *tick) change(old *v1.Workload, to int, why string, values []*v1.ScaleValue) {
	w := proto.CloneOf(old)
	from := int(spec.Replicas(old))
	if scale := old.GetStatus().GetScale(); scale != nil {
		from = int(scale.GetReplicas())
	}
	woken := old.GetStatus().GetScale().GetWokenTime()
	reason, severity := eventOut, state.SeverityInfo
	switch {
	case from == 0:
		reason, woken = eventWoken, timestamppb.New(t.Now)
	case to == 0:
		reason = eventZero
	case to < from:
		reason = eventIn
	}
	w.Status.Scale = &v1.ScaleStatus{
		Replicas: int32(to), Time: timestamppb.New(t.Now), Values: values, WokenTime: woken,
		Reason: fmt.Sprintf("from %d to %s: %s", from, spec.Count(to, "replica"), why),
	}
	t.batch.Update(w, old.GetMetadata().GetVersion())
	t.event(w, reason, w.Status.Scale.Reason, severity)
}

func (t *tick) event(about state.Object, reason, message, severity string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.Now, about, severity, reason, message, ""))
}

// serves reports whether the usage of a replica says something about the load: it serves, and is not about to stop.
func (t *tick) serves(r *v1.Replica) bool {
	return placement.Wanted(r) && spec.Serves(r) && !placement.Away(t.snap, r)
}
