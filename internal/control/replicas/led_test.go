package replicas

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// led is a world with a clock and a leader, whose engine follows the changes like the loop does.
type led struct {
	*world
	engine Engine
	feed   *state.Follower
	// after is what the world does on its own as soon as nothing else happens, before time goes
	// by. It reports whether it did anything.
	after func() bool
	// watch looks at the world after every step, if it is set.
	watch func()
	// unwell says which replicas run and do not serve. It may be nil.
	unwell func(*v1.Replica) bool
}

func newLed(t fatal, nodes ...string) *led {
	l := &led{world: newWorld(t)}
	l.clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, name := range nodes {
		l.addNode(name, "64")
	}
	l.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "cluster", Name: "cloudless"}, Spec: &v1.ClusterSpec{}})
	})
	l.newLeader()
	return l
}

// newLeader lets another server lead, which knows nothing but the state.
func (l *led) newLeader() {
	l.feed, l.engine = l.store.Follow(), Engine{}
	l.engine.Begin(l.feed.Newest().Snapshot)
}

// limit sets how many lost replicas are replaced within a time; 0 for no limit.
func (l *led) limit(replicas int32, per string) {
	l.t.Helper()
	c := proto.CloneOf(l.snap().Cluster())
	c.Spec.Failover = &v1.Failover{Replicas: &replicas, Per: per}
	if replicas == 0 {
		c.Spec.Failover = nil
	}
	l.change(func(b *state.Batch) { b.Update(c, c.GetMetadata().GetVersion()) })
}

// lead lets the leader and the agents act until nothing is left to do at this time.
func (l *led) lead() {
	l.t.Helper()
	for range 10_000 {
		if l.watch != nil {
			l.watch()
		}
		if !l.step() && !l.start() && (l.after == nil || !l.after()) {
			return
		}
	}
	l.t.Fatalf("the leader never stops")
}

// step lets the leader take one step.
func (l *led) step() bool {
	l.t.Helper()
	news := l.feed.Newest()
	l.engine.Follow(news.Snapshot, news.Changes)
	step := l.engine.Settle(l.clock, l.newUID)
	if step == nil {
		return false
	}
	l.index++
	tx := proto.CloneOf(step.Batch.Transaction(l.clock))
	if err := state.Validate(tx); err != nil {
		l.t.Fatalf("the changes are not valid: %v", err)
	}
	result, err := l.store.Apply(l.index, tx)
	if err != nil {
		l.t.Fatalf("the changes of a tick do not fit to the state they were made from: %v", err)
	}
	l.engine.Agreed(step, tx, result)
	return true
}

// start lets the agents start and stop replicas.
func (l *led) start() bool {
	l.t.Helper()
	var b state.Batch
	for old := range l.snap().Replicas("", "") {
		n := l.snap().Node(old.GetSpec().GetNodeUid())
		phase := nextPhase(old)
		if !slices.Contains(workingStates, n.GetStatus().GetState()) || phase == old.GetStatus().GetPhase() {
			continue
		}
		r := proto.CloneOf(old)
		if r.Status.Phase = phase; phase == spec.PhaseRunning {
			r.Status.StartTime = timestamppb.New(l.clock)
			if l.unwell != nil && l.unwell(r) {
				r.Status.Unready = "it does not listen"
			}
		}
		b.Update(r, old.GetMetadata().GetVersion())
	}
	if b.Len() > 0 {
		l.apply(&b)
	}
	return b.Len() > 0
}

// pass lets time go by. Whatever is due meanwhile happens in time.
func (l *led) pass(length time.Duration) {
	l.t.Helper()
	l.lead()
	for end := l.clock.Add(length); ; {
		next := l.engine.Next()
		if next.IsZero() || next.After(end) {
			l.clock = end
			l.lead()
			return
		}
		l.clock = later(l.clock, next)
		l.engine.Elapsed(l.clock)
		l.lead()
	}
}

// lose lets nodes vanish, last heard of now.
func (l *led) lose(names ...string) {
	l.t.Helper()
	for _, name := range names {
		l.loseNode(name, l.clock)
	}
}

// running lists the nodes on which replicas of a workload run, as far as the leader knows.
func (l *led) running(name string) (nodes []string) {
	for r := range l.snap().ReplicasOf(l.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		n := l.snap().Node(r.GetSpec().GetNodeUid())
		if r.GetStatus().GetPhase() == spec.PhaseRunning && n.GetStatus().GetState() != spec.NodeOffline {
			nodes = append(nodes, n.GetMetadata().GetName())
		}
	}
	slices.Sort(nodes)
	return nodes
}

// held is the replica of a workload that waits for a time.
func (l *led) held(name string) *v1.Replica {
	for r := range l.snap().ReplicasOf(l.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		if r.GetSpec().GetNotBefore() != nil && r.GetStatus().GetPhase() == spec.PhasePending {
			return r
		}
	}
	return nil
}

// told lists the messages of the events with a reason.
func (l *led) told(reason string) (messages []string) {
	for e := range l.snap().Events("") {
		if e.GetSpec().GetReason() == reason {
			messages = append(messages, e.GetSpec().GetMessage())
		}
	}
	slices.Sort(messages)
	return messages
}

func (l *led) wantTold(reason string, parts ...string) {
	l.t.Helper()
	told := l.told(reason)
	if len(told) != len(parts) {
		l.t.Fatalf("%d events %s: %q, want %d", len(told), reason, told, len(parts))
	}
	for i, part := range parts {
		if !strings.Contains(told[i], part) {
			l.t.Fatalf("the event says %q, want %q in it", told[i], part)
		}
	}
}
