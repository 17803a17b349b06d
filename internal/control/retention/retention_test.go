package retention

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

var (
	now    = time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	limits = Limits{Replicas: time.Hour, Receipts: 2 * time.Hour, Revisions: 100, Tokens: 3 * time.Hour, Events: 4 * time.Hour, MaxEvents: 3, RemovedNodes: 5 * time.Hour}
)

// log applies proposals at once.
type log struct {
	mu    sync.Mutex
	store *state.Store
	index uint64
	err   error
	sizes []int
}

func (l *log) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return state.Result{}, l.err
	}
	l.sizes = append(l.sizes, len(tx.GetChanges()))
	l.index++
	return l.store.Apply(l.index, proto.CloneOf(tx))
}

// put creates objects at a moment.
func (l *log) put(t *testing.T, when time.Time, objects ...state.Object) {
	t.Helper()
	var b state.Batch
	for _, o := range objects {
		b.Create(o)
	}
	l.index++
	if _, err := l.store.Apply(l.index, b.Transaction(when)); err != nil {
		t.Fatal(err)
	}
}

// configure creates a cluster with a retention configuration.
func (l *log) configure(t *testing.T, r *v1.Retention) {
	t.Helper()
	var b state.Batch
	b.Put(&v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "c"}, Spec: &v1.ClusterSpec{Retention: r}})
	l.index++
	if _, err := l.store.Apply(l.index, b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
}

func replica(name, phase string, ended time.Time) *v1.Replica {
	r := &v1.Replica{
		Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"}, Spec: &v1.ReplicaSpec{}, Status: &v1.ReplicaStatus{Phase: phase},
	}
	if !ended.IsZero() {
		r.Status.EndTime = timestamppb.New(ended)
	}
	return r
}

func event(n int, when time.Time) *v1.Event {
	uid := fmt.Sprintf("event-%06d", n)
	return &v1.Event{Metadata: &v1.Metadata{Uid: uid, Name: uid}, Spec: &v1.EventSpec{Time: timestamppb.New(when)}}
}

func TestObjectsBeyondTheirLimitAreDeleted(t *testing.T) {
	l := &log{store: state.New()}
	receipt := func(name string) *statev1.Receipt {
		return &statev1.Receipt{Metadata: &v1.Metadata{Uid: name, Name: name}}
	}
	token := func(name string, expires time.Time) *v1.Token {
		return &v1.Token{Metadata: &v1.Metadata{Uid: name, Name: name}, Spec: &v1.TokenSpec{ExpireTime: timestamppb.New(expires)}}
	}
	l.put(t, now.Add(-2*time.Hour-time.Second), receipt("old-receipt"))
	l.put(t, now.Add(-2*time.Hour), receipt("new-receipt"))
	l.put(
		t, now.Add(-9*time.Hour),
		replica("old-stopped", spec.PhaseStopped, now.Add(-time.Hour-time.Second)),
		replica("old-failed", spec.PhaseFailed, now.Add(-2*time.Hour)),
		replica("new-stopped", spec.PhaseStopped, now.Add(-time.Hour)),
		replica("running", spec.PhaseRunning, time.Time{}), // however long
		replica("backoff", spec.PhaseBackoff, now.Add(-9*time.Hour)),
		token("old-token", now.Add(-3*time.Hour-time.Second)),
		token("new-token", now.Add(-3*time.Hour)),
		token("valid-token", now.Add(time.Hour)),
		event(1, now.Add(-4*time.Hour-time.Second)),
		event(2, now.Add(-4*time.Hour)),
	)
	batch := Tick(now, l.store.Snapshot(), limits)
	gone := map[string]bool{}
	for _, c := range batch.Transaction(now).GetChanges() {
		gone[c.GetDelete().GetUid()] = true
	}
	for _, name := range []string{"old-receipt", "old-stopped", "old-failed", "old-token", "event-000001"} {
		if !gone[name] {
			t.Errorf("%s is kept", name)
		}
		delete(gone, name)
	}
	if len(gone) != 0 {
		t.Errorf("too early gone: %v", gone)
	}
	if _, err := l.Propose(t.Context(), batch.Transaction(now)); err != nil {
		t.Fatal(err)
	}
	if again := Tick(now, l.store.Snapshot(), limits); again.Len() != 0 {
		t.Error("a second tick deletes more")
	}
}

