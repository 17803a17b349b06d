package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// house is what all replicas of an agent share.
type house struct {
	boot    string
	network Network
	store   *store
	logs    *logs
	gpus    *gpus
	reports *reports
	drivers map[string]driver.Driver
	limits  driver.LogLimits
	starts  chan struct{}       // holds a token for each start under way
	forget  func(*replica) bool // takes a removed replica out of the agent; false if it is wanted again
	log     *slog.Logger
	metrics *telemetry.Agent
	tracing *telemetry.Tracing
}

// replica is one replica of this node: a goroutine (run) that owns the record
// and takes steps, and what others may ask it for under mu.
type replica struct {
	*house
	uid    string
	driver driver.Driver // nil if the node has none of that name
	log    *slog.Logger

	rec   record      // owned by run
	saved bool        // rec is on disk; owned by run
	stale []foundTask // to be removed before anything else; owned by run

	complaint string // why the replica is held up, as it was reported; owned by run

	mu        sync.Mutex
	wish      wish
	interrupt context.CancelFunc // ends what the present step waits for
	status    *v1.ReplicaStatus  // never modified once it is here
	task      string             // id of the task that runs, if one does
	ended     chan struct{}      // closed while the replica has ended for good
}

// wish is what the cluster wants of a replica.
type wish struct {
	assignment *v1.Assignment
	removed    bool
	// login is for the image's registry. It is in memory only: records are made
	// of the assignment, which does not have it.
	login *v1.RegistryLogin
}

func (w wish) stop() bool {
	return w.removed || w.assignment.GetReplica().GetSpec().GetDesired() == desiredStopped
}

// same is whether nothing has changed that a replica acts on or must remember.
func (w wish) same(other wish) bool {
	return w.removed == other.removed &&
		proto.Equal(w.assignment.GetReplica().GetSpec(), other.assignment.GetReplica().GetSpec()) &&
		w.assignment.GetRevision().GetMetadata().GetUid() == other.assignment.GetRevision().GetMetadata().GetUid()
}

// newReplica takes up a replica where its record stands.
func newReplica(h *house, rec record, saved bool, tasks []foundTask) *replica {
	r := &replica{
		house:  h,
		uid:    rec.uid(),
		log:    h.log.With("replica", rec.uid()),
		driver: h.drivers[driverName(rec.Assignment)],
		wish:   wish{assignment: rec.Assignment, removed: rec.Removed},
		ended:  make(chan struct{}),
	}
	if len(tasks) > 0 {
		r.driver = tasks[0].driver
	}
	r.rec, r.stale = resume(rec, h.boot, tasks, time.Now())
	// What a reboot has changed is written before anything is started by it.
	r.saved = saved && rec.Boot == h.boot
	r.show()
	if r.status.GetPhase() != phasePlaced { // which the server knows
		r.reports.add(r.report())
	}
	return r
}

// freshRecord is that of a replica which this agent has never seen. What a
// server knows of its past is kept: what has ended must not run again because
// the node has lost its memory.
func freshRecord(a *v1.Assignment, boot string) record {
	known := a.GetReplica().GetStatus()
	status := &v1.ReplicaStatus{Phase: phasePlaced, Restarts: known.GetRestarts(), LastExit: known.GetLastExit()}
	if ended(known.GetPhase()) {
		status = proto.CloneOf(known)
	}
	return record{Assignment: forgetStatus(a), Status: status, recordState: recordState{Boot: boot, Attempt: 1}}
}

// forgetStatus leaves out what only echoes our own reports, and the login, which
// must not be written to the disk.
func forgetStatus(a *v1.Assignment) *v1.Assignment {
	return &v1.Assignment{
		Replica:  &v1.Replica{Metadata: a.GetReplica().GetMetadata(), Spec: a.GetReplica().GetSpec()},
		Revision: a.GetRevision(),
	}
}

