package rollout

import (
	"maps"
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Daemon is the desired and the actual state of one daemon: one replica on each of some
// nodes.
//
// A replica stays on a node that takes no new ones and leaves a node that no longer suits.
// A replica on an offline node is not covered elsewhere, because that is its place.
// Outdated ones are replaced node by node, as those of services are. With a surge, as many
// nodes at a time start the new replica beside the outdated one.
type Daemon struct {
	// Revision is the uid of the revision that should run.
	Revision string
	Deleting bool
	// Takes are the uids of the nodes that should have a replica, and Keeps those that may
	// keep the one that they have.
	Takes, Keeps map[string]bool
	// Update is how outdated replicas are replaced.
	Update Update
	// Replicas are all known ones, in any order, even ended ones.
	Replicas []Replica
}

// Size is how many replicas there should be: one on each node that takes one, or keeps the one
// that it has.
func (d Daemon) Size() (n int) {
	has := map[string]bool{}
	for _, r := range d.Replicas {
		if spec.Live(r.Phase) && !r.Away {
			has[r.Node] = true
		}
	}
	for node, keeps := range d.Keeps {
		if d.Takes[node] || keeps && has[node] {
			n++
		}
	}
	return n
}

// DaemonStep is what to do now.
type DaemonStep struct {
	// Create are the uids of the nodes that get a replica, sorted.
	Create []string
	// Surge are the uids of nodes on which a replica may start beside the outdated one, if it fits
	// there now, the oldest first. It starts on at most Beside of them.
	Surge  []string
	Beside int
	// The rest is as in Step.
	Lose, Stop, Replace, Succeed []string
	Blocked, Settled             bool
}

// NextOfDaemon returns the next step of a daemon.
func NextOfDaemon(d Daemon) DaemonStep {
	var step DaemonStep
	taken := map[string]bool{} // nodes with a replica, or one that is not gone yet
	wanted := map[string][]Replica{}
	var leaving []string
	stopsOn := map[string]bool{} // nodes on which a replica is stopping
	away, stopping, outdated := 0, false, false
	for _, r := range d.Replicas {
		going := r.Desired == spec.DesiredStopped
		switch {
		case spec.Ended(r.Phase):
		case r.Away && (going || d.Deleting || !d.Keeps[r.Node]):
			step.Lose = append(step.Lose, r.UID)
		case r.Away:
			away++
			taken[r.Node] = true
		case going || r.Phase == spec.PhaseStopping:
			stopping, stopsOn[r.Node] = true, true
			outdated = outdated || r.Revision != d.Revision
			taken[r.Node] = true
			if r.Revision != d.Revision && (r.Phase == spec.PhaseRunning || r.Phase == spec.PhaseStopping) {
				leaving = append(leaving, r.UID)
			}
		default:
			wanted[r.Node] = append(wanted[r.Node], r)
		}
	}

	in := Input{Revision: d.Revision, Update: d.Update}
	var u update
	var successors successors
	stop := func(r Replica) {
		step.Stop = append(step.Stop, r.UID)
		if r.Revision != d.Revision {
			successors.outdated(r)
		}
	}
	var doubled []Replica // outdated, beside a new one that serves
	for node, here := range wanted {
		taken[node] = true
		if d.Deleting || !d.Keeps[node] || here[0].Phase == spec.PhasePending && len(here) == 1 && !d.Takes[node] {
			for _, r := range here {
				stop(r)
			}
			continue
		}
		slices.SortFunc(here, in.leastUseful)
		best, others := here[len(here)-1], here[:len(here)-1]
		if partner := d.partner(best, others); partner != nil {
			if best.Revision == d.Revision {
				doubled = append(doubled, *partner)
			} else {
				u.addCurrent(*partner)
			}
			others = slices.DeleteFunc(others, func(r Replica) bool { return r.UID == partner.UID })
		}
		for _, r := range others {
			stop(r)
		}
		switch {
		case best.Revision == d.Revision:
			u.addCurrent(best)
		case best.Serves && !d.Update.Recreate:
			u.outdated = append(u.outdated, best)
		default: // outdated and not serving: nothing is lost by replacing it
			stop(best)
		}
	}
	step.Succeed = successors.needing(leaving, len(leaving))
	held := d.Update.Recreate && (outdated || len(step.Stop) > 0) // until the outdated ones are gone
	if !d.Deleting && !held {
		for _, node := range slices.Sorted(maps.Keys(d.Takes)) {
			if d.Takes[node] && !taken[node] {
				step.Create = append(step.Create, node)
			}
		}
	}
	if !d.Update.Paused {
		if u.proven() {
			for _, r := range doubled {
				stop(r)
			}
		}
		if len(step.Create) == 0 {
			step.Surge, step.Beside = d.surge(&u, wanted, stopsOn)
			if len(leaving) == 0 && len(step.Stop) == 0 {
				u.outdated = slices.DeleteFunc(u.outdated, func(r Replica) bool { return stopsOn[r.Node] })
				step.Replace = u.replace(in)
				step.Blocked = u.waits() && len(step.Surge)+len(step.Replace) == 0
			}
		}
	}
	slices.Sort(step.Stop)
	slices.Sort(step.Lose)
	step.Settled = len(step.Create)+len(step.Stop)+len(step.Lose)+len(doubled)+away == 0 && u.settled() && !stopping
	return step
}

// partner is the replica that stays on a node beside the best one during an update: the new
// one beside an outdated one that still serves, or the other way round.
func (d Daemon) partner(best Replica, others []Replica) *Replica {
	if d.Update.Surge == 0 || !best.Serves {
		return nil
	}
	for i, r := range slices.Backward(others) {
		if isNew := r.Revision == d.Revision; isNew != (best.Revision == d.Revision) && (isNew || r.Serves) {
			return &others[i]
		}
	}
	return nil
}

// surge lists the nodes on which the new replica may start beside the outdated one, and how many
// of them the update allows now. The list is longer than that, because some may have no room. A
// node on which an earlier replica is still stopping waits, so that there are never three.
func (d Daemon) surge(u *update, wanted map[string][]Replica, stopsOn map[string]bool) (nodes []string, most int) {
	if most = d.Update.Surge - u.starting; most <= 0 || !u.proven() && u.current > u.unplaced {
		return nil, 0
	}
	slices.SortFunc(u.outdated, byAge)
	for _, r := range u.outdated {
		if len(wanted[r.Node]) == 1 && !stopsOn[r.Node] && d.Takes[r.Node] {
			nodes = append(nodes, r.Node)
		}
	}
	return nodes, min(most, len(nodes))
}
