package consensus_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// A snapshot is written in many pieces, with pauses for more urgent work, and is complete at the end.
func TestSnapshotPausesBetweenItsPieces(t *testing.T) {
	var pauses atomic.Int64
	o := lone(t.TempDir())
	o.Pause = func(context.Context) bool { return pauses.Add(1) > 0 }
	c := open(t, o)
	const tokens = 40
	for n := range tokens {
		name := fmt.Sprintf("large-%d", n)
		var b state.Batch
		b.Put(&v1.Token{Metadata: &v1.Metadata{Uid: name, Name: name, Annotations: map[string]string{"large": strings.Repeat("x", 64<<10)}}})
		if _, err := c.Propose(t.Context(), b.Transaction(time.Unix(1_700_000_000, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Raft().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if pauses.Load() < tokens/2 {
		t.Errorf("it paused %d times", pauses.Load())
	}
	closed(t, c)
	if got := open(t, lone(o.Dir)).Stale().Count(state.KindToken); got != tokens {
		t.Errorf("%d of %d tokens came back", got, tokens)
	}
}

// Data goes to disk on the way, not at the end: the file is where raft has it.
func TestSnapshotIsSyncedOnTheWay(t *testing.T) {
	if found, fresh := consensus.Save(t, 10<<20); !found || fresh > 2<<20 {
		t.Errorf("the file was found: %v; %d bytes are left for the end", found, fresh)
	}
}

// However the beginning of a log is deleted, the right entries are left.
func TestLogIsShortenedStepByStep(t *testing.T) {
	for _, tt := range []struct{ first, last, oldest, newest uint64 }{
		{1, 150, 151, 200},   // several entries in a step
		{11, 20, 21, 200},    // fewer entries than steps
		{1, 5, 11, 200},      // what is gone already
		{1, 199, 200, 200},   // all but one
		{1, 300, 0, 0},       // all
		{150, 200, 11, 149},  // the end
		{11, 11, 12, 200},    // one
		{201, 300, 11, 200},  // what is not there yet
		{150, 1000, 11, 149}, // more than there is
	} {
		if oldest, newest := consensus.DeleteRange(t, 11, 200, tt.first, tt.last); oldest != tt.oldest || newest != tt.newest {
			t.Errorf("without %d to %d there are %d to %d, want %d to %d", tt.first, tt.last, oldest, newest, tt.oldest, tt.newest)
		}
	}
}
