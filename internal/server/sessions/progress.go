package sessions

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// progress is how far replicas have come with what takes long. It is worth
// nothing a moment later, so it is kept here and nowhere else.
type progress struct {
	mu      sync.Mutex
	known   map[string]nodeProgress // by uid of the replica
	changed chan struct{}           // closed when something is new
}

type nodeProgress struct {
	node string
	at   *v1.Progress
}

func newProgress() *progress {
	return &progress{known: map[string]nodeProgress{}, changed: make(chan struct{})}
}

// take keeps what the reports of a node say about the progress of its replicas, and
// returns the reports without it: progress must not reach the replicated state.
func (p *progress) take(snap *state.Snapshot, node string, reports []*v1.ReplicaReport) []*v1.ReplicaReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	var news bool
	rest := make([]*v1.ReplicaReport, len(reports))
	for i, one := range reports {
		rest[i] = one
		at := one.GetStatus().GetProgress()
		if at == nil {
			if known, ok := p.known[one.GetUid()]; ok && known.node == node {
				delete(p.known, one.GetUid())
				news = true
			}
			continue
		}
		status := proto.CloneOf(one.GetStatus())
		status.Progress = nil
		rest[i] = &v1.ReplicaReport{Uid: one.GetUid(), Status: status}
		if snap.Replica(one.GetUid()).GetSpec().GetNodeUid() != node {
			continue // nodes could invent any number of uids
		}
		at.What = brief(at.GetWhat())
		p.known[one.GetUid()] = nodeProgress{node, at}
		news = true
	}
	if news {
		p.announce()
	}
	return rest
}

// forget drops the progress of a replica that is gone.
func (p *progress) forget(replica string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, replica)
}

// forgetMissing does the same for all replicas that a state does not have.
func (p *progress) forgetMissing(snap *state.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.known, func(uid string, _ nodeProgress) bool { return snap.Replica(uid) == nil })
}

// drop forgets what a node that is gone has said.
func (p *progress) drop(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, one := range p.known {
		if one.node == node {
			delete(p.known, uid)
		}
	}
	p.announce()
}

// announce is called with the lock held.
func (p *progress) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// news is closed when something is new.
func (p *progress) news() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// of is a replica as the API shows it.
func (p *progress) of(stored *v1.Replica) *v1.Replica {
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

// Progressed returns a channel that is closed when the progress of a replica changes.
func (s *Sessions) Progressed() <-chan struct{} { return s.progress.news() }

// WithProgress returns a stored replica with its progress.
func (s *Sessions) WithProgress(stored *v1.Replica) *v1.Replica { return s.progress.of(stored) }
