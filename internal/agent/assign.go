package agent

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// assign makes a server's message the desired state. It does not wait for replicas.
func (a *Agent) assign(message *v1.Assignments) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outdated.Store(message.GetEpoch() < a.epoch)
	if a.outdated.Load() {
		a.log.Warn("ignored assignments of an older epoch, from a server that the cluster has left behind",
			"epoch", message.GetEpoch(), "newest", a.epoch)
		return nil
	}
	if message.GetEpoch() > a.epoch {
		if err := a.store.saveEpoch(message.GetEpoch()); err != nil {
			return err // otherwise an older epoch could be accepted after a crash
		}
		a.epoch = message.GetEpoch()
	}
	if err := a.configureNetwork(message.GetNode()); err != nil {
		a.log.Error("cannot apply the addresses that the cluster has given this node", "error", err)
	}
	named := map[string]bool{}
	for _, assignment := range message.GetAssign() {
		uid := assignment.GetReplica().GetMetadata().GetUid()
		if !uidPattern.MatchString(uid) {
			a.log.Error("ignored an assignment with an invalid uid", "uid", uid)
			continue
		}
		named[uid] = true
		a.wantReplica(uid, assignment)
	}
	for _, uid := range message.GetRemove() {
		a.removeReplica(uid)
	}
	if message.GetFull() {
		a.removeOthers(named)
	}
	if !isClosed(a.ready) {
		close(a.ready)
	}
	return nil
}

// wantReplica starts the replica, or sets its new desired state.
func (a *Agent) wantReplica(uid string, assignment *v1.Assignment) {
	if r := a.replicas[uid]; r != nil {
		r.want(desired{assignment: forgetStatus(assignment), login: assignment.GetLogin()})
		return
	}
	a.startReplica(newRecord(assignment, a.boot), false, assignment.GetLogin())
}

func (a *Agent) removeReplica(uid string) {
	if r := a.replicas[uid]; r != nil {
		r.want(desired{assignment: r.wanted().assignment, removed: true})
	}
}

// removeOthers removes what a full set of assignments does not name: replicas, tasks
// without a known replica and, after their retention, logs.
func (a *Agent) removeOthers(named map[string]bool) {
	for uid := range a.replicas {
		if !named[uid] {
			a.removeReplica(uid)
		}
	}
	for uid := range a.found {
		a.log.Warn("removing a task that no assignment names", "replica", uid)
		orphan := &v1.Assignment{Replica: &v1.Replica{Metadata: &v1.Metadata{Uid: uid}}}
		rec := newRecord(orphan, a.boot)
		rec.Removed = true
		a.startReplica(rec, false, nil)
	}
	known := func(uid string) bool { return a.replicas[uid] != nil }
	if err := a.logs.releaseUnknown(known); err != nil {
		a.log.Warn("cannot mark logs of removed replicas", "error", err)
	}
}
