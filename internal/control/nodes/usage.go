package nodes

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Usage is what nodes and replicas use now, by uid. news is closed at the next report. The
// maps must not be changed.
func (l *Loop) Usage() (nodes map[string]*v1.NodeResources, replicas map[string]*v1.ReplicaUsage, news <-chan struct{}) {
	nodes, replicas = map[string]*v1.NodeResources{}, map[string]*v1.ReplicaUsage{}
	snap := l.store.Snapshot()
	l.mu.Lock()
	defer l.mu.Unlock()
	for node, e := range l.entries {
		if e.usage != nil {
			nodes[node] = e.usage
		}
		for uid, u := range e.replicas {
			if runsOn(snap.Replica(uid), node) {
				replicas[uid] = u
			}
		}
	}
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return nodes, replicas, l.news
}

// announce wakes the goroutines that wait for new usage. The caller holds the lock.
func (l *Loop) announce() {
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// measured is what is kept of a node's usage report: replicas that it runs according to the
// state, under the names that they have there. So a report can take no more memory than the
// node's replicas in the state. A heartbeat without measurements keeps the last ones, as
// long as their replicas exist.
func measured(snap *state.Snapshot, node string, before map[string]*v1.ReplicaUsage, reported []*v1.ReplicaUsage) map[string]*v1.ReplicaUsage {
	if len(reported) == 0 && len(before) == 0 {
		return nil
	}
	kept := map[string]*v1.ReplicaUsage{}
	for _, u := range reported {
		r := snap.Replica(u.GetUid())
		if !runsOn(r, node) {
			continue
		}
		u.Namespace, u.Replica = r.GetMetadata().GetNamespace(), r.GetMetadata().GetName()
		u.Workload, u.Node = r.GetSpec().GetWorkload(), r.GetSpec().GetNode()
		kept[u.GetUid()] = u
	}
	if len(reported) > 0 {
		return kept
	}
	for uid, u := range before {
		if runsOn(snap.Replica(uid), node) {
			kept[uid] = u
		}
	}
	return kept
}

func runsOn(r *v1.Replica, node string) bool {
	return r != nil && r.GetSpec().GetNodeUid() == node && spec.Live(r.GetStatus().GetPhase())
}

// forget drops the usage of a node that has been silent long enough to count as offline.
// The caller holds the lock.
func (l *Loop) forget(e *entry) {
	if e.usage != nil || e.replicas != nil {
		e.usage, e.replicas = nil, nil
		l.announce()
	}
}
