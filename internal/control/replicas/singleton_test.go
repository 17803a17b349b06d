package replicas

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/lease"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// isolated is a world with a singleton, whose nodes can be cut off from the servers. Agents
// follow the rules of their leases.
type isolated struct {
	*world
	clock  time.Time
	leases lease.Table
	cut    map[string]bool // by name
	// runs are the replicas whose programs run, with the end of their leases.
	runs  map[string]bool
	until map[string]time.Time
	// newest is the highest epoch that ever ran.
	newest uint64
}

func newIsolated(t fatal) *isolated {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.addNode(name, "4")
	}
	made := newWorkload(w.newUID(), "db", 1, "1")
	made.Spec.Singleton = true
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
	i := &isolated{world: w, clock: w.now(), cut: map[string]bool{}, runs: map[string]bool{}, until: map[string]time.Time{}}
	i.leases.Begin(i.clock)
	return i
}

// tick lets the leader take one step.
func (i *isolated) tick() {
	i.t.Helper()
	c := newCluster(i.snap())
	c.leases = &i.leases
	if batch, _ := c.tick(i.clock, i.snap(), everything(i.snap()), i.newUID); batch.Len() > 0 {
		i.apply(batch)
	}
}

// pass lets time go by. Agents kill what has no lease any more.
func (i *isolated) pass(length time.Duration) {
	i.clock = i.clock.Add(length)
	for uid := range i.runs {
		if placement.Leased(i.snap(), i.snap().Replica(uid)) && !i.clock.Before(i.until[uid]) {
			delete(i.runs, uid)
		}
	}
}

// beat renews the leases of all replicas that the servers hear of. The nodes asked a while
// before.
func (i *isolated) beat(before time.Duration) {
	for n := range i.snap().Nodes("") {
		if i.cut[n.GetMetadata().GetName()] {
			continue
		}
		var uids []string
		for r := range i.snap().ReplicasOn(n.GetMetadata().GetUid()) {
			uids = append(uids, r.GetMetadata().GetUid())
		}
		for _, uid := range i.leases.Grant(i.clock, i.snap(), n.GetMetadata().GetUid(), uids) {
			i.until[uid] = i.clock.Add(lease.Duration - before)
		}
	}
}

// act lets the agents of some nodes do what they may: start what has a lease, and stop what
// they are told to.
func (i *isolated) act(names ...string) {
	i.t.Helper()
	var b state.Batch
	for old := range i.snap().ReplicasOf(i.snap().WorkloadByName("default", "db").GetMetadata().GetUid()) {
		uid, phase := old.GetMetadata().GetUid(), old.GetStatus().GetPhase()
		n := i.snap().Node(old.GetSpec().GetNodeUid())
		if n == nil || i.cut[n.GetMetadata().GetName()] || !slices.Contains(names, n.GetMetadata().GetName()) {
			continue
		}
		r := proto.CloneOf(old)
		switch {
		case spec.Ended(phase):
			delete(i.runs, uid)
		case old.GetSpec().GetDesired() == spec.DesiredStopped:
			delete(i.runs, uid)
			r.Status.Phase = spec.PhaseStopped
		case i.clock.Before(i.until[uid]) || !placement.Leased(i.snap(), old):
			i.start(r)
			r.Status.Phase = spec.PhaseRunning
		}
		if r.GetStatus().GetPhase() != phase {
			b.Update(r, old.GetMetadata().GetVersion())
		}
	}
	if b.Len() > 0 {
		i.apply(&b)
	}
}

func (i *isolated) start(r *v1.Replica) {
	i.t.Helper()
	uid, epoch := r.GetMetadata().GetUid(), r.GetSpec().GetEpoch()
	started := !i.runs[uid]
	i.runs[uid] = true
	if !started || !placement.Leased(i.snap(), r) {
		return
	}
	if epoch < i.newest {
		i.t.Fatalf("a replica of epoch %d starts after one of epoch %d", epoch, i.newest)
	}
	if i.newest = epoch; len(i.runs) > 1 {
		i.t.Fatalf("a replica of a singleton starts, and then %d run", len(i.runs))
	}
}

