package rollout

import (
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Update says how outdated replicas are replaced.
type Update struct {
	// Surge is how many replicas more than desired there may be, not counting those that are
	// stopping. Without it, outdated replicas are stopped first.
	Surge int
	// MinAvailable is how many replicas must serve at any time, see Spare. Starting first
	// never takes one away that is needed.
	MinAvailable int
	// Recreate stops all outdated replicas before the first new one is created.
	Recreate bool
	// Single lets no replica be created while another one of the workload is alive.
	Single bool
	// Hold keeps outdated replicas that serve, even if they are not needed.
	Hold bool
	// Paused stops the update where it is. Replicas that are missing are still created.
	Paused bool
	// Good is the uid of the revision that a rollback would return to; empty if there is none. Until a replica of the new
	// revision has proven itself, replicas of this one that do not serve now are kept: they may serve again sooner.
	Good string
}

// update is an update in progress.
type update struct {
	// current counts the wanted replicas of the current revision. Of these, starting do not
	// serve yet, unplaced have no node, and steady have served for long enough.
	current, starting, unplaced, steady int
	// outdated are those of other revisions that serve, and recovering those that are kept because they may serve again.
	outdated, recovering []Replica
	// serving are those of the current revision that serve.
	serving []Replica
}

func (u *update) addCurrent(r Replica) {
	u.current++
	switch {
	case r.Serves:
		u.serving = append(u.serving, r)
		if r.Steady {
			u.steady++
		}
	case r.waits():
		u.unplaced++
	default:
		u.starting++
	}
}

// waits reports whether a replica waits for a node, and not for its predecessor.
func (r Replica) waits() bool { return r.Phase == spec.PhasePending && r.Succeeds == "" }

// proven reports whether a replica of the current revision has served for long enough.
func (u *update) proven() bool { return u.steady > 0 }

// waits reports whether outdated replicas are left, and none of the new ones is about to serve.
func (u *update) waits() bool {
	return len(u.outdated)+len(u.recovering) > 0 && u.starting == 0 && (u.proven() || u.current == u.unplaced)
}

func (u *update) settled() bool {
	return len(u.outdated)+len(u.recovering)+u.starting+u.unplaced == 0
}

// still reports whether no replica is about to serve, or to prove itself.
func (u *update) still() bool {
	return len(u.recovering)+u.starting+u.unplaced == 0 && u.steady == len(u.serving) &&
		!slices.ContainsFunc(u.outdated, func(r Replica) bool { return !r.Steady })
}

// recovery returns the revision whose replicas are kept although they do not serve: the last good one, as long as no new
// replica is proven and none needs their room.
func (in Input) recovery(wanted []Replica) string {
	if in.Update.Good == in.Revision || in.Update.Surge == 0 || in.Update.Recreate || in.Update.Hold || in.Deleting {
		return ""
	}
	for _, r := range wanted {
		if r.Revision == in.Revision && (r.Steady || r.waits()) {
			return ""
		}
	}
	return in.Update.Good
}

// recovers reports whether an outdated replica is kept although it does not serve. One without a node has no head start.
func (in Input) recovers(r Replica) bool {
	return in.recovering != "" && r.Revision == in.recovering && !r.Serves && r.Phase != spec.PhasePending
}

// surge is how many replicas may be more than wanted: those of the current revision that have
// a node, as long as outdated ones serve, and no more than the update allows.
func (in Input) surge(replicas []Replica, want int) int {
	outdated, current := 0, 0
	for _, r := range replicas {
		switch {
		case r.Revision == in.Revision:
			if !r.waits() {
				current++
			}
		case r.Serves || in.recovers(r):
			outdated++
		}
	}
	if in.Deleting || in.Update.Recreate {
		return 0
	}
	return max(0, min(in.Update.Surge, outdated, current, outdated+current-want))
}

// retire removes outdated replicas from the update that are not needed any more, and returns
// them. Those in the fullest places go first.
func (u *update) retire(in Input, want int) []Replica {
	surplus := min(len(u.outdated), len(u.outdated)+len(u.serving)-want)
	if surplus <= 0 || !u.proven() || in.Update.Hold {
		return nil
	}
	all := slices.Concat(u.outdated, u.serving)
	in.leastUsefulFirst(all, surplus)
	gone := all[:surplus]
	u.outdated = slices.DeleteFunc(u.outdated, func(r Replica) bool { return slices.Contains(gone, r) })
	return gone
}

// surge is how many replicas to start before outdated ones are stopped. While one has no node,
// more would find none either. While none is proven, one wave of them is enough.
func (u *update) surge(in Input, want int) int {
	if u.unplaced > 0 {
		return 0
	}
	outdated := len(u.outdated) + len(u.recovering)
	room := want + in.Update.Surge - u.current - outdated
	return max(0, min(in.Update.Surge, room, outdated, want-u.current))
}

// replace lists the outdated replicas of which one may make room for its successor: first those that do not serve, and
// then the oldest. A replica without a node is no reason to wait: it may be waiting for that room.
func (u *update) replace(in Input) (uids []string) {
	if in.Update.Hold || !u.waits() {
		return nil
	}
	slices.SortFunc(u.recovering, byAge)
	all := u.recovering
	if serving := len(u.outdated) + len(u.serving); Spare(serving, serving, in.Update.MinAvailable) > 0 {
		slices.SortFunc(u.outdated, byAge)
		all = slices.Concat(all, u.outdated)
	}
	for _, r := range all {
		uids = append(uids, r.UID)
	}
	return uids
}
