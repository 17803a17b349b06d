package sessions

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// progress is how far replicas are with slow work such as pulling an image. It is soon
// outdated, so it stays in the leader's memory.
type progress struct {
	mu      sync.Mutex
	known   map[string]nodeProgress // by uid of the replica
	changed chan struct{}           // closed when any progress changes
}

type nodeProgress struct {
	node string
	at   *v1.Progress
}

func newProgress() *progress {
	return &progress{known: map[string]nodeProgress{}, changed: make(chan struct{})}
}

// extract stores the progress in a node's reports and returns the reports without it,
// because progress must not reach the replicated state.
func (p *progress) extract(snap *state.Snapshot, node string, reports []*v1.ReplicaReport) []*v1.ReplicaReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	var changed bool
	rest := make([]*v1.ReplicaReport, len(reports))
	for i, one := range reports {
		rest[i] = one
		at := one.GetStatus().GetProgress()
		if at == nil {
			if known, ok := p.known[one.GetUid()]; ok && known.node == node {
				delete(p.known, one.GetUid())
				changed = true
			}
			continue
		}
		status := proto.CloneOf(one.GetStatus())
		status.Progress = nil
		rest[i] = &v1.ReplicaReport{Uid: one.GetUid(), Status: status}
		if snap.Replica(one.GetUid()).GetSpec().GetNodeUid() != node {
			continue // a node could invent any number of uids
		}
		at.What = shorten(at.GetWhat())
		p.known[one.GetUid()] = nodeProgress{node, at}
		changed = true
	}
	if changed {
		p.announce()
	}
	return rest
}

// forget drops the progress of a deleted replica.
func (p *progress) forget(replica string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, replica)
}

// forgetMissing drops the progress of all replicas that the state does not have.
func (p *progress) forgetMissing(snap *state.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.known, func(uid string, _ nodeProgress) bool { return snap.Replica(uid) == nil })
}

// forgetNode drops everything that a disconnected node has reported.
func (p *progress) forgetNode(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, one := range p.known {
		if one.node == node {
			delete(p.known, uid)
		}
	}
	p.announce()
}

// announce wakes the watchers. The caller holds the lock.
func (p *progress) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Progressed returns a channel that is closed when the progress of any replica changes.
func (s *Sessions) Progressed() <-chan struct{} {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.changed
}

// WithProgress returns a replica with its progress. It returns the stored replica itself
// if there is none.
func (s *Sessions) WithProgress(stored *v1.Replica) *v1.Replica {
	p := s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[stored.GetMetadata().GetUid()]
	if !ok || known.node != stored.GetSpec().GetNodeUid() {
		return stored
	}
	shown := proto.CloneOf(stored)
	if shown.Status == nil {
		shown.Status = &v1.ReplicaStatus{}
	}
	shown.Status.Progress = known.at
	return shown
}
