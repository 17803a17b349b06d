package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/agent/lease"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// replicaEnv is what all replicas of an agent share.
type replicaEnv struct {
	boot    string
	network Network
	store   *store
	logs    *logs
	gpus    *gpus
	reports *reports
	drivers map[string]driver.Driver
	limits  driver.LogLimits
	starts  chan struct{}       // one token for each start in progress
	forget  func(*replica) bool // drops a removed replica from the agent; false if it is wanted again
	// attached is called when a replica has got its addresses, before its program starts.
	attached func(context.Context)
	// servingChanged is called when a replica begins or ceases to serve, or has served for long enough.
	servingChanged func(addresses []string)
	// pids has a token when the process of a replica has changed.
	pids   chan struct{}
	leases *lease.Keeper
	// secrets may be nil: then no replica can have any.
	secrets *secrets.Keeper
	// identity gives replicas identities of their own; it may be nil.
	identity *identity.Service
	// wantsLease makes the agent ask for leases now.
	wantsLease func()
	// listening looks whether a process listens on the ports of a workload.
	listening func(pid int, w *v1.WorkloadSpec) probe.Result
	// memory is how much the machine has, in bytes.
	memory int64
	// disk is what the cluster says of the node's disk; nil until it has said anything.
	disk atomic.Pointer[v1.DiskLimits]
	// execs has one token for each command of a probe that runs.
	execs   chan struct{}
	log     *slog.Logger
	metrics *telemetry.Agent
	tracing *telemetry.Tracing
}

// replica is one replica of this node: a goroutine (run) that owns the record and takes
// steps, and state that others may access under mu.
type replica struct {
	*replicaEnv
	uid    string
	driver driver.Driver // nil if the node has none of that name
	log    *slog.Logger

	rec   record      // owned by run
	saved bool        // rec is on disk; owned by run
	stale []foundTask // to be removed before anything else; owned by run

	problem string // why the replica is stuck, as reported; owned by run

	health    *health        // of the current attempt, nil if it is not watched; owned by run
	watchers  sync.WaitGroup // goroutines that watch attempts
	announced announcements  // owned by run

	mu        sync.Mutex
	desired   desired
	eviction  string             // why it must leave this machine, until run knows
	interrupt context.CancelFunc // ends what the current step waits for
	status    *v1.ReplicaStatus  // never modified once set
	task      string             // id of the running task, if any
	ended     chan struct{}      // closed while the replica has ended for good
}

// desired is what the cluster wants of a replica.
type desired struct {
	assignment *v1.Assignment
	removed    bool
	// login is for the image's registry. It is kept only in memory: records are made of the
	// assignment, which does not have it.
	login *v1.RegistryLogin
}

func (w desired) stop() bool {
	return w.removed || w.assignment.GetReplica().GetSpec().GetDesired() == spec.DesiredStopped
}

// same reports whether everything is equal that a replica acts on or must record.
func (w desired) same(other desired) bool {
	return w.removed == other.removed &&
		proto.Equal(w.assignment.GetReplica().GetSpec(), other.assignment.GetReplica().GetSpec()) &&
		w.assignment.GetRevision().GetMetadata().GetUid() == other.assignment.GetRevision().GetMetadata().GetUid() &&
		proto.Equal(w.assignment.GetEgress(), other.assignment.GetEgress()) &&
		w.assignment.GetBandwidth() == other.assignment.GetBandwidth()
}

// newReplica restores a replica from its record.
func newReplica(h *replicaEnv, rec record, saved bool, tasks []foundTask) *replica {
	r := &replica{
		replicaEnv: h,
		uid:        rec.uid(),
		log:        h.log.With("replica", rec.uid()),
		driver:     h.drivers[driverName(rec.Assignment)],
		desired:    desired{assignment: rec.Assignment, removed: rec.Removed},
		ended:      make(chan struct{}),
	}
	if len(tasks) > 0 {
		r.driver = tasks[0].driver
	}
	r.rec, r.stale = resume(rec, h.boot, tasks, time.Now())
	// Changes after a reboot are written before anything is started.
	r.saved = saved && rec.Boot == h.boot
	r.show()
	if r.status.GetPhase() != spec.PhasePlaced { // the server knows that phase
		r.reports.add(r.report())
	}
	return r
}

// newRecord is the record of a replica that is new to this agent. It keeps the server's
// status: a replica that has ended must not run again because the node has lost its
// records.
func newRecord(a *v1.Assignment, boot string) record {
	known := a.GetReplica().GetStatus()
	status := &v1.ReplicaStatus{Phase: spec.PhasePlaced, Restarts: known.GetRestarts(), LastExit: known.GetLastExit()}
	if ended(known.GetPhase()) {
		status = proto.CloneOf(known)
	}
	return record{Assignment: forgetStatus(a), Status: status, recordState: recordState{Boot: boot, Attempt: 1}}
}

// forgetStatus removes the status, which only echoes our own reports, and the login, which
// must not be written to disk.
func forgetStatus(a *v1.Assignment) *v1.Assignment {
	return &v1.Assignment{
		Replica:  &v1.Replica{Metadata: a.GetReplica().GetMetadata(), Spec: a.GetReplica().GetSpec()},
		Revision: a.GetRevision(), Metric: a.GetMetric(), Egress: a.GetEgress(), Bandwidth: a.GetBandwidth(),
	}
}

