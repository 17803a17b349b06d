package nodes

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Loop remembers what sessions report and ticks when it matters. A heartbeat costs the same
// however many nodes there are, and a tick looks only at nodes with news or an expired
// deadline.
type Loop struct {
	// Deaf reports whether this server is not reading from its nodes for a moment: no node
	// counts as silent until it has caught up. It may be nil.
	Deaf func() bool
	// CutOff reports whether a node's messages are relayed by another server that does not
	// answer. It may be nil.
	CutOff func(node string) bool

	store    *state.Store
	proposer Proposer
	probe    Probe
	wake     chan struct{}
	// unprobed has a token while it is unknown of some machines whether they answer
	// probes.
	unprobed chan struct{}
	// probes has a token for every open probe.
	probes chan struct{}
	work   sync.WaitGroup // goroutines of Run

	mu        sync.Mutex
	entries   map[string]*entry // by node uid
	dirty     map[string]bool   // nodes with news
	leading   context.Context   // the context of Run; nil while this server does not lead
	since     time.Time         // when it began to lead
	lastCheck time.Time         // when this server was last known not to be stalled
	news      chan struct{}     // closed at the next report of usage; nil while none is awaited
}

// entry is what is remembered of one node.
type entry struct {
	Observation
	Standing
	usage *v1.NodeResources
	// replicas is the usage of the node's replicas, by uid; see usage.go.
	replicas map[string]*v1.ReplicaUsage

	// live holds the timeouts by which the node is judged.
	live spec.Liveness

	// machine is where the node's session came from, answers whether it answers probes,
	// learnAt when to probe again.
	machine netip.Addr
	answers bool
	learnAt time.Time
	// endSuspicion ends the suspicion that the machine is gone.
	endSuspicion context.CancelFunc

	// measured is when free resources were last sampled, scarce the scarcest resource.
	measured time.Time
	scarce   string
}

// New returns a loop that knows no node yet. probe defaults to TCPProbe.
func New(store *state.Store, proposer Proposer, probe Probe) *Loop {
	if probe == nil {
		probe = TCPProbe
	}
	return &Loop{
		store: store, proposer: proposer, probe: probe,
		wake: make(chan struct{}, 1), unprobed: make(chan struct{}, 1), probes: make(chan struct{}, maxProbes),
		entries: map[string]*entry{}, dirty: map[string]bool{},
	}
}

// Connected is called when a node's session begins, with the address that it came from, if
// known.
func (l *Loop) Connected(uid string, machine netip.Addr, status *v1.NodeStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(uid)
	e.trust()
	e.Connected, e.LastSeen = true, time.Now()
	e.Status, e.usage = lasting(status), status.GetUsage()
	if e.machine != machine {
		e.machine, e.answers, e.learnAt = machine, false, time.Time{}
	}
	if machine.IsValid() && !e.answers {
		e.learnAt = time.Time{}
		l.stranger()
	}
	l.mark(uid)
}

// Heartbeat is called for every heartbeat of a session.
func (l *Loop) Heartbeat(uid string, beat *v1.Heartbeat) {
	snap := l.store.Snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(uid)
	if e.waits() || !e.Connected || beat.GetStatus() != nil {
		l.mark(uid)
	}
	if !e.Connected {
		e.trust()
	}
	e.Connected, e.LastSeen = true, time.Now() // with its monotonic part: a wall clock may jump
	if beat.GetStatus() != nil {
		e.Status = lasting(beat.GetStatus())
	}
	e.usage = beat.GetUsage()
	e.measure()
	e.replicas = measured(snap, uid, e.replicas, beat.GetReplicas())
	l.announce()
}

// Answered is called when an agent has answered a ping.
func (l *Loop) Answered(uid string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered(l.entry(uid).record, took)
}

// Goodbye is called when an agent says that it will not be back soon.
func (l *Loop) Goodbye(uid, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry(uid).Goodbye = cmp.Or(reason, "its agent has said goodbye")
}

