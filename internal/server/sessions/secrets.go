package sessions

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Secrets go only to nodes with a replica that uses them, by a workload of their audience. A value is decrypted for one
// message and cleared when that is sent.

// maxSecretBytes is how many bytes of values one message has, unless a single value is longer. The others follow at once.
const maxSecretBytes = 1 << 20

// secretsOf are the versions that the replicas of a node get now, without values, by the uids of the values.
func secretsOf(snap *state.Snapshot, node string, now time.Time) map[string]*v1.NodeSecret {
	if snap.Count(state.KindSecret) == 0 {
		return nil
	}
	all := map[string]*v1.NodeSecret{}
	for r := range snap.ReplicasOn(node) {
		if !assignment.Holds(r, node) {
			continue
		}
		for _, use := range secret.UsesOf(snap, r, now) {
			m := use.Secret.GetMetadata()
			key := secret.ValueUID(m.GetUid(), use.Version.GetNumber())
			if all[key] == nil {
				all[key] = &v1.NodeSecret{
					Uid: m.GetUid(), Namespace: m.GetNamespace(), Name: m.GetName(), Version: use.Version.GetNumber(), ExpireTime: use.Version.GetExpireTime(),
				}
			}
			all[key].Replicas = append(all[key].Replicas, r.GetMetadata().GetUid())
		}
	}
	for _, one := range all {
		slices.Sort(one.Replicas)
	}
	return all
}

// nodeSecrets is what one session has sent of secrets. The maps are replaced, never changed.
type nodeSecrets struct {
	began bool // the full set was sent
	// known are the versions that the node has, without values; before is what it had before the last message.
	known, before map[string]*v1.NodeSecret
	// owed are versions that the full set names without their values, which follow.
	owed map[string]bool
}

// has reports whether a node was told that a replica of it gets a version.
func (n *nodeSecrets) has(key, replica string) bool {
	for _, told := range []map[string]*v1.NodeSecret{n.known, n.before} {
		if slices.Contains(told[key].GetReplicas(), replica) {
			return true
		}
	}
	return false
}

// next is the next message to a node that should know the wanted versions, and what it knows then. The message is nil if
// there is nothing to say. open decrypts a value, and returns nil if it cannot. rest says that more has to follow.
func (n *nodeSecrets) next(wanted map[string]*v1.NodeSecret, exists func(uid string) bool, open func(key string) []byte) (down *v1.SecretsDown, after nodeSecrets, rest bool) {
	down = &v1.SecretsDown{Full: !n.began}
	after = nodeSecrets{began: true, known: map[string]*v1.NodeSecret{}, before: n.known, owed: map[string]bool{}}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		one, told := wanted[key], n.known[key]
		if needs := told == nil || n.owed[key]; !needs {
			after.known[key] = one
			if !proto.Equal(told, one) {
				down.Secrets = append(down.Secrets, one) // it has the value
			}
			continue
		}
		if size >= maxSecretBytes {
			rest = true
			if !n.began { // what the full set does not name would be removed there
				down.Secrets = append(down.Secrets, one)
				after.known[key], after.owed[key] = one, true
			} else if n.owed[key] {
				after.known[key], after.owed[key] = n.known[key], true
			}
			continue
		}
		value := open(key)
		if value == nil {
			continue
		}
		size += len(value)
		with := proto.CloneOf(one)
		with.Value = value
		down.Secrets = append(down.Secrets, with)
		after.known[key] = one
	}
	for _, key := range slices.Sorted(maps.Keys(n.known)) {
		gone := n.known[key]
		switch {
		case after.known[key] != nil:
		case rest && exists(gone.GetUid()): // the next version may follow, and no file may be missing until then
			after.known[key] = gone
		case exists(gone.GetUid()):
			down.Secrets = append(down.Secrets, &v1.NodeSecret{Uid: gone.GetUid(), Namespace: gone.GetNamespace(), Name: gone.GetName(), Version: gone.GetVersion()})
		case !slices.Contains(down.Removed, gone.GetUid()):
			down.Removed = append(down.Removed, gone.GetUid())
		}
	}
	if !down.GetFull() && len(down.GetSecrets())+len(down.GetRemoved()) == 0 {
		after.before = n.before
		return nil, after, rest
	}
	return down, after, rest
}

// sendSecrets sends what the node does not know yet of the secrets of its replicas. A node without any gets an empty full
// set, so that it removes what is left of earlier ones.
func (s *Sessions) sendSecrets(stream sessionStream, current *session) error {
	for current.lower(&current.secretsDue) {
		snap := s.Store.Snapshot()
		down, after, rest := current.secrets.next(secretsOf(snap, current.node, s.Now()),
			func(uid string) bool { return snap.Secret(uid) != nil },
			func(key string) []byte { return s.openSecret(snap, key) })
		current.mu.Lock()
		current.secrets = after
		current.secretsDue = current.secretsDue || rest
		current.mu.Unlock()
		if down == nil {
			continue
		}
		err := stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Secrets{Secrets: down}})
		values := 0
		for _, one := range down.GetSecrets() {
			if len(one.GetValue()) > 0 {
				values++
				clear(one.GetValue())
			}
		}
		s.metrics.SecretsSent(values)
		if err != nil {
			return err
		}
	}
	return nil
}

// openSecret decrypts a value for a message. It returns nil if that fails.
func (s *Sessions) openSecret(snap *state.Snapshot, key string) []byte {
	stored := snap.SecretValue(key)
	value, err := secret.Open(unsealer(s.unseal), stored)
	if err != nil {
		s.metrics.SecretFailed("open")
		s.Logger.Error("a secret cannot be decrypted, and nodes do not get it", "secret", snap.Secret(stored.GetSecretUid()).GetMetadata().GetName(), "error", err)
		return nil
	}
	return value
}

// unsealer opens data keys. Sessions never wrap any.
type unsealer func(sealed []byte, use string) ([]byte, error)

func (u unsealer) Unseal(sealed []byte, use string) ([]byte, error) { return u(sealed, use) }

// routeSecret marks the sessions of the nodes that may need to hear of a changed secret.
func (s *Sessions) routeSecret(changed *v1.Secret) {
	m := changed.GetMetadata()
	snap := s.Store.Snapshot()
	for w := range snap.Workloads(m.GetNamespace(), "") {
		uses := secret.Uses(w.GetSpec(), m.GetName())
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			uses = uses || secret.Uses(r.GetSpec().GetWorkload(), m.GetName())
		}
		if !uses {
			continue
		}
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if r.GetSpec().GetNodeUid() == "" || !spec.Live(r.GetStatus().GetPhase()) {
				continue
			}
			if current := s.connected.get(r.GetSpec().GetNodeUid()); current != nil {
				current.markSecrets()
			}
		}
	}
}

func (s *session) markSecrets() { s.raise(&s.secretsDue) }

// mayUseSecrets reports whether the node of a changed replica may need other secrets now.
func (s *Sessions) mayUseSecrets(before, after *v1.Replica) bool {
	snap := s.Store.Snapshot()
	if snap.Count(state.KindSecret) == 0 {
		return false
	}
	r := after
	if r == nil {
		r = before
	}
	revision := snap.Revision(r.GetSpec().GetRevisionUid())
	return revision == nil || len(revision.GetSpec().GetWorkload().GetSecrets()) > 0
}
