package sessions

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/state"
)

// Nodes acknowledge which replica has which version. What they say counts only for their own replicas and for what they were
// sent, or must be sent by the state. It is written in batches, while the last one is being committed.

// maxDeliveries is how many versions of one secret are remembered for each replica.
const maxDeliveries = 10

// maxSecretReceipts is how many receipts one transaction writes.
const maxSecretReceipts = 512

// delivered is what a node has acknowledged.
type delivered struct {
	node, replica, secret string
	version               uint64
}

// deliveries queues acknowledgements until they are written.
type deliveries struct {
	mu      sync.Mutex
	waiting map[delivered]bool
}

func (d *deliveries) add(one delivered) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[delivered]bool{}
	}
	d.waiting[one] = true
}

// take returns and clears what waits, the acknowledgements of one replica and secret beside each other.
func (d *deliveries) take() []delivered {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := slices.SortedFunc(maps.Keys(d.waiting), func(a, b delivered) int {
		return cmp.Or(cmp.Compare(a.secret, b.secret), cmp.Compare(a.replica, b.replica), cmp.Compare(a.node, b.node), cmp.Compare(a.version, b.version))
	})
	d.waiting = nil
	return taken
}

// hearSecrets queues what a node acknowledges, if it counts and is news.
func (s *Sessions) hearSecrets(current *session, up *v1.SecretsUp) {
	snap := s.Store.Snapshot()
	current.mu.Lock()
	sent := current.secrets
	current.mu.Unlock()
	var wanted map[string]*v1.NodeSecret // computed only if it is needed
	for _, a := range up.GetApplied() {
		one := delivered{node: current.node, replica: a.GetReplicaUid(), secret: a.GetSecretUid(), version: a.GetVersion()}
		if one.of(snap) == nil || one.known(snap) {
			continue
		}
		key := secret.ValueUID(one.secret, one.version)
		if !sent.has(key, one.replica) {
			// After a change of the leader, nodes may acknowledge first.
			if wanted == nil {
				wanted = secretsOf(snap, current.node, s.Now())
			}
			if !slices.Contains(wanted[key].GetReplicas(), one.replica) {
				s.metrics.SecretFailed("refused")
				continue
			}
		}
		s.deliveries.add(one)
	}
	s.reports.signal()
}

// of returns the replica if it is the node's, or nil.
func (d *delivered) of(snap *state.Snapshot) *v1.Replica {
	if r := snap.Replica(d.replica); r.GetSpec().GetNodeUid() == d.node && snap.Secret(d.secret) != nil {
		return r
	}
	return nil
}

// known reports whether the state has the acknowledgement.
func (d *delivered) known(snap *state.Snapshot) bool {
	return slices.ContainsFunc(snap.SecretReceipt(secret.ReceiptUID(d.secret, d.replica)).GetDeliveries(), func(one *v1.SecretDelivery) bool {
		return one.GetVersion() == d.version
	})
}

// writeDeliveries writes acknowledgements in batches.
func (s *Sessions) writeDeliveries(ctx context.Context, all []delivered) error {
	for part := range slices.Chunk(all, maxSecretReceipts) {
		written := 0
		_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			written = 0
			for receipt := range receipts(part) {
				written += s.addReceipt(snap, b, receipt)
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.metrics.SecretsDelivered(written)
	}
	return nil
}

// receipts yields the acknowledgements of one replica and secret together.
func receipts(all []delivered) func(yield func([]delivered) bool) {
	return func(yield func([]delivered) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].secret == all[0].secret && all[n].replica == all[0].replica {
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// addReceipt adds what is news to the receipt of one replica and secret, and returns how much that is.
func (s *Sessions) addReceipt(snap *state.Snapshot, b *state.Batch, all []delivered) (added int) {
	uid := secret.ReceiptUID(all[0].secret, all[0].replica)
	old := snap.SecretReceipt(uid)
	receipt := proto.CloneOf(old)
	if old == nil {
		receipt = &statev1.SecretReceipt{Metadata: &v1.Metadata{Uid: uid}, SecretUid: all[0].secret}
	}
	for _, one := range all {
		r := one.of(snap)
		if r == nil || one.known(snap) {
			continue
		}
		of := snap.Secret(one.secret).GetMetadata()
		receipt.Deliveries = slices.Insert(receipt.Deliveries, 0, &v1.SecretDelivery{
			Namespace: of.GetNamespace(), Secret: of.GetName(), Version: one.version, Workload: r.GetSpec().GetWorkload(), Replica: r.GetMetadata().GetName(),
			ReplicaUid: one.replica, Node: r.GetSpec().GetNode(), NodeUid: one.node, Time: timestamppb.New(s.Now()),
		})
		added++
	}
	receipt.Deliveries = receipt.Deliveries[:min(len(receipt.Deliveries), maxDeliveries)]
	switch {
	case added == 0:
	case old == nil:
		b.Create(receipt)
	default:
		b.Update(receipt, old.GetMetadata().GetVersion())
	}
	return added
}
