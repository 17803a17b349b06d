package nodes

import (
	"iter"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// maxCheckpoints are written in one transaction.
const maxCheckpoints = 250

// Checkpoint returns transactions that store the scores that have changed since they were
// stored last. fresh is a node's current score, nil if unknown.
func Checkpoint(snap *state.Snapshot, fresh func(uid string) *v1.Reliability) iter.Seq[*state.Batch] {
	return func(yield func(*state.Batch) bool) {
		batch := &state.Batch{}
		for old := range snap.Nodes("") {
			now := fresh(old.GetMetadata().GetUid())
			if now == nil || !worthKeeping(old.GetStatus().GetReliability(), now) {
				continue
			}
			n := proto.CloneOf(old)
			n.Status.Reliability = now
			batch.Update(n, old.GetMetadata().GetVersion())
			if batch.Len() == maxCheckpoints {
				if !yield(batch) {
					return
				}
				batch = &state.Batch{}
			}
		}
		if batch.Len() > 0 {
			yield(batch)
		}
	}
}
