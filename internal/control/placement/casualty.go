package placement

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A workload that takes its node down, by a kernel panic or by using up the machine, must not
// take down the next node at once, and the one after that. So each replica that replaces a lost
// one knows how many in a row were lost soon after they had started. From the second on, the
// next one waits, each time twice as long. The same holds for replicas that nodes evict for lack
// of memory again and again.
//
// The count is part of the replicas, so a new leader knows it. It begins again with a new
// revision, and with a replica that ran for long.

const (
	// CauseLost, CauseEvicted and CauseMoved are the values of v1.Replaced.Cause. The last one has nothing to do with
	// casualties, see rebalance.go.
	CauseLost    = "lost"
	CauseEvicted = "evicted"
	CauseMoved   = "moved"

	// soon is within how long of its start the loss of a replica counts against its workload.
	// That is not longer than the first pause: a replica that was replaced at once must not be
	// blamed for a node that it shares with the next attempt of the one that is to blame.
	soon = time.Minute
	// soonSuspected is the same for a suspect, and soonEvicted for an eviction.
	soonSuspected = 10 * time.Minute
	soonEvicted   = 10 * time.Minute

	// suspected is from how many in a row on the next one waits.
	suspected = 2
	// firstPause is the pause before the third node, which doubles up to longestPause.
	firstPause, longestPause = time.Minute, 30 * time.Minute

	// bystanders is how many other nodes, without a replica of the workload, must be lost at
	// about the same time for something else to be the cause, such as the power of a zone.
	bystanders, sameTime = 2, 15 * time.Second

	// clockNoise is how much earlier than its replica a node may seem to have been heard last.
	clockNoise = 5 * time.Second

	// clockSkew is how far in the future a time may be that the servers have written. One beyond
	// that is from a leader whose clock was wrong, and nothing waits for it.
	clockSkew = time.Minute

	// maxChain is how many nodes of a chain are remembered.
	maxChain = 10
)

// Casualty is a replica that its node has taken down, or took with it.
type Casualty struct {
	Replica *v1.Replica
	Cause   string
	// Times is how many in a row ended that way soon after they had started, with this one.
	Times int
	// Nodes are theirs, newest last.
	Nodes []string
	// End is when it ended, as far as known, and Ran how long it had run.
	End time.Time
	Ran time.Duration
}

// Losses reads what the losses of nodes mean for replicas, from one snapshot.
type Losses struct {
	snap *state.Snapshot
	// offline are the nodes that were lost without notice; nil until they are needed.
	offline []*v1.Node
	// others are when those of them were lost that never had a replica of a workload, by uid.
	others map[string][]time.Time
}

// NewLosses reads a snapshot.
func NewLosses(snap *state.Snapshot) *Losses {
	return &Losses{snap: snap, others: map[string][]time.Time{}}
}

// Of is what the loss of its node means for a replica of the current revision.
func (l *Losses) Of(r *v1.Replica) Casualty {
	c := Casualty{Replica: r, Cause: CauseLost}
	n := l.snap.Node(r.GetSpec().GetNodeUid())
	seen := n.GetStatus().GetLastSeen()
	if seen == nil {
		return c
	}
	c.End = seen.AsTime()
	c.Ran = c.End.Sub(began(r, c.End))
	limit := soon
	if chainOf(r).GetTimes() >= suspected {
		limit = soonSuspected
	}
	if c.Ran > limit || c.Ran < -clockNoise || !reached(r) || announced(n) || l.othersLost(r.GetSpec().GetWorkloadUid(), c.End) {
		return c
	}
	return c.next(n.GetMetadata().GetName())
}

// othersLost reports whether nodes that had nothing to do with a workload were lost at about the
// same time.
func (l *Losses) othersLost(workload string, at time.Time) bool {
	times, known := l.others[workload]
	if !known {
		times = l.lostWithout(workload)
		l.others[workload] = times
	}
	first := sort.Search(len(times), func(i int) bool { return !times[i].Before(at.Add(-sameTime)) })
	return first+bystanders <= len(times) && !times[first+bystanders-1].After(at.Add(sameTime))
}

