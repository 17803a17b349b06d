package replicas

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// fatal is what tests and properties have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a state with simulated agents and without goroutines: the same calls make the
// same world.
type world struct {
	t     fatal
	store *state.Store
	index uint64
	uids  int
	// clock is the time, if it is set. Otherwise each change takes a second.
	clock time.Time
	// drafting is whether changes are collected in drafts instead of made.
	drafting bool
	drafts   []*state.Batch
}

func newWorld(t fatal) *world { return &world{t: t, store: state.New()} }

// newUID returns uids in the order of creation, with different ends, like real ones.
func (w *world) newUID() string {
	w.uids++
	return fmt.Sprintf("%08d-0000-7000-8000-0000a%07d", w.uids, w.uids)
}

func (w *world) now() time.Time {
	if !w.clock.IsZero() {
		return w.clock
	}
	return time.Date(2026, 1, 1, 0, 0, int(w.index), 0, time.UTC)
}

func (w *world) snap() *state.Snapshot { return w.store.Snapshot() }

func (w *world) apply(b *state.Batch) {
	w.t.Helper()
	if w.drafting {
		w.drafts = append(w.drafts, b)
		return
	}
	w.index++
	// As from the log: shares nothing with the proposer.
	tx := proto.CloneOf(b.Transaction(w.now()))
	if err := state.Validate(tx); err != nil {
		w.t.Fatalf("the changes are not valid: %v", err)
	}
	if _, err := w.store.Apply(w.index, tx); err != nil {
		w.t.Fatalf("the changes of a tick do not fit to the state they were made from: %v", err)
	}
}

// draft returns what f would change, without changing it.
func (w *world) draft(f func()) []*state.Batch {
	w.drafting, w.drafts = true, nil
	f()
	w.drafting = false
	return w.drafts
}

func (w *world) change(build func(*state.Batch)) {
	w.t.Helper()
	var b state.Batch
	build(&b)
	w.apply(&b)
}

func (w *world) addNode(name, cpu string) {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		b.Create(&v1.Node{
			Metadata: &v1.Metadata{Uid: w.newUID(), Name: name, Labels: map[string]string{"name": name}},
			Status: &v1.NodeStatus{
				State: "ready", Capacity: &v1.NodeResources{Cpu: cpu, Memory: "64Gi"}, Drivers: []*v1.DriverInfo{{Name: "container"}},
			},
		})
	})
}

func (w *world) setNode(name, nodeState string) {
	w.t.Helper()
	n := proto.CloneOf(w.snap().NodeByName(name))
	if n.GetStatus().GetState() == nodeState {
		return
	}
	n.Status.State = nodeState
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

// newWorkload is a workload as the API creates it.
func newWorkload(uid, name string, replicas int32, cpu string) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Uid: uid, Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec: spec.Normalized(&v1.WorkloadSpec{
			Image: "example.com/a:1", Replicas: proto.Int32(replicas), Network: "none",
			Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: cpu}},
		}),
		Status: &v1.WorkloadStatus{},
	}
}

func (w *world) addWorkload(name string, replicas int32, cpu string) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, replicas, cpu)
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
}

// addService creates a service with a restart policy.
func (w *world) addService(name string, replicas int32, policy string) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, replicas, "1")
	made.Spec.Restart = &v1.Restart{Policy: policy}
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
}

// addRanked creates a workload with a priority and a minAvailable.
func (w *world) addRanked(name string, replicas int32, cpu string, priority, keep int32) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, replicas, cpu)
	made.Spec.Priority, made.Spec.MinAvailable = &priority, keep
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
}