// connect cuts a node off, or connects it again. Its agent then stops what was replaced.
func (i *isolated) connect(name string, connected bool) {
	n := proto.CloneOf(i.snap().NodeByName(name))
	if n == nil {
		return
	}
	i.cut[name] = !connected
	n.Status.State, n.Status.LastSeen = spec.NodeOffline, timestamppb.New(i.clock)
	if connected {
		n.Status.State, n.Status.LastSeen = spec.NodeReady, nil
		for r := range i.snap().ReplicasOn(n.GetMetadata().GetUid()) {
			if spec.Ended(r.GetStatus().GetPhase()) {
				delete(i.runs, r.GetMetadata().GetUid())
			}
		}
	}
	i.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

// expel removes a node, as an operator does by force. If it is cut off, it does not know that. By
// removing it, the operator vouches that nothing without a lease runs there.
func (i *isolated) expel(name string) {
	if n := i.snap().NodeByName(name); n != nil {
		for r := range i.snap().ReplicasOn(n.GetMetadata().GetUid()) {
			if !placement.Leased(i.snap(), r) {
				delete(i.runs, r.GetMetadata().GetUid())
			}
		}
		i.change(func(b *state.Batch) {
			placement.LoseReplicas(i.clock, i.snap(), b, n)
			b.Delete(state.KindNode, n.GetMetadata().GetUid())
		})
	}
}

// settle lets everyone work until nothing changes for a while.
func (i *isolated) settle() {
	for range 10 {
		i.beat(0)
		i.tick()
		i.act("a", "b", "c")
		i.pass(time.Second)
	}
}

func (i *isolated) only() string {
	i.t.Helper()
	if len(i.runs) != 1 {
		i.t.Fatalf("%d replicas run", len(i.runs))
	}
	for uid := range i.runs {
		return i.snap().Replica(uid).GetSpec().GetNode()
	}
	return ""
}

func TestSingletonMovesWhenItsLeaseHasExpired(t *testing.T) {
	i := newIsolated(t)
	i.settle()
	first := i.only()
	i.beat(0)
	i.connect(first, false)
	i.tick()
	i.pass(lease.Duration - time.Second)
	i.tick()
	i.act("a", "b", "c")
	if got := i.only(); got != first {
		t.Fatalf("it runs on %s although its lease on %s is valid", got, first)
	}
	i.pass(3 * time.Second)
	i.settle()
	if got := i.only(); got == first {
		t.Fatalf("it still runs on %s", first)
	}
}

// A node that is removed while it is cut off runs its singleton until the lease ends.
func TestSingletonOfARemovedNodeMovesWhenItsLeaseHasExpired(t *testing.T) {
	i := newIsolated(t)
	i.settle()
	first := i.only()
	i.beat(0)
	i.connect(first, false)
	i.expel(first)
	for range 14 {
		i.pass(time.Second)
		i.tick()
		i.beat(0)
		i.act("a", "b", "c")
		if got := i.only(); got != first {
			t.Fatalf("it runs on %s although its lease on %s is valid", got, first)
		}
	}
	i.pass(4 * time.Second)
	i.settle()
	if got := i.only(); got == first {
		t.Fatalf("it still runs on %s", first)
	}
	for r := range i.snap().Replicas("", "") {
		if reason := r.GetStatus().GetReason(); r.GetSpec().GetNode() == first && reason != "node "+first+" was removed, and its lease has expired" {
			t.Errorf("the lost replica says %q", reason)
		}
	}
}

func TestUpdateOfASingletonStopsTheOldReplicaFirst(t *testing.T) {
	i := newIsolated(t)
	i.settle()
	i.restart("db")
	i.tick()
	i.tick()
	if got := i.phases("db"); got[spec.PhasePending]+got[spec.PhasePlaced] > 0 {
		t.Errorf("a new replica exists before the old one has stopped: %v", got)
	}
	i.settle()
	i.only()
}

func TestSingletonThatStillStopsIsNotReplacedYet(t *testing.T) {
	i := newIsolated(t)
	i.settle()
	i.scale("db", 0)
	i.tick()
	i.scale("db", 1)
	i.tick()
	if got := i.phases("db"); len(got) != 1 || got[spec.PhaseRunning] != 1 {
		t.Errorf("a new replica exists before the old one has stopped: %v", got)
	}
	i.settle()
	i.only()
}

// single makes the workload a singleton, or one that is not, by a new revision.
func (i *isolated) single(single bool) {
	i.edit("db", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Singleton = single
		i.revise(b, of)
	})
}

// cutWhereItRuns cuts the only node off that runs a replica, and returns its name.
func (i *isolated) cutWhereItRuns() (name string) {
	i.t.Helper()
	name = i.only()
	i.beat(0)
	i.connect(name, false)
	return name
}

