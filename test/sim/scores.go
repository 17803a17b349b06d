package sim

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/nodes"
	"github.com/cloudless/cloudless/internal/state"
)

// standing is a node's as the leader keeps it.
func (v *watch) standing(uid string, now time.Time) *nodes.Standing {
	s := v.scores[uid]
	if s == nil {
		made := nodes.NewStanding(now)
		s = &made
		v.scores[uid] = s
	}
	return s
}

// resume is a leader that begins: it goes on from the scores in the state.
func (v *watch) resume(w *World, snap *state.Snapshot) {
	clear(v.scores)
	for n := range snap.Nodes("") {
		if s := v.standing(n.GetMetadata().GetUid(), w.clock()); w.flaw != Heedless {
			s.Resume(n, w.clock())
		}
		v.enter(w, n)
	}
}

// enter notes what the state says of a node.
func (v *watch) enter(w *World, n *v1.Node) {
	h := v.of(n.GetMetadata().GetUid())
	v.standing(n.GetMetadata().GetUid(), w.clock()).Enter(n.GetStatus().GetState(), !h.Broken.IsZero(), w.clock())
}

// scoreEvery is longer than in the product, because most looks find nothing.
const scoreEvery = 10 * time.Minute

// keepScores writes down the scores that have moved, and again after a while.
func (l *loops) keepScores() {
	if l.dead || l.t.over {
		return
	}
	w, s := l.t.w, l.t.server
	again := func() { w.after(scoreEvery, l.keepScores) }
	snap := s.store.Snapshot()
	fresh := func(uid string) *v1.Reliability {
		score := s.watch.standing(uid, w.clock()).Score(w.clock(), "")
		score.Time = timestamppb.New(w.wall(s)) // which may be wrong
		return score
	}
	for batch := range nodes.Checkpoint(snap, fresh) {
		w.checkScores(snap, batch)
		l.t.propose("scores", batch, snap, func(err error) {
			if l.settled(err) {
				again()
			}
		})
		return // worlds are small: there is one
	}
	again()
}

// checkScores holds that a score is made of what is known, and goes on from the
// one before, whoever wrote that.
func (w *World) checkScores(snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		n := change.GetPut().GetNode()
		old := snap.Node(n.GetMetadata().GetUid())
		name, fresh := n.GetMetadata().GetName(), n.GetStatus().GetReliability()
		if !onlyScored(old, n) {
			w.fail("a score changes nothing but itself", "%s: %v became %v", name, old.GetStatus(), n.GetStatus())
		}
		r := fresh.GetRecord()
		if fresh.GetScore() < 0 || fresh.GetScore() > 100 || r.GetOnlineSeconds() > r.GetWatchedSeconds()+1 || r.GetLosses() < 0 {
			w.fail("a score is made of what can be", "%s: %v", name, fresh)
		}
		stored := old.GetStatus().GetReliability()
		if stored == nil {
			continue
		}
		// What is long ago counts less, by half in seven days; nothing else is forgotten.
		passed := w.now - w.oracle.scored[n.GetMetadata().GetUid()].at
		kept := stored.GetRecord().GetWatchedSeconds() * math.Exp2(-passed.Hours()/(7*24))
		if r.GetWatchedSeconds() < kept-1 {
			w.fail("a score goes on from the one before", "%s was watched for %.0f s and now for %.0f s, %s later",
				name, stored.GetRecord().GetWatchedSeconds(), r.GetWatchedSeconds(), passed)
		}
	}
}

// scored is the version of a node that only wrote its score, and when that was.
type scored struct {
	version uint64
	at      time.Duration
}

// onlyScored is whether nothing but a node's score has changed.
func onlyScored(old, now *v1.Node) bool {
	if old == nil || now == nil || proto.Equal(old.GetStatus().GetReliability(), now.GetStatus().GetReliability()) {
		return false
	}
	a, b := proto.CloneOf(old), proto.CloneOf(now)
	a.Status.Reliability, b.Status.Reliability = nil, nil
	a.Metadata, b.Metadata = nil, nil
	return proto.Equal(a, b)
}

// checkNode holds that nobody else loses a node's score, and remembers who wrote
// what.
func (w *World) checkNode(p *proposal, old, now *v1.Node) {
	if old == nil || now == nil {
		return
	}
	uid := now.GetMetadata().GetUid()
	if onlyScored(old, now) {
		w.oracle.scored[uid] = scored{now.GetMetadata().GetVersion(), w.now}
		return
	}
	if p.who != "scores" && !proto.Equal(old.GetStatus().GetReliability(), now.GetStatus().GetReliability()) {
		w.fail("a score is lost by nobody else's change", "%s by %s", now.GetMetadata().GetName(), p.who)
	}
}
