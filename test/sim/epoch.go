package sim

import (
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// actEpoch begins another epoch, as restoring a backup does: messages of the one before no
// longer count.
func (w *World) actEpoch(*rand.Rand) {
	wanted := w.newest().Cluster().GetStatus().GetEpoch() + 1
	w.operate("epoch", func(_ *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Cluster()
		if old.GetStatus().GetEpoch() >= wanted {
			return false
		}
		changed := proto.CloneOf(old)
		changed.Status.Epoch = wanted
		b.Update(changed, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// outdated reports whether assignments are of an older epoch than the agent has seen, which
// it ignores. Its disk remembers the newest.
func (m *machine) outdated(message *v1.Assignments) bool {
	switch {
	case message.GetEpoch() > m.w.oracle.epoch:
		m.w.fail("an epoch is committed before it is announced", "%s gets epoch %d, and %d is the newest", m.name, message.GetEpoch(), m.w.oracle.epoch)
	case message.GetEpoch() < m.epoch:
		m.w.note("%s ignores assignments of epoch %d, because it has seen %d", m.name, message.GetEpoch(), m.epoch)
		return true
	}
	m.epoch = message.GetEpoch()
	return false
}

// fromThePast changes a message to the epoch before.
func fromThePast(message *v1.Assignments) {
	if message.GetEpoch() > 1 {
		message.Epoch--
	}
}
