package rollout

import "github.com/cloudless/cloudless/internal/spec"

// A canary deployment runs two sets side by side until its last step has held: the base, which is the whole service at its
// last good revision, and the canaries, which are as many replicas of the new revision as its share of the traffic needs.
// Each set is planned as if it were a service of its own. So whatever happens to one of them, the other one keeps its
// replicas: a rollback restarts none, and minAvailable is met by the base alone.

// Canaries is how many replicas of the new revision a share of the traffic, in percent, needs beside the base.
func Canaries(desired, share int) int {
	if desired <= 0 {
		return 0
	}
	return max(1, (desired*share+99)/100)
}

// NextOfCanary returns the next step of both sets: base is the service at its last good revision, and canaries that at its
// new one, with as many replicas as are wanted beside the base. Both know all replicas.
func NextOfCanary(base, canaries Input) (ofBase, ofCanaries Step) {
	all := base.Replicas
	base.Replicas, canaries.Replicas = nil, nil
	for _, r := range all {
		if r.Revision == canaries.Revision {
			canaries.Replicas = append(canaries.Replicas, r)
		} else {
			base.Replicas = append(base.Replicas, r)
		}
	}
	base.Update.Good, canaries.Update.Good = "", "" // neither set waits for the other one to recover
	return Next(base), Next(canaries)
}

// Restarts counts how often the programs of the replicas of a revision have ended by themselves, and names the one that has
// most often.
func Restarts(revision string, replicas []Replica) (count int, worst string) {
	most := 0
	for _, r := range replicas {
		if r.Revision != revision || r.Away || r.Desired == spec.DesiredStopped || spec.Ended(r.Phase) {
			continue
		}
		if count += r.Crashes; r.Crashes > most {
			most, worst = r.Crashes, r.UID
		}
	}
	return count, worst
}