// want sets what the cluster wants now. If that has changed, it interrupts the current
// wait.
func (r *replica) want(w desired) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.desired.same(w) {
		r.desired.login = w.login // for the next pull
		if have := r.desired.assignment; !proto.Equal(have.GetMetric(), w.assignment.GetMetric()) {
			r.desired.assignment = &v1.Assignment{Replica: have.GetReplica(), Revision: have.GetRevision(), Metric: w.assignment.GetMetric(), Egress: have.GetEgress(), Bandwidth: have.GetBandwidth()}
		}
		return
	}
	r.desired = w
	if r.interrupt != nil {
		r.interrupt()
	}
}

// evict makes the replica leave this machine for that reason.
func (r *replica) evict(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.eviction = reason
	if r.interrupt != nil {
		r.interrupt()
	}
}

// takeEviction returns why the replica must leave this machine, once.
func (r *replica) takeEviction() (reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reason, r.eviction = r.eviction, ""
	return reason
}

func (r *replica) wanted() desired {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desired
}

// arm returns a context that ends with ctx or as soon as the desired state changes.
func (r *replica) arm(ctx context.Context) (context.Context, context.CancelFunc) {
	armed, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupt = cancel
	return armed, cancel
}

// report is the replica's report to a server.
func (r *replica) report() *v1.ReplicaReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &v1.ReplicaReport{Uid: r.uid, Status: r.status}
}

// running is the id of the running task, or the status if none runs.
func (r *replica) running() (task string, status *v1.ReplicaStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.task, r.status
}

// name is the replica's readable name.
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
	if r.show() {
		r.servingChanged(r.rec.Status.GetAddresses())
	}
	r.reports.add(r.report())
}

// show makes the record's status visible to others. It returns whether the replica has begun or ceased to serve, or has
// served for long enough.
func (r *replica) show() (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = spec.ServesNow(r.status) != spec.ServesNow(r.rec.Status) || r.status.GetSettling() != r.rec.Status.GetSettling()
	if r.status.GetPid() != r.rec.Status.GetPid() {
		select {
		case r.pids <- struct{}{}:
		default:
		}
	}
	r.status = proto.CloneOf(r.rec.Status)
	r.task = ""
	if r.status.GetPhase() == spec.PhaseRunning {
		r.task = taskID(r.uid, r.rec.Attempt)
	}
	wasEnded := isClosed(r.ended)
	switch isEnded := ended(r.status.GetPhase()); {
	case isEnded && !wasEnded:
		close(r.ended)
	case !isEnded && wasEnded:
		r.ended = make(chan struct{})
	}
	return changed
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// advance applies change to the record: first on disk, then visibly. If it cannot be
// written, nothing has changed.
func (r *replica) advance(change func(*record)) error {
	next := r.rec
	next.Status = proto.CloneOf(r.rec.Status)
	change(&next)
	next.Status.Reason = sentence(next.Status.GetReason())
	if ended(next.Status.GetPhase()) {
		next.Status.Addresses = nil
	}
	if phase := next.Status.GetPhase(); phase != spec.PhaseRunning {
		next.Status.Settling = false
		if phase != spec.PhaseStopping { // one that did not serve does not begin to when it is stopped
			next.Status.Unready = ""
		}
	}
	next.Boot = r.boot
	if err := r.store.save(&next); err != nil {
		return err
	}
	r.rec, r.saved = next, true
	r.publish()
	return nil
}

// remember writes a changed desired state to disk, so that it holds without a server, too.
func (r *replica) remember(w desired) error {
	known := desired{assignment: r.rec.Assignment, removed: r.rec.Removed}
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

// run takes steps until the replica is gone or ctx ends. It leaves the task as it is when
// ctx ends.
func (r *replica) run(ctx context.Context) {
	defer r.watchers.Wait()
	defer r.endHealth()
	r.reconnect(ctx)
	r.identifyAgain()
	var pause backoff
	for ctx.Err() == nil {
		armed, cancel := r.arm(ctx)
		gone, err := r.step(ctx, armed)
		if gone {
			cancel()
			return
		}
		if err != nil && armed.Err() == nil {
			r.log.Warn("replica is stuck; trying again", "phase", r.rec.Status.GetPhase(), "error", err)
			r.reportProblem(err)
			_ = sleep.For(armed, pause.next())
		} else {
			pause.reset()
			r.clearProblem()
		}
		cancel()
	}
}

// reportProblem shows why the replica is stuck, for example on a full disk. It is not part of
// the record, because writing may be just what fails.
func (r *replica) reportProblem(err error) {
	reason := sentence("It is held up: " + err.Error())
	if r.problem == reason {
		return
	}
	r.problem = reason
	r.mu.Lock()
	r.status = proto.CloneOf(r.rec.Status)
	r.status.Reason = reason
	r.mu.Unlock()
	r.reports.add(r.report())
}

// clearProblem clears the problem.
func (r *replica) clearProblem() {
	if r.problem == "" {
		return
	}
	r.problem = ""
	r.publish()
}

func now() *timestamppb.Timestamp { return timestamppb.New(time.Now()) }