// AgentLost is called, again and again, while the agent of a node is gone and its machine
// runs on. running is whether any of the node's replicas still runs.
func (l *Loop) AgentLost(uid string, running bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(uid)
	if running {
		e.Kept = time.Now()
	}
	if e.Deserted = !running; !e.Connected {
		l.mark(uid)
	}
}

// Disconnected is called when a node has no session any more. It is suspected at once.
func (l *Loop) Disconnected(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broke(uid, l.entry(uid))
}

// broke suspects a node that has no session any more, once. The caller holds the lock.
func (l *Loop) broke(uid string, e *entry) {
	if !e.Connected && !e.Broken.IsZero() {
		l.mark(uid)
		return
	}
	e.Connected, e.Broken = false, time.Now()
	if l.leading != nil {
		e.Broke(e.Broken)
		if e.answers && e.Goodbye == "" {
			ctx, cancel := context.WithCancel(l.leading)
			e.endSuspicion = cancel
			machine := e.machine // it may come back from another one meanwhile
			l.work.Go(func() { l.suspect(ctx, uid, machine) })
		}
	}
	l.mark(uid)
}

// trust ends every suspicion against a node.
func (e *entry) trust() {
	if e.endSuspicion != nil {
		e.endSuspicion()
		e.endSuspicion = nil
	}
	e.Gone, e.Goodbye, e.Broken, e.Missed = false, "", time.Time{}, 0
	e.Kept, e.Deserted = time.Time{}, false
	e.Mended()
}

// Observe adds to a node what is known only in memory.
func (l *Loop) Observe(n *v1.Node) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[n.GetMetadata().GetUid()]
	if e == nil {
		return
	}
	n.Status.Usage = e.usage
	if !e.LastSeen.IsZero() {
		n.Status.LastSeen = timestamppb.New(e.LastSeen)
	}
	if l.leading != nil {
		n.Status.Reliability = e.Score(now, e.scarce)
	}
}

// Settle updates the state of a node whose spec was changed.
func (l *Loop) Settle(n *v1.Node) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[n.GetMetadata().GetUid()]
	if e == nil || l.leading == nil {
		return
	}
	settled, _ := judge(now, l.since, n, e.Observation, e.live)
	n.Status = settled.GetStatus()
}

// lasting is the part of an agent's status that is replicated.
func lasting(status *v1.NodeStatus) *v1.NodeStatus {
	kept := proto.CloneOf(status)
	if kept == nil {
		kept = &v1.NodeStatus{}
	}
	kept.State, kept.Reason, kept.Reliability = "", "", nil
	kept.Usage, kept.Requested, kept.LastSeen = nil, nil, nil
	return kept
}

// entry returns what is remembered of a node. The caller holds the lock.
func (l *Loop) entry(uid string) *entry {
	e := l.entries[uid]
	if e == nil {
		e = &entry{Standing: NewStanding(time.Now()), live: spec.DefaultLiveness}
		l.entries[uid] = e
	}
	return e
}

// mark makes a node due. The caller holds the lock.
func (l *Loop) mark(uid string) {
	l.dirty[uid] = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run leads until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer l.work.Wait()
	defer cancel()
	feed := l.store.Follow()
	l.beginLeading(ctx, feed.Newest().Snapshot)
	defer l.endLeading()
	l.work.Go(func() { l.follow(ctx, feed) })
	l.work.Go(func() { l.keepProbing(ctx) })
	l.work.Go(func() { l.detectStalls(ctx) })
	timer, checkpoint := time.NewTimer(0), time.NewTicker(checkpointPause)
	defer timer.Stop()
	defer checkpoint.Stop()
	var next time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
			next, err = l.settle(ctx, l.takeDirty(), next)
		case <-timer.C:
			now := time.Now()
			if l.deaf(now) {
				next = now.Add(deafCheckInterval)
				break
			}
			if len(l.overdue(now)) > 0 {
				drainHeartbeats()
				l.suspectRelayed(now)
			}
			next, err = l.settle(ctx, l.overdue(now), l.nextDeadline(now))
		case <-checkpoint.C:
			err = l.checkpoint(ctx)
		}
		if err != nil {
			return err
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// beginLeading begins to lead: all nodes get the grace time of a new leader.
func (l *Loop) beginLeading(ctx context.Context, snap *state.Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading, l.since = ctx, time.Now()
	l.lastCheck = l.since
	for uid, e := range l.entries {
		if !e.Connected {
			missed := e.Missed
			e.trust()
			delete(l.entries, uid)
			if missed > 0 && snap.Node(uid) != nil {
				l.entry(uid).Missed = missed
			}
		}
	}
	for n := range snap.Nodes("") {
		e := l.entry(n.GetMetadata().GetUid())
		e.Resume(n, l.since)
		l.adopt(e, n, snap.Cluster().GetSpec(), l.since)
		l.mark(n.GetMetadata().GetUid())
	}
}

// endLeading ends leading.
func (l *Loop) endLeading() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = nil
	l.countMissed(time.Now())
	for _, e := range l.entries {
		if e.endSuspicion != nil {
			e.endSuspicion()
			e.endSuspicion = nil
		}
	}
}

