package agent

import (
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// foundTask is one of our tasks that existed when the agent started.
type foundTask struct {
	driver  driver.Driver
	replica string
	attempt int
	status  driver.Status
}

// identify reads the labels of a task. It returns false for foreign tasks.
func identify(d driver.Driver, status driver.Status) (foundTask, bool) {
	attempt, err := strconv.Atoi(status.Labels[labelAttempt])
	task := foundTask{driver: d, replica: status.Labels[labelReplica], attempt: attempt, status: status}
	ours := err == nil && attempt > 0 && status.ID == taskID(task.replica, attempt) && uidPattern.MatchString(task.replica)
	return task, ours
}

// resume computes the record of a replica after the agent was down, and which of its tasks
// must be removed first. It is pure.
//
// A record is written before its attempt is started, so these are all the cases:
//
//	recorded           task        same boot                   another boot
//	preparing          absent      start it                    start it
//	preparing          created     remove it, start it again   remove it, start it again
//	preparing          runs        reattach                    reattach
//	preparing          ran         reattach                    remove it, start it again
//	running            absent      it disappeared              start the next attempt
//	running            runs        reattach                    reattach
//	running            ran         reattach                    remove it, start the next attempt
//	backoff, ended     any         go on                       go on
//
// A running task was started in this boot, whatever its record says.
//
// "Reattach" includes a task that has exited: waiting for it yields its exit. If a reboot
// has ended a replica that may never be restarted, it has failed. A task of a later attempt
// than the recorded one means that the record was lost: then the task counts.
func resume(rec record, boot string, tasks []foundTask, now time.Time) (record, []foundTask) {
	rec.Status = proto.CloneOf(rec.Status)
	rec.catchUp(tasks)
	runs := func(t foundTask) bool { return t.status.State == driver.StateRunning }
	rebooted := rec.Boot != boot && !slices.ContainsFunc(tasks, runs)
	rec.Boot = boot
	switch rec.Status.GetPhase() {
	case spec.PhasePlaced, spec.PhasePreparing, spec.PhaseRunning:
	default: // includes "stopping": stopping what is gone is no error
		if rebooted && rec.Status.GetPhase() == spec.PhaseStopping {
			rec.Started = false // its exit cannot be known
		}
		return rec, others(tasks, rec.Attempt)
	}
	if rebooted {
		rec.afterReboot(now)
		return rec, tasks
	}
	present := slices.IndexFunc(tasks, func(t foundTask) bool { return t.attempt == rec.Attempt })
	switch {
	case present < 0: // if it was started, waiting for it will report that it is gone
		return rec, others(tasks, rec.Attempt)
	case tasks[present].status.State == driver.StateCreated:
		rec.Started = false
		rec.Status.Phase = spec.PhasePreparing
		return rec, tasks
	}
	rec.reattach(tasks[present].status)
	return rec, others(tasks, rec.Attempt)
}

// catchUp advances an outdated record to the newest task.
func (r *record) catchUp(tasks []foundTask) {
	for _, task := range tasks {
		if task.attempt > r.Attempt {
			r.Attempt, r.Started = task.attempt, true
			r.Status.Phase = spec.PhaseRunning
			r.unready()
		}
	}
}

// afterReboot ends the attempt that the reboot has ended, without counting a failure.
func (r *record) afterReboot(now time.Time) {
	if !r.Started {
		r.Status.Pid = 0
		return
	}
	const reason = "The machine was restarted while the replica ran."
	r.Status.LastExit = &v1.Exit{Code: lostCode, Reason: reason, Time: timestamppb.New(now)}
	r.interrupted(reason, now)
}

// interrupted ends a running attempt for an external reason. The next attempt follows,
// unless the replica may never be restarted.
func (r *record) interrupted(reason string, now time.Time) {
	r.Started = false
	r.Attempt++
	r.Status.Phase, r.Status.Pid, r.Status.StartTime = spec.PhasePreparing, 0, nil
	r.Status.Unready, r.Status.Settling = "", false
	if r.policy().when == "never" {
		r.Status.Phase, r.Status.Reason = spec.PhaseFailed, reason
		r.Status.EndTime = timestamppb.New(now)
	}
}

// reattach makes the task the running one. If that was not recorded before, probes decide whether it serves.
func (r *record) reattach(task driver.Status) {
	if r.Status.GetPhase() != spec.PhaseRunning {
		r.unready()
	}
	r.Started = true
	r.Status.Phase, r.Status.Reason = spec.PhaseRunning, ""
	r.Status.Pid = int32(task.PID)
	if !task.StartedAt.IsZero() {
		r.Status.StartTime = timestamppb.New(task.StartedAt)
	}
}

// others are the tasks of other attempts.
func others(tasks []foundTask, attempt int) []foundTask {
	return slices.DeleteFunc(slices.Clone(tasks), func(t foundTask) bool { return t.attempt == attempt })
}
