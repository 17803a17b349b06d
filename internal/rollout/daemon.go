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
// Outdated ones are replaced node by node, as those of services are.
type Daemon struct {
	// Revision is the uid of the revision that should run.
	Revision string
	Deleting bool
	// Takes are the uids of the nodes that should have a replica, and Keeps those that may
	// keep the one that they have.
	Takes, Keeps map[string]bool
	// Replicas are all known ones, in any order, even ended ones.
	Replicas []Replica
}

// DaemonStep is what to do now.
type DaemonStep struct {
	// Create are the uids of the nodes that get a replica, sorted.
	Create []string
	// The rest is as in Step.
	Lose, Stop, Replace, Succeed []string
	Settled                      bool
}

// NextOfDaemon returns the next step of a daemon.
func NextOfDaemon(d Daemon) DaemonStep {
	var step DaemonStep
	taken := map[string]bool{} // nodes with a replica, or one that is not gone yet
	wanted := map[string][]Replica{}
	var leaving []string
	away, stopping := 0, false
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
			stopping = true
			taken[r.Node] = true
			if r.Revision != d.Revision && (r.Phase == spec.PhaseRunning || r.Phase == spec.PhaseStopping) {
				leaving = append(leaving, r.UID)
			}
		default:
			wanted[r.Node] = append(wanted[r.Node], r)
		}
	}

	in := Input{Revision: d.Revision}
	stop := func(r Replica) { step.Stop = append(step.Stop, r.UID) }
	var running []Replica
	var successors successors
	starting, unplaced := 0, 0
	for node, here := range wanted {
		taken[node] = true
		if d.Deleting || !d.Keeps[node] || here[0].Phase == spec.PhasePending && len(here) == 1 && !d.Takes[node] {
			for _, r := range here {
				stop(r)
			}
			continue
		}
		slices.SortFunc(here, in.leastUseful)
		for _, r := range here[:len(here)-1] {
			stop(r)
		}
		switch r := here[len(here)-1]; {
		case r.Revision == d.Revision && r.Serves:
		case r.Revision == d.Revision && r.Phase == spec.PhasePending && r.Succeeds == "":
			unplaced++
		case r.Revision == d.Revision:
			starting++
		case r.Serves:
			running = append(running, r)
		default: // outdated and not running: nothing is lost by replacing it
			stop(r)
			successors.outdated(r)
		}
	}
	step.Succeed = successors.needing(leaving, len(leaving))
	if !d.Deleting {
		for _, node := range slices.Sorted(maps.Keys(d.Takes)) {
			if d.Takes[node] && !taken[node] {
				step.Create = append(step.Create, node)
			}
		}
	}
	if len(running) > 0 && starting == 0 && len(leaving) == 0 && len(step.Stop) == 0 && len(step.Create) == 0 {
		slices.SortFunc(running, byAge)
		for _, r := range running {
			step.Replace = append(step.Replace, r.UID)
		}
	}
	slices.Sort(step.Stop)
	slices.Sort(step.Lose)
	step.Settled = len(step.Create)+len(step.Stop)+len(step.Lose)+len(running)+starting+unplaced+away == 0 && !stopping
	return step
}