// lostWithout is when the nodes were lost that never had a replica of a workload, sorted.
func (l *Losses) lostWithout(workload string) (times []time.Time) {
	if l.offline == nil {
		l.offline = []*v1.Node{}
		for n := range l.snap.Nodes("") {
			if n.GetStatus().GetState() == spec.NodeOffline && n.GetStatus().GetLastSeen() != nil && !announced(n) {
				l.offline = append(l.offline, n)
			}
		}
	}
	hosts := map[string]bool{}
	for r := range l.snap.ReplicasOf(workload) {
		hosts[r.GetSpec().GetNodeUid()] = true
	}
	for _, n := range l.offline {
		if !hosts[n.GetMetadata().GetUid()] {
			times = append(times, n.GetStatus().GetLastSeen().AsTime())
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// Evicted is what the eviction of a replica means.
func Evicted(r *v1.Replica) Casualty {
	c := Casualty{Replica: r, Cause: CauseEvicted, End: r.GetMetadata().GetUpdateTime().AsTime()}
	if c.Ran = c.End.Sub(began(r, c.End)); c.Ran > soonEvicted {
		return c
	}
	return c.next(r.GetSpec().GetNode())
}

// WasEvicted reports whether its node has evicted a replica that its workload still wants.
func WasEvicted(r *v1.Replica) bool {
	return r.GetStatus().GetPhase() == spec.PhaseStopped && r.GetSpec().GetDesired() != spec.DesiredStopped && r.GetSpec().GetNodeUid() != ""
}

// next adds a casualty to the chain that its replica belongs to.
func (c Casualty) next(node string) Casualty {
	before := chainOf(c.Replica)
	c.Times, c.Nodes = int(before.GetTimes())+1, slices.Clone(before.GetNodes())
	c.Nodes = append(slices.DeleteFunc(c.Nodes, func(other string) bool { return other == node }), node)
	c.Nodes = c.Nodes[max(0, len(c.Nodes)-maxChain):]
	return c
}

// chainOf is what a replica remembers of the casualties before it. One that was moved has run for long.
func chainOf(r *v1.Replica) *v1.Replaced {
	if r.GetSpec().GetReplaces().GetCause() == CauseMoved {
		return nil
	}
	return r.GetSpec().GetReplaces()
}

// Suspect reports whether the replacement has to wait.
func (c Casualty) Suspect() bool { return c.Times >= suspected }

// NotBefore is when a replacement may be placed.
func (c Casualty) NotBefore(now time.Time) time.Time {
	end := c.End
	if end.After(now.Add(clockSkew)) {
		end = now
	}
	return end.Add(Pause(c.Times, c.Replica.GetSpec().GetWorkloadUid()))
}

// Recent reports whether a casualty is no older than its pause.
func (c Casualty) Recent(now time.Time) bool {
	return now.Before(c.NotBefore(now)) && !c.End.After(now.Add(clockSkew))
}

// Believable reports whether the time for which a replica waits can be right.
func Believable(now time.Time, r *v1.Replica) bool {
	longest := Pause(int(r.GetSpec().GetReplaces().GetTimes()), r.GetSpec().GetWorkloadUid())
	return !r.GetSpec().GetNotBefore().AsTime().After(now.Add(max(longest, longestPause) + clockSkew))
}

// Replaced is how the replacement remembers what it replaces.
func (c Casualty) Replaced() *v1.Replaced {
	return &v1.Replaced{ReplicaUid: c.Replica.GetMetadata().GetUid(), Cause: c.Cause, Times: int32(c.Times), Nodes: c.Nodes}
}

// Pause is how long after the last of so many casualties the next replica may be placed. It is
// up to a quarter longer for some workloads than for others: if two of them come to the same
// node at the same time again and again, nobody knows which one is to blame.
func Pause(times int, workload string) time.Duration {
	if times < suspected {
		return 0
	}
	pause := longestPause
	if doubled := times - suspected; doubled < 8 {
		pause = min(pause, firstPause<<doubled)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(workload))
	return (pause + pause/4*time.Duration(h.Sum32()%100)/100).Truncate(time.Second)
}

// began is when a replica began to be on its node, as far as the servers' clocks tell: that of
// the node may be wrong.
func began(r *v1.Replica, end time.Time) time.Time {
	at := r.GetMetadata().GetCreateTime().AsTime()
	if placed := r.GetSpec().GetNotBefore(); placed != nil && placed.AsTime().After(at) {
		at = placed.AsTime()
	}
	started := r.GetStatus().GetStartTime()
	switch {
	case r.GetStatus().GetRestarts() > 0: // the start of the newest attempt says nothing
	case started == nil && spec.Live(r.GetStatus().GetPhase()):
		at = r.GetMetadata().GetUpdateTime().AsTime() // it is being started, perhaps again after a reboot
	case started != nil && started.AsTime().After(at) && !started.AsTime().After(end.Add(clockNoise)):
		at = started.AsTime()
	}
	return at
}

// reached reports whether a replica has come to its node: the agent has said something of it.
func reached(r *v1.Replica) bool {
	switch r.GetStatus().GetPhase() {
	case spec.PhasePending, spec.PhasePlaced, "":
		return false
	}
	return true
}

// announced reports whether a node was about to go anyway.
func announced(n *v1.Node) bool {
	return n.GetStatus().GetSaidGoodbye() || n.GetSpec().GetAvailability() == spec.AvailabilityDraining ||
		slices.ContainsFunc(n.GetStatus().GetConditions(), func(c *v1.Condition) bool { return c.GetType() == spec.Departing && c.GetStatus() })
}

// Held reports whether a replica without a node waits for a time.
func Held(r *v1.Replica) bool {
	return r.GetSpec().GetNodeUid() == "" && r.GetSpec().GetNotBefore() != nil && !spec.Ended(r.GetStatus().GetPhase())
}

// HeldBack reports whether a replica has to wait for a time that has not come.
func HeldBack(now time.Time, r *v1.Replica) bool {
	return Held(r) && now.Before(r.GetSpec().GetNotBefore().AsTime())
}

// HeldReason says why a replica waits for a time, and what to do about it.
func HeldReason(r *v1.Replica) string {
	replaced := r.GetSpec().GetReplaces()
	nodes := strings.Join(replaced.GetNodes(), ", ")
	var what string
	switch {
	case replaced.GetCause() == CauseEvicted:
		what = fmt.Sprintf("the last %d replicas in a row were evicted for lack of memory soon after they had started (on %s)", replaced.GetTimes(), nodes)
	case len(replaced.GetNodes()) == 1:
		what = fmt.Sprintf("its node %s was lost %d times in a row soon after a replica had started there", nodes, replaced.GetTimes())
	default:
		what = fmt.Sprintf("its last %d nodes (%s) were lost soon after a replica had started there", len(replaced.GetNodes()), nodes)
	}
	return fmt.Sprintf("waits until %s: %s; fix it, or try at once: %s",
		r.GetSpec().GetNotBefore().AsTime().UTC().Format("2006-01-02 15:04:05 MST"), what,
		spec.Hint(r.GetMetadata().GetNamespace(), "cloudless workload restart "+r.GetSpec().GetWorkload()))
}

// TrialEnds is when a replica that had to wait for a time has survived for long enough. It is
// not known before the replica runs.
func TrialEnds(now time.Time, r *v1.Replica) (at time.Time, begun bool) {
	if r.GetStatus().GetStartTime() == nil {
		return at, false
	}
	if at = began(r, now); at.After(now.Add(clockSkew)) {
		return now, true
	}
	return at.Add(Pause(int(r.GetSpec().GetReplaces().GetTimes()), r.GetSpec().GetWorkloadUid())), true
}
