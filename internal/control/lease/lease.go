// Package lease decides when a singleton's replica has certainly stopped on a node that nobody hears.
//
// A node runs such a replica only while it has a lease from the leader. It asks for a new one with its heartbeats, and
// counts the lease from the moment when it sent the heartbeat. The leader counts from the moment when it grants the
// lease, which is later, and adds a margin. So when the lease has expired here, it expired on the node before.
//
// A leader grants only after a majority of the servers has confirmed that it still leads. So every lease of an earlier
// leader began before the term of this one, and a leader that waits a whole lease from the beginning of its term has
// waited for all of them.
//
// The package has no clock and reads only a snapshot. It must not know sessions, nor what becomes of a replica.
package lease

import (
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// Duration is how long a node may run a singleton after the heartbeat with which it asked for the lease.
	Duration = 15 * time.Second
	// margin is for killing the replica, and for clocks of different speed.
	margin = 2 * time.Second
)

// Table holds the leases that the leader has granted. Its zero value is that of a leader whose term began long ago.
type Table struct {
	mu sync.Mutex
	// since is when the leader's term began.
	since time.Time
	// expires is when leases have certainly expired, by replica uid.
	expires map[string]time.Time
	// fenced are the replicas that get no lease any more.
	fenced map[string]bool
}

// Begin notes that a term has begun. Leases of earlier leaders may still be valid.
func (t *Table) Begin(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.expires, t.fenced = now, map[string]time.Time{}, map[string]bool{}
}

// Grant grants leases to those replicas of a node that may have one, and returns their uids. The snapshot must be one
// that a majority of the servers has confirmed after the node asked.
func (t *Table) Grant(now time.Time, snap *state.Snapshot, node string, replicas []string) (granted []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expires == nil {
		t.expires = map[string]time.Time{}
	}
	for _, uid := range replicas {
		r := snap.Replica(uid)
		if r.GetSpec().GetNodeUid() != node || !spec.Live(r.GetStatus().GetPhase()) || t.fenced[uid] {
			continue
		}
		t.expires[uid] = now.Add(Duration + margin)
		granted = append(granted, uid)
	}
	return granted
}

// Fence reports whether a replica's lease has certainly expired. If so, the replica gets no new one until Admit, so
// that another replica may take its place. Otherwise it returns when to ask again.
func (t *Table) Fence(now time.Time, replica string) (again time.Time, fenced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	again = t.since.Add(Duration + margin)
	if until := t.expires[replica]; until.After(again) {
		again = until
	}
	if now.Before(again) {
		return again, false
	}
	if t.fenced == nil {
		t.fenced = map[string]bool{}
	}
	t.fenced[replica] = true
	delete(t.expires, replica)
	return time.Time{}, true
}

// Admit lets a replica have leases again: it was fenced, but not replaced before its node came back.
func (t *Table) Admit(replica string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.fenced, replica)
}