// Nothing stops a replica that needs no lease while its node is cut off. So a workload that
// becomes a singleton meanwhile waits until the node is back or removed.
func TestReplicaWithoutLeaseIsNotFencedByTime(t *testing.T) {
	for _, when := range []string{"before it is replaced", "after it was replaced"} {
		for _, end := range []string{"returns", "is removed"} {
			i := newIsolated(t)
			i.single(false)
			i.settle()
			first := i.cutWhereItRuns()
			if when == "after it was replaced" {
				i.settle()
			}
			i.single(true)
			i.pass(time.Hour)
			i.settle()
			if i.only() != first {
				t.Fatalf("%s: it runs on %s", when, i.only())
			}
			why := ""
			for r := range i.snap().Replicas("", "") {
				if stuck := placement.Stuck(i.snap(), i.snap().WorkloadByName("default", "db"), r); stuck != "" {
					why = stuck
				}
			}
			if !strings.Contains(why, "revision 2 was not a singleton") || !strings.Contains(why, "cloudless node rm "+first+" --force") {
				t.Errorf("%s: the reason is %q", when, why)
			}
			if end == "returns" {
				i.connect(first, true)
			} else {
				i.expel(first)
			}
			i.settle()
			i.settle()
			if r := i.snap().Replica(slices.Collect(maps.Keys(i.runs))[0]); len(i.runs) != 1 || !placement.Leased(i.snap(), r) {
				t.Errorf("%s, and the node %s: %d run, one of them of revision %d", when, end, len(i.runs), r.GetSpec().GetRevision())
			}
		}
	}
}

// A workload that stops being a singleton keeps the promise while its deployment waits.
func TestSingletonIsFencedWhileItsNextRevisionWaits(t *testing.T) {
	i := newIsolated(t)
	i.settle()
	i.edit("db", func(b *state.Batch, of *v1.Workload) {
		good := of.GetStatus().GetRevisionUid()
		of.Spec.Singleton, of.Status.DeploymentUid = false, i.newUID()
		i.revise(b, of)
		b.Create(&v1.Deployment{
			Metadata: &v1.Metadata{Uid: of.GetStatus().GetDeploymentUid(), Name: "db-1", Namespace: "default"},
			Spec: &v1.DeploymentSpec{
				WorkloadUid: of.GetMetadata().GetUid(), Workload: "db", Number: 1, RevisionUid: of.GetStatus().GetRevisionUid(), PreviousUid: good, Paused: true,
			},
			Status: &v1.DeploymentStatus{Phase: spec.DeploymentPaused, Waiting: true},
		})
	})
	first := i.cutWhereItRuns()
	i.settle()
	if i.only() != first {
		t.Fatalf("it runs on %s although its lease on %s is valid", i.only(), first)
	}
}

// chaos takes one random step.
func (i *isolated) chaos(random *rand.Rand) {
	name := []string{"a", "b", "c"}[random.IntN(3)]
	steps := []func(){
		func() { i.connect(name, false) },
		func() { i.connect(name, true) },
		func() { // cut off where it runs
			for uid := range i.runs {
				i.connect(i.snap().Replica(uid).GetSpec().GetNode(), false)
			}
		},
		func() { i.restart("db") },
		func() { i.scale("db", random.Int32N(2)) },
		func() { i.leases.Begin(i.clock) }, // another server leads
		func() {
			if name != "a" && random.IntN(8) == 0 {
				i.expel(name)
			}
		},
		func() { // remove the node where it runs, which may be cut off
			for uid := range i.runs {
				if where := i.snap().Replica(uid).GetSpec().GetNode(); where != "a" && random.IntN(4) == 0 {
					i.expel(where)
				}
			}
		},
		func() { i.pass(time.Duration(random.IntN(12)) * time.Second) },
		func() { i.beat(time.Duration(random.IntN(5)) * time.Second) }, i.tick, func() { i.act(name) },
	}
	if random.IntN(2) == 0 {
		steps = steps[len(steps)-3:] // most of the time nothing special happens
	}
	steps[random.IntN(len(steps))]()
}

// Whatever is cut, removed, updated or elected, no singleton starts beside another replica.
func TestNoSingletonStartsBesideAnother(t *testing.T) {
	for seed := range uint64(200) {
		i, random := newIsolated(t), rand.New(rand.NewPCG(seed, 1))
		for range 200 {
			if random.IntN(20) == 0 {
				i.single(random.IntN(2) == 0)
			}
			i.chaos(random)
		}
	}
}

// Whatever is cut, removed, updated or elected, no two replicas run at the same time.
func TestNeverTwoSingletons(t *testing.T) {
	for seed := range uint64(200) {
		i, random := newIsolated(t), rand.New(rand.NewPCG(seed, 0))
		for step := range 200 {
			i.chaos(random)
			if len(i.runs) > 1 {
				t.Fatalf("seed %d, step %d: %d replicas of a singleton run", seed, step, len(i.runs))
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			if i.snap().NodeByName(name) != nil {
				i.connect(name, true)
			}
		}
		i.scale("db", 1)
		for range 5 {
			i.settle()
		}
		i.only() // it is not stuck either
	}
}