// countMissed counts the nodes that were silent during this server's whole term, if the
// term was long enough to hear them. The caller holds the lock.
func (l *Loop) countMissed(now time.Time) {
	for _, e := range l.entries {
		switch {
		case e.waits():
			e.Missed = 0
		case !e.Connected && latest(e.LastSeen, e.Broken).Before(l.since) && now.Sub(latest(l.since, e.NotBefore)) >= e.live.Silence:
			e.Missed++
		}
	}
}

func (l *Loop) takeDirty() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := make([]string, 0, len(l.dirty))
	for uid := range l.dirty {
		due = append(due, uid)
	}
	clear(l.dirty)
	slices.Sort(due)
	return due
}

// overdue are the nodes whose deadline has passed.
func (l *Loop) overdue(now time.Time) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []string
	for uid, e := range l.entries {
		if deadline := e.deadline(l.since); !deadline.IsZero() && !now.Before(deadline) {
			due = append(due, uid)
		}
	}
	slices.Sort(due)
	return due
}

// nextDeadline is the first deadline after now. It may have passed by the time it is used.
func (l *Loop) nextDeadline(now time.Time) (next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if deadline := e.deadline(l.since); deadline.After(now) && (next.IsZero() || deadline.Before(next)) {
			next = deadline
		}
	}
	return next
}

// deadline is when a node must have been heard of again, zero if there is none.
func (e *entry) deadline(since time.Time) time.Time {
	if e.waits() {
		return time.Time{}
	}
	if !e.Connected {
		return e.returnsBy(since, e.live)
	}
	return latest(since, e.NotBefore, e.LastSeen).Add(e.live.Silence)
}

// settle ticks until nothing is left to do for the due nodes, and returns when the next
// tick is due.
func (l *Loop) settle(ctx context.Context, due []string, next time.Time) (time.Time, error) {
	for len(due) > 0 {
		now := time.Now()
		snap := l.store.Snapshot()
		l.adoptAll(snap, due) // before the tick, whose deadlines follow from what is adopted
		batch, until := tick(now, l.since, nodesOf(snap, due), l.seen, state.NewUID)
		if batch.Len() == 0 {
			if !until.IsZero() && (next.IsZero() || until.Before(next)) {
				next = until
			}
			return next, nil
		}
		_, err := l.proposer.Propose(ctx, batch.Transaction(now))
		if err != nil && !state.MovedOn(err) {
			return next, err
		}
	}
	return next, nil
}

// nodesOf yields the existing nodes among uids.
func nodesOf(snap *state.Snapshot, uids []string) func(yield func(*v1.Node) bool) {
	return func(yield func(*v1.Node) bool) {
		for _, uid := range uids {
			if n := snap.Node(uid); n != nil && !yield(n) {
				return
			}
		}
	}
}

// seen gives ticks what is known of a node.
func (l *Loop) seen(n *v1.Node) (Observation, spec.Liveness) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(n.GetMetadata().GetUid())
	return e.Observation, e.live
}
