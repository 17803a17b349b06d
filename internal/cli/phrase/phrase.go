package phrase

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Desired is how many replicas a workload should have.
func Desired(w *cloudlessv1.Workload) int32 {
	if KindOf(w) == spec.KindDaemon {
		return w.GetStatus().GetDesired()
	}
	if w.GetSpec().Replicas == nil {
		return 1
	}
	return spec.Replicas(w)
}

// Status is the state of a workload in a few words.
func Status(w *cloudlessv1.Workload) string {
	if w == nil {
		return "it does not exist"
	}
	text := Counts(w.GetStatus())
	if kind := KindOf(w); kind == spec.KindJob || kind == spec.KindCron {
		text = w.GetStatus().GetPhase() + ", " + Progress(w)
	}
	if reason := w.GetStatus().GetReason(); reason != "" {
		text += ", " + reason
	}
	return text
}

// Counts says how many replicas run, of how many.
func Counts(status *cloudlessv1.WorkloadStatus) string {
	text := fmt.Sprintf("%d of %d running", status.GetRunning(), status.GetDesired())
	if n := status.GetOutdated(); n > 0 {
		text += fmt.Sprintf(", %d to be replaced", n)
	}
	return text
}

// KindOf is the kind of a workload in a word.
func KindOf(w *cloudlessv1.Workload) string { return spec.KindOf(w.GetSpec()) }

// Progress is how far a workload is, for a cell of a table.
func Progress(w *cloudlessv1.Workload) string {
	status := w.GetStatus()
	switch KindOf(w) {
	case spec.KindJob:
		return fmt.Sprintf("%d/%d done", status.GetJob().GetSucceeded(), status.GetDesired())
	case spec.KindCron:
		return fmt.Sprintf("%d active", status.GetCron().GetActive())
	}
	return fmt.Sprintf("%d/%d", status.GetRunning(), Desired(w))
}

// NotReady is shown as the phase of a replica whose program runs and does not serve.
const NotReady = spec.PhaseRunning + ", not ready"

// ReplicaPhase is the phase of a replica, as people see it.
func ReplicaPhase(r *cloudlessv1.Replica) string {
	if r.GetStatus().GetPhase() == spec.PhaseRunning && !spec.Serves(r) {
		return NotReady
	}
	return r.GetStatus().GetPhase()
}

// FailedProbe is the last attempt of a probe that failed, with its output.
func FailedProbe(f *cloudlessv1.ProbeFailure) string {
	text := f.GetProbe() + ": " + f.GetReason()
	if output := f.GetOutput(); output != "" {
		text += "; output: " + output
	}
	return text
}

// Deployed says how far a deployment is.
func Deployed(d *cloudlessv1.Deployment) string {
	s := d.GetStatus()
	text := fmt.Sprintf("%d of %d updated, %d serving", s.GetUpdated(), s.GetDesired(), s.GetServing())
	if s.GetSwitched() {
		text += ", switched to the new revision"
	}
	if step := canaryStep(d); step != "" {
		text += ", " + step
	}
	return text
}

// canaryStep says in which step a canary deployment is; empty for any other.
func canaryStep(d *cloudlessv1.Deployment) string {
	status, steps := d.GetStatus(), len(spec.StepsOf(spec.CanaryOf(d)))
	switch {
	case !spec.CanaryOpen(d):
		return ""
	case !spec.CanaryStepping(d):
		return "all steps have held"
	}
	return fmt.Sprintf("step %d of %d with %d%% of the traffic", max(1, status.GetStep()), steps, status.GetWeight())
}

// CanaryStep says in which step an open canary deployment is, and how long that has held.
func CanaryStep(d *cloudlessv1.Deployment, now time.Time) string {
	status, bake := d.GetStatus(), spec.BakeOf(spec.CanaryOf(d))
	text := canaryStep(d)
	if !spec.CanaryStepping(d) {
		return text + ", and the other replicas are being replaced"
	}
	since := status.GetStepTime()
	if since == nil {
		steps := spec.StepsOf(spec.CanaryOf(d))
		return fmt.Sprintf("%s, and gets %d%% when all its replicas have proven themselves", text, steps[max(1, status.GetStep())-1])
	}
	if paused := status.GetPauseTime(); paused != nil {
		now = paused.AsTime()
	}
	held := min(max(0, now.Sub(since.AsTime())), bake).Truncate(time.Second)
	return fmt.Sprintf("%s, has held for %s of %s", text, spec.FormatDuration(held), spec.FormatDuration(bake))
}

// ReplicaReason is why a replica is in its phase, or how it ended last.
func ReplicaReason(r *cloudlessv1.Replica) string {
	status := r.GetStatus()
	exit := status.GetLastExit()
	switch {
	case status.GetReason() != "":
		return status.GetReason()
	case status.GetUnready() != "":
		return status.GetUnready()
	case exit == nil:
		return ""
	case spec.ExitReason(exit) != "":
		return spec.ExitReason(exit)
	}
	return "exit code " + strconv.Itoa(int(exit.GetCode()))
}

// Ended reports whether a replica will not run again.
func Ended(r *cloudlessv1.Replica) bool { return spec.Ended(r.GetStatus().GetPhase()) }

// NoPlace continues a sentence with the quota that is used up, or else with why each node refuses.
func NoPlace(quota string, reasons []*cloudlessv1.NodeReason) string {
	switch {
	case quota != "":
		return ": " + terminal.Plain(quota)
	case len(reasons) == 0:
		return ": it waits for room that is being made, or for a first node"
	}
	return nodeReasons(reasons)
}

// shownReasons is how many nodes a sentence names at most.
const shownReasons = 5

// nodeReasons continues a sentence with why each node refuses.
func nodeReasons(reasons []*cloudlessv1.NodeReason) string {
	if len(reasons) == 0 {
		return ": the cluster has no nodes yet"
	}
	var all []string
	for i, r := range reasons {
		if i == shownReasons {
			all = append(all, fmt.Sprintf("and %d more nodes", len(reasons)-i))
			break
		}
		all = append(all, terminal.Plain(r.GetNode()+": "+r.GetReason()))
	}
	return ": " + strings.Join(all, "; ")
}

// longestValue is how many characters of a value are shown.
const longestValue = 200

// Value is the value of a field in one line.
func Value(s string) string {
	if runes := []rune(s); len(runes) > longestValue {
		s = string(runes[:longestValue]) + "…"
	}
	if s != terminal.Plain(s) {
		return strconv.Quote(s)
	}
	return s
}

// Path is the namespace and name of an object.
func Path(m *cloudlessv1.Metadata) string { return m.GetNamespace() + "/" + m.GetName() }

// Happened is the message of an event. If somebody has reached into a replica, it says who.
func Happened(event *cloudlessv1.EventSpec) string {
	switch event.GetReason() {
	case "Exec", "Copy", "Forward":
		return event.GetMessage() + ", by " + event.GetActor()
	}
	return event.GetMessage()
}