// want tells the replica what the cluster wants now. If that is something else
// than before, what it waits for is interrupted at once.
func (r *replica) want(w wish) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wish.same(w) {
		r.wish.login = w.login // for the next pull
		return
	}
	r.wish = w
	if r.interrupt != nil {
		r.interrupt()
	}
}

func (r *replica) wanted() wish {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wish
}

// arm returns a context that ends with ctx or as soon as the wish changes.
func (r *replica) arm(ctx context.Context) (context.Context, context.CancelFunc) {
	armed, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupt = cancel
	return armed, cancel
}

// report is what a server is told.
func (r *replica) report() *v1.ReplicaReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &v1.ReplicaReport{Uid: r.uid, Status: r.status}
}

// running is the id of the task that runs, or the status if none does.
func (r *replica) running() (task string, status *v1.ReplicaStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task, r.status
}

// name is the one that people know it by.
func (r *replica) name() string {
	return r.wanted().assignment.GetReplica().GetMetadata().GetName()
}

// end is closed once the replica has ended for good and its output is on disk.
func (r *replica) end() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// publish shows the record's status and reports it.
func (r *replica) publish() {
	r.show()
	r.reports.add(r.report())
}

// show makes the record's status the one that others see.
func (r *replica) show() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = proto.CloneOf(r.rec.Status)
	r.task = ""
	if r.status.GetPhase() == phaseRunning {
		r.task = taskID(r.uid, r.rec.Attempt)
	}
	wasEnded := isClosed(r.ended)
	switch isEnded := ended(r.status.GetPhase()); {
	case isEnded && !wasEnded:
		close(r.ended)
	case !isEnded && wasEnded:
		r.ended = make(chan struct{})
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// advance moves the replica to what change makes of its record: first on disk,
// then for everyone to see. If it cannot be recorded, nothing has changed.
func (r *replica) advance(change func(*record)) error {
	next := r.rec
	next.Status = proto.CloneOf(r.rec.Status)
	change(&next)
	next.Status.Reason = sentence(next.Status.GetReason())
	if ended(next.Status.GetPhase()) {
		next.Status.Addresses = nil
	}
	next.Boot = r.boot
	if err := r.store.save(&next); err != nil {
		return err
	}
	r.rec, r.saved = next, true
	r.publish()
	return nil
}

// remember puts a changed wish on disk, so that it holds without a server too.
func (r *replica) remember(w wish) error {
	known := wish{assignment: r.rec.Assignment, removed: r.rec.Removed}
	if r.saved && known.same(w) {
		return nil
	}
	next := r.rec
	next.Assignment, next.Removed = w.assignment, w.removed
	if err := r.store.save(&next); err != nil {
		return err
	}
	r.rec, r.saved = next, true
	return nil
}

// run takes steps until the replica is gone or ctx ends. It leaves the task as
// it is when ctx ends.
func (r *replica) run(ctx context.Context) {
	r.reconnect(ctx)
	var pause backoff
	for ctx.Err() == nil {
		armed, cancel := r.arm(ctx)
		gone, err := r.step(ctx, armed)
		if gone {
			cancel()
			return
		}
		if err != nil && armed.Err() == nil {
			r.log.Warn("replica is held up; trying again", "phase", r.rec.Status.GetPhase(), "error", err)
			r.complain(err)
			sleep(armed, pause.next())
		} else {
			pause.reset()
			r.goOn()
		}
		cancel()
	}
}

// complain lets people see why nothing happens, such as a full disk. It is not
// part of the record: it may be just that which cannot be written.
func (r *replica) complain(err error) {
	reason := sentence("It is held up: " + err.Error())
	if r.complaint == reason {
		return
	}
	r.complaint = reason
	r.mu.Lock()
	r.status = proto.CloneOf(r.rec.Status)
	r.status.Reason = reason
	r.mu.Unlock()
	r.reports.add(r.report())
}

// goOn takes a complaint back.
func (r *replica) goOn() {
	if r.complaint == "" {
		return
	}
	r.complaint = ""
	r.publish()
}

func now() *timestamppb.Timestamp { return timestamppb.New(time.Now()) }