func (l *log) tick(t *testing.T) {
	t.Helper()
	if batch := Tick(now, l.store.Snapshot(), limits); batch.Len() > 0 {
		if _, err := l.Propose(t.Context(), batch.Transaction(now)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExpiredTokenTakesItsHashAlong(t *testing.T) {
	l := &log{store: state.New()}
	l.put(
		t, now,
		&v1.Token{
			Metadata: &v1.Metadata{Uid: "t", Name: "t"}, Spec: &v1.TokenSpec{ExpireTime: timestamppb.New(now.Add(-9 * time.Hour))},
			Status: &v1.TokenStatus{SecretId: "secret"},
		},
		&statev1.Credential{Metadata: &v1.Metadata{Uid: "secret"}, TokenUid: "t"},
		&statev1.Credential{Metadata: &v1.Metadata{Uid: "other"}, TokenUid: "o"},
	)
	l.tick(t)
	snap := l.store.Snapshot()
	if snap.Token("t") != nil || snap.Credential("secret") != nil || snap.Credential("other") == nil {
		t.Errorf("left are %d tokens and %d credentials", snap.Count(state.KindToken), snap.Count(state.KindCredential))
	}
}

func TestExpiredAccessKeyTakesItsSecretAlong(t *testing.T) {
	l := &log{store: state.New()}
	l.put(
		t, now,
		&v1.AccessKey{
			Metadata: &v1.Metadata{Uid: "old", Name: "clold", Namespace: "default"},
			Spec:     &v1.AccessKeySpec{ExpireTime: timestamppb.New(now.Add(-9 * time.Hour))},
		},
		&statev1.AccessKeySecret{Metadata: &v1.Metadata{Uid: "old"}},
		&v1.AccessKey{Metadata: &v1.Metadata{Uid: "lasting", Name: "cllasting", Namespace: "default"}, Spec: &v1.AccessKeySpec{}},
		&statev1.AccessKeySecret{Metadata: &v1.Metadata{Uid: "lasting"}},
	)
	l.tick(t)
	snap := l.store.Snapshot()
	if snap.AccessKey("old") != nil || snap.AccessKeySecret("old") != nil || snap.AccessKey("lasting") == nil || snap.AccessKeySecret("lasting") == nil {
		t.Errorf("left are %d keys and %d secrets", snap.Count(state.KindAccessKey), snap.Count(state.KindAccessKeySecret))
	}
}

// The end of a job is what keeps it from being done again.
func TestProofOfFinishedWorkIsKept(t *testing.T) {
	l := &log{store: state.New()}
	of := func(r *v1.Replica, revision string) *v1.Replica {
		r.Spec.WorkloadUid, r.Spec.RevisionUid = "w", revision
		return r
	}
	long := now.Add(-9 * time.Hour)
	l.put(
		t, long,
		&v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "job", Namespace: "default"}, Status: &v1.WorkloadStatus{RevisionUid: "rev-2"}},
		of(replica("done", spec.PhaseCompleted, long), "rev-2"),
		of(replica("gave-up", spec.PhaseFailed, long), "rev-2"),
		of(replica("stopped", spec.PhaseStopped, long), "rev-2"),
		of(replica("done-before", spec.PhaseCompleted, long), "rev-1"),
		replica("of-a-deleted-one", spec.PhaseCompleted, long),
	)
	l.tick(t)
	snap := l.store.Snapshot()
	for name, want := range map[string]bool{"done": true, "gave-up": true, "stopped": false, "done-before": false, "of-a-deleted-one": false} {
		if kept := snap.Replica(name) != nil; kept != want {
			t.Errorf("%s is kept: %t, want %t", name, kept, want)
		}
	}
}

func TestUnusedOldRevisionsAreDeleted(t *testing.T) {
	l := &log{store: state.New()}
	keep := limits
	keep.Revisions = 2
	l.put(t, now, &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}, Status: &v1.WorkloadStatus{RevisionUid: "rev-6"}})
	for n := range uint64(7) {
		uid := fmt.Sprintf("rev-%d", n)
		l.put(t, now, &v1.Revision{Metadata: &v1.Metadata{Uid: uid}, Spec: &v1.RevisionSpec{WorkloadUid: "w", Number: n}})
	}
	running, ended := replica("running", spec.PhaseRunning, time.Time{}), replica("ended", spec.PhaseStopped, now)
	running.Spec.WorkloadUid, running.Spec.RevisionUid = "w", "rev-1"
	ended.Spec.WorkloadUid, ended.Spec.RevisionUid = "w", "rev-2"
	l.put(t, now, running, ended)
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), keep).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	var left []string
	for r := range l.store.Snapshot().RevisionsOf("w") {
		left = append(left, r.GetMetadata().GetUid())
	}
	if fmt.Sprint(left) != "[rev-1 rev-5 rev-6]" {
		t.Errorf("left are %v", left)
	}
}

