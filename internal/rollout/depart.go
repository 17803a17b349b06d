package rollout

import "slices"

// A replica that must leave its node, because the node drains or has a taint, serves until
// others make up for it: it departs when more replicas than wanted serve. If there is no node
// for the others, the caller may stop it first, as far as Spare allows.

// Spare is how many of the serving replicas of a workload may be stopped now for a reason that
// can wait: an update, a drain or a preemption. minAvailable of them go on serving. With a
// minAvailable of 0, at most one of those that are wanted may be missing.
func Spare(serving, want, minAvailable int) int {
	floor := minAvailable
	if floor == 0 {
		floor = want - 1
	}
	return max(0, serving-max(0, min(floor, want)))
}

// depart returns the uids of the departing replicas that may go now. Those that are of no use
// where they are go at once. kept are the replicas that stay and serve.
func (in Input) depart(departing, kept []Replica, want int) (uids []string) {
	serving := 0
	for _, r := range kept {
		if r.Steady && !r.Idle {
			serving++
		}
	}
	var useful []Replica
	for _, r := range departing {
		if r.Serves && !r.Idle {
			useful = append(useful, r)
		} else {
			uids = append(uids, r.UID)
		}
	}
	slices.SortFunc(useful, in.leastUseful)
	for _, r := range useful[:max(0, min(len(useful), serving+len(useful)-want))] {
		uids = append(uids, r.UID)
	}
	slices.Sort(uids)
	return uids
}
