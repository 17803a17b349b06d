package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// health is what the probes say of the task of one attempt.
type health struct {
	attempt int
	end     context.CancelFunc
	news    chan struct{} // has a token while the verdict is new
	doomed  bool          // an event has said that it must be restarted; owned by run

	mu      sync.Mutex
	verdict probe.Verdict
}

func (h *health) set(v probe.Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verdict = v
	select {
	case h.news <- struct{}{}:
	default:
	}
}

func (h *health) last() probe.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.verdict
}

// unready makes a task that was just started wait for its probes. Jobs serve at once.
func (r *record) unready() {
	r.Status.Unready, r.Status.Settling = spec.JustStarted, false
	if spec.RunsToEnd(r.Assignment.GetRevision().GetSpec().GetWorkload()) {
		r.Status.Unready = ""
	}
}

// watchHealth begins to probe the current attempt, unless that is under way.
func (r *replica) watchHealth(ctx context.Context) *health {
	if r.health != nil && r.health.attempt == r.rec.Attempt {
		return r.health
	}
	r.endHealth()
	h := &health{attempt: r.rec.Attempt, news: make(chan struct{}, 1)}
	ctx, h.end = context.WithCancel(ctx)
	w := spec.Normalized(r.rec.Assignment.GetRevision().GetSpec().GetWorkload())
	status := r.rec.Status
	target := probe.Target{Workload: w, Addresses: probedAddresses(w, status.GetAddresses()), Exec: r.probeCommand(taskID(r.uid, r.rec.Attempt))}
	pid := int(status.GetPid())
	options := probe.Options{
		Workload: w, Started: status.GetStartTime().AsTime(), Ready: status.GetUnready() == "", Failed: status.GetFailedProbe(),
		Ask:       target.Ask,
		Listening: func() probe.Result { return r.listening(pid, w) },
		Notify:    h.set,
		Count:     func(name string, result probe.Result) { r.metrics.Probed(name, result.Word()) },
	}
	r.watchers.Go(func() { probe.Watch(ctx, options) })
	r.health = h
	return h
}

// endHealth ends the probes of the current attempt.
func (r *replica) endHealth() {
	if r.health != nil {
		r.health.end()
		r.health = nil
	}
}

// probedAddresses are where the node reaches the ports of a replica.
func probedAddresses(w *v1.WorkloadSpec, given []string) (all []netip.Addr) {
	if w.GetNetwork() == string(driver.NetworkHost) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	for _, text := range given {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// errBusy says that too many commands of probes run on this node. That says nothing about the replica.
var errBusy = errors.New("too many commands of probes run on this node")

// startPatience is how long the driver may take to start the command of a probe.
const startPatience = 30 * time.Second

// probeCommand returns a function that runs commands in the task.
func (r *replica) probeCommand(task string) func(context.Context, []string) (int, string, error) {
	execer, able := r.driver.(driver.Execer)
	return func(ctx context.Context, command []string) (code int, output string, err error) {
		if !able {
			return 0, "", errors.New("the driver of this replica cannot run commands in it")
		}
		select {
		case r.execs <- struct{}{}:
			defer func() { <-r.execs }()
		case <-ctx.Done():
			return 0, "", probe.Unasked(errBusy)
		}
		var out probe.Output
		// A start that is interrupted could leave a process behind, so only Wait ends with ctx.
		starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		process, err := execer.Exec(starting, task, driver.Exec{Command: command, Stdout: &out, Stderr: &out})
		switch {
		case errors.Is(err, driver.ErrInvalid):
			return 0, "", fmt.Errorf("%w: %w", probe.ErrNoCommand, err)
		case err != nil:
			return 0, "", probe.Unasked(err)
		}
		code, err = process.Wait(ctx)
		return code, out.String(), err
	}
}

// accept makes a verdict the replica's status. A full disk does not keep a replica from serving: the verdict is on disk
// only for the next agent.
func (r *replica) accept(v probe.Verdict) error {
	next := r.rec
	next.Status = proto.CloneOf(r.rec.Status)
	next.Status.Unready, next.Status.Settling, next.Status.FailedProbe = v.Unready, v.Settling, v.Failed
	if v.Restart != "" && v.Unready == "" {
		next.Status.Unready, next.Status.Settling = v.Restart, false
	}
	serves, served := spec.ServesNow(next.Status), spec.ServesNow(r.rec.Status)
	switch {
	case !serves:
		r.withdraw()
	case onNetwork(r.rec.Assignment): // also if it served: the rules may be of another boot
		if err := r.network.Serve(r.uid); err != nil {
			return err
		}
	}
	if serves != served {
		if err := r.store.save(&next); err != nil {
			r.log.Warn("cannot record whether the replica serves", "error", err)
			r.saved = false // the next step tries again
		}
	}
	r.announce(next.Status, v.Restart)
	if !proto.Equal(next.Status, r.rec.Status) {
		r.rec = next
		r.publish()
	}
	return nil
}

// announceEvery is the least time between two events of a replica that its readiness was lost.
const announceEvery = time.Minute

// announcements limit the events about a replica's readiness.
type announcements struct {
	last    time.Time // of an event that it was lost
	lost    time.Time // when it was lost
	owed    bool      // whether an event must say that it is back
	skipped int       // losses without an event
}

// announce sends events about a new status: a replica that served and does not any more, one that serves again, and one
// that must be restarted.
func (r *replica) announce(next *v1.ReplicaStatus, restart string) {
	a, serves, served := &r.announced, spec.ServesNow(next), spec.ServesNow(r.rec.Status)
	switch {
	case restart != "" && r.health.doomed:
	case restart != "":
		r.health.doomed = true
		reason := "LivenessFailed"
		if next.GetFailedProbe().GetProbe() == spec.ProbeStartup {
			reason = "StartupFailed"
		}
		r.event("warning", reason, restart+" It is being stopped.")
		a.owed = false
	case served && !serves && time.Since(a.last) < announceEvery:
		a.skipped++
		a.lost = time.Now()
	case served && !serves:
		message := "It gets no traffic: " + next.GetUnready()
		if a.skipped > 0 {
			message += fmt.Sprintf(" That happened %d more times since the last event.", a.skipped)
		}
		r.event("warning", "Unready", message)
		*a = announcements{last: time.Now(), lost: time.Now(), owed: true}
	case !served && serves && a.owed:
		r.event("info", "Ready", fmt.Sprintf("It serves again after %s.", time.Since(a.lost).Round(100*time.Millisecond)))
		a.owed = false
	}
}

func (r *replica) event(severity, reason, message string) {
	r.reports.addEvent(&v1.EventReport{Severity: severity, Reason: reason, Message: sentence(message), ReplicaUid: r.uid, Time: now()})
}