// taint sets the taints of a node.
func (w *world) taint(name string, taints ...*v1.Taint) {
	w.t.Helper()
	n := proto.CloneOf(w.snap().NodeByName(name))
	if len(taints) == 0 && len(n.GetSpec().GetTaints()) == 0 {
		return
	}
	if n.Spec == nil {
		n.Spec = &v1.NodeSpec{}
	}
	n.Spec.Taints = taints
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

func (w *world) revise(b *state.Batch, of *v1.Workload) {
	of.Status.Revision++
	of.Status.RevisionUid = w.newUID()
	b.Create(&v1.Revision{
		Metadata: &v1.Metadata{Uid: of.GetStatus().GetRevisionUid()},
		Spec: &v1.RevisionSpec{
			WorkloadUid: of.GetMetadata().GetUid(), Number: of.GetStatus().GetRevision(), Workload: proto.CloneOf(of.GetSpec()), Image: "example.com/a:1",
		},
	})
}

// edit changes a workload, if it exists and is not being deleted.
func (w *world) edit(name string, f func(*state.Batch, *v1.Workload)) {
	w.t.Helper()
	old := w.snap().WorkloadByName("default", name)
	if old == nil || old.GetMetadata().GetDeleteTime() != nil {
		return
	}
	edited := proto.CloneOf(old)
	w.change(func(b *state.Batch) {
		f(b, edited)
		b.Update(edited, old.GetMetadata().GetVersion())
	})
}

func (w *world) scale(name string, replicas int32) {
	w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Spec.Replicas = proto.Int32(replicas) })
}

func (w *world) restart(name string) { w.edit(name, w.revise) }

func (w *world) delete(name string) {
	w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Metadata.DeleteTime = timestamppb.New(w.now()) })
}

// Tick decides like an engine that has just read the state.
func Tick(now time.Time, snap *state.Snapshot, due Due, newUID func() string) (batch *state.Batch, left Due) {
	return newCluster(snap).tick(now, snap, due, newUID)
}

// tick runs one tick about everything, and reports whether it changed anything.
func (w *world) tick() bool {
	w.t.Helper()
	batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	if batch.Len() == 0 {
		return false
	}
	w.apply(batch)
	return true
}

// work lets the agents of all nodes in service take one step with each replica, and reports
// whether anything changed.
func (w *world) work() bool {
	w.t.Helper()
	var b state.Batch
	for n := range w.snap().Nodes("") {
		if !slices.Contains(workingStates, n.GetStatus().GetState()) {
			continue
		}
		for old := range w.snap().ReplicasOn(n.GetMetadata().GetUid()) {
			if phase := nextPhase(old); phase != old.GetStatus().GetPhase() {
				r := proto.CloneOf(old)
				r.Status.Phase = phase
				if spec.Ended(phase) {
					r.Status.EndTime = timestamppb.New(w.now())
				}
				b.Update(r, old.GetMetadata().GetVersion())
			}
		}
	}
	if b.Len() == 0 {
		return false
	}
	w.apply(&b)
	return true
}

// nextPhase is an agent's next step with a replica that never fails.
func nextPhase(r *v1.Replica) string {
	phase, stop := r.GetStatus().GetPhase(), r.GetSpec().GetDesired() == spec.DesiredStopped
	switch {
	case spec.Ended(phase):
		return phase
	case stop && phase == spec.PhaseStopping:
		return spec.PhaseStopped
	case stop:
		return spec.PhaseStopping
	case phase == spec.PhasePlaced:
		return spec.PhasePreparing
	default:
		return spec.PhaseRunning
	}
}

// settle continues until nothing changes any more.
func (w *world) settle() {
	w.t.Helper()
	for range 10_000 {
		ticked, worked := w.tick(), w.work()
		if !ticked && !worked {
			return
		}
	}
	w.t.Fatalf("the world never settles")
}

// phases counts the replicas of a workload by phase.
func (w *world) phases(name string) map[string]int {
	counts := map[string]int{}
	for r := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		counts[r.GetStatus().GetPhase()]++
	}
	return counts
}

// saved is the whole state as bytes.
func (w *world) saved() []byte {
	w.t.Helper()
	var out bytes.Buffer
	if err := w.snap().Save(&out); err != nil {
		w.t.Fatalf("save: %v", err)
	}
	return out.Bytes()
}

// changed lists the replicas and events that a batch puts, and the keys it deletes.
func changed(b *state.Batch) (replicas []*v1.Replica, events []*v1.Event, deleted []*statev1.Key) {
	for _, c := range b.Transaction(time.Time{}).GetChanges() {
		switch {
		case c.GetPut().GetReplica() != nil:
			replicas = append(replicas, c.GetPut().GetReplica())
		case c.GetPut().GetEvent() != nil:
			events = append(events, c.GetPut().GetEvent())
		case c.GetDelete() != nil:
			deleted = append(deleted, c.GetDelete())
		}
	}
	return replicas, events, deleted
}