// The deployment that succeeded last is kept whatever its age, and so is its revision: a rollback returns there.
func TestLastGoodDeploymentIsKept(t *testing.T) {
	l := &log{store: state.New()}
	keep := limits
	keep.Revisions, keep.Deployments = 1, 2
	l.put(t, now, &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}, Status: &v1.WorkloadStatus{RevisionUid: "rev-5"}})
	for n := range uint64(6) {
		phase := spec.DeploymentFailed
		if n <= 1 {
			phase = spec.DeploymentSucceeded
		}
		revision := fmt.Sprintf("rev-%d", n)
		l.put(
			t, now, &v1.Revision{Metadata: &v1.Metadata{Uid: revision}, Spec: &v1.RevisionSpec{WorkloadUid: "w", Number: n}},
			&v1.Deployment{
				Metadata: &v1.Metadata{Uid: fmt.Sprintf("d-%d", n), Name: fmt.Sprintf("web-%d", n), Namespace: "default"},
				Spec:     &v1.DeploymentSpec{WorkloadUid: "w", Number: n, RevisionUid: revision}, Status: &v1.DeploymentStatus{Phase: phase},
			},
		)
	}
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), keep).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	var left []string
	for r := range l.store.Snapshot().RevisionsOf("w") {
		left = append(left, r.GetMetadata().GetUid())
	}
	for d := range l.store.Snapshot().DeploymentsOf("w") {
		left = append(left, d.GetMetadata().GetUid())
	}
	if fmt.Sprint(left) != "[rev-1 rev-5 d-1 d-4 d-5]" {
		t.Errorf("left are %v", left)
	}
}

// A deployment may return to the revision before it: with its group, even after it has succeeded. So that revision is
// kept, and so are the proofs that its work is done.
func TestRevisionBeforeTheNewestDeploymentIsKept(t *testing.T) {
	l := &log{store: state.New()}
	keep := limits
	keep.Revisions = 1
	done := func(revision string) *v1.Replica {
		r := replica("done-"+revision, spec.PhaseCompleted, now.Add(-9*time.Hour))
		r.Spec.WorkloadUid, r.Spec.RevisionUid = "w", revision
		return r
	}
	l.put(
		t, now, &v1.Workload{
			Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}, Status: &v1.WorkloadStatus{RevisionUid: "rev-3", DeploymentUid: "d-3"},
		},
		&v1.Deployment{
			Metadata: &v1.Metadata{Uid: "d-3", Name: "web-3", Namespace: "default"},
			Spec:     &v1.DeploymentSpec{WorkloadUid: "w", Number: 3, RevisionUid: "rev-3", PreviousUid: "rev-1"},
			Status:   &v1.DeploymentStatus{Phase: spec.DeploymentSucceeded},
		},
		done("rev-1"), done("rev-2"),
	)
	for n := range uint64(4) {
		l.put(t, now, &v1.Revision{Metadata: &v1.Metadata{Uid: fmt.Sprintf("rev-%d", n)}, Spec: &v1.RevisionSpec{WorkloadUid: "w", Number: n}})
	}
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), keep).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	var left []string
	for r := range l.store.Snapshot().RevisionsOf("w") {
		left = append(left, r.GetMetadata().GetUid())
	}
	for r := range l.store.Snapshot().ReplicasOf("w") {
		left = append(left, r.GetMetadata().GetUid())
	}
	if fmt.Sprint(left) != "[rev-1 rev-3 done-rev-1]" {
		t.Errorf("left are %v", left)
	}
}

func TestSurplusEventsAreDeletedOldestFirst(t *testing.T) {
	l := &log{store: state.New()}
	for n := range 10 {
		l.put(t, now, event(n, now))
	}
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), limits).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	var left []string
	for e := range l.store.Snapshot().OldestEvents() {
		left = append(left, e.GetMetadata().GetUid())
	}
	if fmt.Sprint(left) != "[event-000007 event-000008 event-000009]" {
		t.Errorf("left are %v", left)
	}
}

func TestRunTicksEveryMinuteInBoundedTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{store: state.New()}
		for part := range 3 {
			var objects []state.Object
			for n := range 4000 {
				objects = append(objects, event(part*4000+n, time.Now()))
			}
			l.put(t, time.Now(), objects...)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		l.configure(t, &v1.Retention{Replicas: "1h", MaxEvents: new(int32(3))})
		go func() { done <- Run(ctx, l.store, l) }()
		synctest.Wait()
		if fmt.Sprint(l.sizes) != "[5000 5000 1997]" {
			t.Errorf("deleted in pieces of %v", l.sizes)
		}
		l.put(t, time.Now(), replica("r", spec.PhaseStopped, time.Now()))
		time.Sleep(limits.Replicas)
		synctest.Wait()
		if l.store.Snapshot().Replica("r") == nil {
			t.Error("gone before its time")
		}
		time.Sleep(2 * interval)
		synctest.Wait()
		if l.store.Snapshot().Replica("r") != nil {
			t.Error("kept after its time")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// Between two ticks, a storm of events is cut down at once; a few too many wait for the
// next tick.
func TestStormOfEventsDoesNotWaitForTheNextTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{store: state.New()}
		l.configure(t, &v1.Retention{MaxEvents: new(int32(10))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, l.store, l) }()
		synctest.Wait()
		count := func(after time.Duration) int {
			time.Sleep(after)
			synctest.Wait()
			return l.store.Snapshot().Count(state.KindEvent)
		}
		for n := range 11 {
			l.put(t, time.Now(), event(n, time.Now()))
		}
		if got := count(2 * eventCheckInterval); got != 11 {
			t.Errorf("of 11 events %d are left before the tick", got)
		}
		for n := range 50 {
			l.put(t, time.Now(), event(100+n, time.Now()))
		}
		if got := count(eventCheckInterval); got != 10 {
			t.Errorf("after a storm %d events are left", got)
		}
		l.put(t, time.Now(), event(200, time.Now()))
		if got := count(interval); got != 10 {
			t.Errorf("after the next tick %d events are left", got)
		}
		cancel()
		<-done
	})
}

// The limits follow the configuration while the loop runs, without waiting for the next
// tick.
func TestRunFollowsTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{store: state.New()}
		l.configure(t, nil)
		l.put(t, time.Now(), replica("r", spec.PhaseStopped, time.Now()))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, l.store, l) }()
		time.Sleep(10*time.Minute + interval/2)
		synctest.Wait()
		if l.store.Snapshot().Replica("r") == nil {
			t.Fatal("gone although a day is the default")
		}
		l.configure(t, &v1.Retention{Replicas: "5m"})
		time.Sleep(2 * eventCheckInterval)
		synctest.Wait()
		if l.store.Snapshot().Replica("r") != nil {
			t.Error("kept although the configuration says five minutes now")
		}
		cancel()
		<-done
	})
}

func TestOnlyTheNewestConfigurationsAreKept(t *testing.T) {
	l := &log{store: state.New()}
	for n := range uint64(5) {
		l.put(t, now, &v1.Configuration{Metadata: &v1.Metadata{Uid: fmt.Sprint("c", n)}, Spec: &v1.ConfigurationSpec{Number: n + 1}})
	}
	few := limits
	few.Configurations = 2
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), few).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	var left []uint64
	for c := range l.store.Snapshot().Configurations(0) {
		left = append(left, c.GetSpec().GetNumber())
	}
	if fmt.Sprint(left) != "[5 4]" {
		t.Errorf("left are %v", left)
	}
}

func TestRunEndsWithAnErrorOfTheProposer(t *testing.T) {
	lost := errors.New("leadership lost")
	l := &log{store: state.New()}
	l.put(t, now, replica("r", spec.PhaseStopped, now))
	l.err = lost
	if err := Run(t.Context(), l.store, l); !errors.Is(err, lost) {
		t.Errorf("ended with %v", err)
	}
}

// The removal of a node is forgotten in time; that of a server never.
func TestRemovedNodesAreForgottenInTime(t *testing.T) {
	l := &log{store: state.New()}
	l.put(t, now.Add(-6*time.Hour),
		&statev1.Revocation{Metadata: &v1.Metadata{Uid: "old-node"}, Id: "spiffe://c-1/node/old-node"},
		&statev1.Revocation{Metadata: &v1.Metadata{Uid: "old-server"}, Id: "spiffe://c-1/server/old-server"})
	l.put(t, now.Add(-4*time.Hour), &statev1.Revocation{Metadata: &v1.Metadata{Uid: "new-node"}, Id: "spiffe://c-1/node/new-node"})
	if _, err := l.Propose(t.Context(), Tick(now, l.store.Snapshot(), limits).Transaction(now)); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[string]bool{"old-node": false, "new-node": true, "old-server": true} {
		if kept := l.store.Snapshot().Revocation(uid) != nil; kept != want {
			t.Errorf("the removal of %s is kept: %t", uid, kept)
		}
	}
}
