package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

var _ raft.MonotonicLogStore = recentLog{}

// The cache returns what was written last at each index, and never exceeds its bounds.
func TestRecentEntriesMatchTheLog(t *testing.T) {
	zeros := make([]byte, maxRecentSize/20)
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		written := map[uint64]raft.Log{}
		next := uint64(rapid.IntRange(1, 100).Draw(t, "first"))
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "cut") == 0 { // the end was written by a leader that lost
				next -= min(next-1, uint64(rapid.IntRange(0, 20).Draw(t, "back")))
				r.forget()
			}
			var batch []*raft.Log
			size := rapid.SampledFrom([]int{0, 10, 1000, len(zeros)}).Draw(t, "size")
			for range rapid.IntRange(1, 200).Draw(t, "batch") {
				entry := raft.Log{Index: next, Term: uint64(len(batch)), Data: zeros[:size]}
				written[next] = entry
				batch = append(batch, &entry)
				next++
			}
			r.add(batch)
			remembered, sum := 0, 0
			for index := range next + 2 {
				var got raft.Log
				if !r.get(index, &got) {
					continue
				}
				remembered++
				sum += len(got.Data)
				if want := written[index]; got.Index != index || got.Term != want.Term || len(got.Data) != len(want.Data) || index >= next {
					t.Fatalf("entry %d is %d of term %d", index, got.Index, got.Term)
				}
			}
			if remembered > maxRecent || sum > maxRecentSize || sum != r.size {
				t.Fatalf("%d entries with %d bytes are remembered, %d are counted", remembered, sum, r.size)
			}
			if remembered == 0 {
				t.Fatal("nothing is remembered")
			}
		}
	})
}
