package consensus_test

import (
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
)

// Large entries fill a disk long before their number triggers a snapshot.
func TestLogOfLargeEntriesIsShortened(t *testing.T) {
	leader := cluster(t, 1, func(o *consensus.Options) { o.MaxLogGrowth = 4 << 20 })[0]
	bulk(t, leader.Consensus)
	eventually(t, "a snapshot was taken", func() bool { return leader.Stats().SnapshotIndex > 0 })
	eventually(t, "the log was shortened", func() bool { return leader.FirstLogIndex(t) > 100 })
	propose(t, leader.Consensus, 0, 10)
	if got := leader.Stats().LastIndex - leader.FirstLogIndex(t); got < 64 {
		t.Errorf("only %d entries are kept for servers that lag behind", got)
	}
}
