package secrets

import (
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxApplied is how many acknowledgements a message has at most.
const maxApplied = 10_000

// noteApplied acknowledges what a replica has. Before its program has started, that is nothing.
func (k *Keeper) noteApplied(replica string, s *state) {
	now := map[use]bool{}
	for _, e := range s.Entries {
		if s.Started && e.Version > 0 {
			now[use{e.id(), replica}] = true
		}
	}
	for u := range k.applied {
		if u.replica == replica && !now[u] {
			delete(k.applied, u)
			delete(k.unsaid, u)
		}
	}
	for u := range now {
		if !k.applied[u] {
			k.applied[u], k.unsaid[u] = true, true
			k.signal(k.wake)
		}
	}
}

func (k *Keeper) forgetApplied(replica string) { k.noteApplied(replica, &state{}) }

// Connected says that a session with a server has begun, which may know nothing.
func (k *Keeper) Connected() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for u := range k.applied {
		k.unsaid[u] = true
	}
	if len(k.unsaid) > 0 {
		k.signal(k.wake)
	}
}

// Acknowledgements has a token while Take returns something. It is nil in a nil keeper.
func (k *Keeper) Acknowledgements() <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.wake
}

// Take returns what replicas have and the server does not know yet, nil if there is nothing.
func (k *Keeper) Take() *v1.SecretsUp {
	k.mu.Lock()
	defer k.mu.Unlock()
	var applied []*v1.SecretApplied
	for u := range k.unsaid {
		if len(applied) == maxApplied {
			k.signal(k.wake)
			break
		}
		applied = append(applied, &v1.SecretApplied{SecretUid: u.uid, Version: u.version, ReplicaUid: u.replica})
		delete(k.unsaid, u)
	}
	if len(applied) == 0 {
		return nil
	}
	slices.SortFunc(applied, func(a, b *v1.SecretApplied) int {
		return strings.Compare(a.GetReplicaUid()+a.GetSecretUid(), b.GetReplicaUid()+b.GetSecretUid())
	})
	return &v1.SecretsUp{Applied: applied}
}
