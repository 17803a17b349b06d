package sim

import (
	"fmt"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/state"
)

// taintKey is that of the only taint there is.
const taintKey = "only"

// actMark changes a node's labels, price or taints.
func (w *World) actMark(c *rand.Rand) {
	m := w.machine(c)
	if m == nil {
		return
	}
	uid, what, value := m.uid, c.IntN(3), c.IntN(3)
	w.operate(fmt.Sprintf("mark %s %d %d", m.name, what, value), func(_ *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Node(uid)
		if old == nil {
			return false
		}
		n := proto.CloneOf(old)
		switch what {
		case 0:
			n.Metadata.Labels["zone"] = string(rune('a' + value))
		case 1:
			n.Spec.Price = int64(value)
		default:
			n.Spec.Taints = nil
			if effects := []string{"", scheduler.NoSchedule, scheduler.PreferNoSchedule}; value > 0 {
				n.Spec.Taints = []*v1.Taint{{Key: taintKey, Effect: effects[value], Time: timestamppb.New(w.clock())}}
			}
		}
		if proto.Equal(n, old) {
			return false
		}
		b.Update(n, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// refusedByTaint reports whether a taint keeps new replicas from a node.
func refusedByTaint(n *v1.Node, tolerations []scheduler.Toleration) bool {
	for _, t := range n.GetSpec().GetTaints() {
		_, borne := scheduler.Tolerates(tolerations, scheduler.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect()})
		if t.GetEffect() != scheduler.PreferNoSchedule && !borne {
			return true
		}
	}
	return false
}
