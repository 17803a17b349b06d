package nodes

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// follow keeps the entries in line with the state, until ctx ends.
func (l *Loop) follow(ctx context.Context, feed *state.Follower) {
	for {
		news, err := feed.Next(ctx)
		if err != nil {
			return
		}
		if news.Resync {
			l.adoptEverything(news.Snapshot)
		}
		l.learnChanges(news.Changes)
	}
}

func (l *Loop) learnChanges(changes []state.Change) {
	for _, c := range changes {
		switch c.Kind {
		case state.KindCluster:
			before, _ := c.Old.(*v1.Cluster)
			after, _ := c.New.(*v1.Cluster)
			if !proto.Equal(before.GetSpec(), after.GetSpec()) {
				l.adoptEverything(l.store.Snapshot())
			}
		case state.KindNode:
			l.nodeChanged(c)
		case state.KindReplica:
			before, _ := c.Old.(*v1.Replica)
			after, _ := c.New.(*v1.Replica)
			l.replicaChanged(before, after)
		}
	}
}

func (l *Loop) nodeChanged(c state.Change) {
	before, _ := c.Old.(*v1.Node)
	after, _ := c.New.(*v1.Node)
	uid := after.GetMetadata().GetUid()
	if after == nil {
		uid = before.GetMetadata().GetUid()
	}
	l.adoptAll(l.store.Snapshot(), []string{uid}) // which may have moved on since
	l.mu.Lock()
	defer l.mu.Unlock()
	if before == nil || after == nil || !proto.Equal(before.GetSpec(), after.GetSpec()) || before.GetStatus().GetState() != after.GetStatus().GetState() {
		l.mark(uid)
	}
}

// replicaChanged counts the outcomes of first starts: they show whether a node can run its
// replicas. Later exits are not the node's fault.
func (l *Loop) replicaChanged(before, after *v1.Replica) {
	was, is := before.GetStatus().GetPhase(), after.GetStatus().GetPhase()
	if after.GetSpec().GetNodeUid() == "" || was == is || was != spec.PhasePlaced && was != spec.PhasePreparing {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[after.GetSpec().GetNodeUid()]
	switch {
	case e == nil:
	case is == spec.PhaseRunning, is == spec.PhaseCompleted:
		e.record.Started++
	case is == spec.PhaseBackoff, is == spec.PhaseFailed:
		e.record.NotStarted++
	}
}

// adoptEverything copies what a state says of all nodes.
func (l *Loop) adoptEverything(snap *state.Snapshot) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range snap.Nodes("") {
		l.adopt(l.entry(n.GetMetadata().GetUid()), n, snap.Cluster().GetSpec(), now)
		l.mark(n.GetMetadata().GetUid())
	}
}

// adoptAll copies what a state says of some nodes.
func (l *Loop) adoptAll(snap *state.Snapshot, uids []string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uid := range uids {
		if n := snap.Node(uid); n != nil {
			l.adopt(l.entry(uid), n, snap.Cluster().GetSpec(), now)
		} else if e := l.entries[uid]; e != nil && !e.Connected {
			e.trust()
			delete(l.entries, uid)
		}
	}
}

// adopt copies what the state says of a node. The caller holds the lock.
func (l *Loop) adopt(e *entry, n *v1.Node, config *v1.ClusterSpec, now time.Time) {
	if live := spec.LivenessOf(config, n); live != e.live {
		e.live, e.NotBefore = live, now
	}
	if n.GetStatus().GetState() == e.state {
		return
	}
	e.Enter(n.GetStatus().GetState(), now)
	if e.state == spec.NodeOffline {
		l.forget(e)
	}
}

// measureEvery is how often a node's free resources are sampled, and measureWeight is the
// weight of each sample: a short burst does not mean a lack of room.
const (
	measureEvery  = 5 * time.Second
	measureWeight = 0.1
)

func (e *entry) measure() {
	if e.LastSeen.Sub(e.measured) < measureEvery {
		return
	}
	share, scarce, known := free(e.Status.GetCapacity(), e.usage)
	if !known {
		return
	}
	e.measured, e.scarce = e.LastSeen, scarce
	if e.record.FreeShare != nil {
		share = e.record.GetFreeShare() + measureWeight*(share-e.record.GetFreeShare())
	}
	e.record.FreeShare = &share
}

// checkpointPause is the pause between two checks for changed scores.
const checkpointPause = time.Minute

// checkpoint stores the scores that have changed, so that the next leader resumes from
// them.
func (l *Loop) checkpoint(ctx context.Context) error {
	now := time.Now()
	fresh := func(uid string) *v1.Reliability { return l.reliabilityOf(uid, now) }
	for batch := range Checkpoint(l.store.Snapshot(), fresh) {
		_, err := l.proposer.Propose(ctx, batch.Transaction(now))
		if err != nil && !state.MovedOn(err) { // these wait for the next round
			return err
		}
	}
	return nil
}

func (l *Loop) reliabilityOf(uid string, now time.Time) *v1.Reliability {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[uid]; e != nil {
		return e.Score(now, e.scarce)
	}
	return nil
}
