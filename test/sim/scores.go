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

// resume lets a new leader resume from the scores in the state.
func (v *watch) resume(w *World, snap *state.Snapshot) {
	clear(v.scores)
	clear(v.losses)
	for n := range snap.Nodes("") {
		if s := v.standing(n.GetMetadata().GetUid(), w.clock()); w.flaw != Heedless {
			s.Resume(n, w.clock())
		}
		v.losses[n.GetMetadata().GetUid()] = &losses{
			count: n.GetStatus().GetReliability().GetRecord().GetLosses(), until: w.now, state: n.GetStatus().GetState(),
		}
		v.enter(w, n)
	}
}

// enter notes the state of a node.
func (v *watch) enter(w *World, n *v1.Node) {
	uid, now := n.GetMetadata().GetUid(), n.GetStatus().GetState()
	v.lossesOf(uid).enter(w.now, now)
	if w.flaw == Forgiving && now == "offline" {
		return
	}
	v.standing(uid, w.clock()).Enter(now, w.clock())
}

// broke notes that a session of a node has broken.
func (v *watch) broke(w *World, uid string) {
	v.lossesOf(uid).broken++
	v.standing(uid, w.clock()).Broke(w.clock())
}

// losses are how often a node went offline, with a half-life of six hours, and how many
// other sessions of it broke.
type losses struct {
	count  float64
	until  time.Duration
	broken int
	state  string
}

func (v *watch) lossesOf(uid string) *losses {
	if v.losses[uid] == nil {
		v.losses[uid] = &losses{}
	}
	return v.losses[uid]
}

func (l *losses) enter(now time.Duration, state string) {
	l.pass(now)
	if state == "offline" && l.state != "offline" {
		l.count++
	}
	l.state = state
}

func (l *losses) pass(now time.Duration) {
	l.count *= math.Exp2(-(now - l.until).Hours() / 6)
	l.until = now
}

// explain reports whether a score counts each loss of the node, and nothing but those and
// broken sessions, each as a quarter.
func (l *losses) explain(now time.Duration, counted float64) bool {
	l.pass(now)
	return counted > l.count-0.01 && counted < l.count+float64(l.broken)/4+0.01
}

// scoreEvery is longer than in the product, because most rounds find nothing.
const scoreEvery = 10 * time.Minute

// keepScores stores the scores that have changed, and again after a while.
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
		w.checkScores(s.watch, snap, batch)
		l.t.propose("scores", batch, snap, func(err error) {
			if l.settled(err) {
				again()
			}
		})
		return // worlds are small: there is one
	}
	again()
}

// checkScores checks that a score is made of what is known, and continues the one before,
// from any leader.
func (w *World) checkScores(v *watch, snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		n := change.GetPut().GetNode()
		old := snap.Node(n.GetMetadata().GetUid())
		name, fresh := n.GetMetadata().GetName(), n.GetStatus().GetReliability()
		if !onlyScored(old, n) {
			w.fail("a score changes nothing but itself", "%s: %v became %v", name, old.GetStatus(), n.GetStatus())
		}
		r := fresh.GetRecord()
		if fresh.GetScore() < 0 || fresh.GetScore() > 100 || r.GetOnlineSeconds() > r.GetWatchedSeconds()+1 || r.GetLosses() < 0 {
			w.fail("a score has plausible parts", "%s: %v", name, fresh)
		}
		if l := v.lossesOf(n.GetMetadata().GetUid()); !l.explain(w.now, r.GetLosses()) {
			w.fail("a lost node is trusted less", "%s: %.2f losses were counted, and there were %.2f, and %d broken sessions", name, r.GetLosses(), l.count, l.broken)
		}
		stored := old.GetStatus().GetReliability()
		if stored == nil {
			continue
		}
		// Old observations count less, with a half-life of seven days; nothing else is
		// forgotten.
		passed := w.now - w.oracle.scored[n.GetMetadata().GetUid()].at
		kept := stored.GetRecord().GetWatchedSeconds() * math.Exp2(-passed.Hours()/(7*24))
		if r.GetWatchedSeconds() < kept-1 {
			w.fail("a score continues the previous one", "%s was watched for %.0f s and now for %.0f s, %s later",
				name, stored.GetRecord().GetWatchedSeconds(), r.GetWatchedSeconds(), passed)
		}
	}
}

// scored is the version of a node that only wrote its score, and when that was.
type scored struct {
	version uint64
	at      time.Duration
}

// onlyScored reports whether nothing but a node's score has changed.
func onlyScored(old, now *v1.Node) bool {
	if old == nil || now == nil || proto.Equal(old.GetStatus().GetReliability(), now.GetStatus().GetReliability()) {
		return false
	}
	a, b := proto.CloneOf(old), proto.CloneOf(now)
	a.Status.Reliability, b.Status.Reliability = nil, nil
	a.Metadata, b.Metadata = nil, nil
	return proto.Equal(a, b)
}

// checkNode checks that no other writer loses a node's score, and remembers the writers.
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
		w.fail("no other change loses a score", "%s by %s", now.GetMetadata().GetName(), p.who)
	}
}
