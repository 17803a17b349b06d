package replicas

import (
	"slices"
	"sort"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// history is when replicas were created for one cause, so that a rate can be limited. It follows
// from the replicas themselves: a new leader goes on where the last one stopped.
type history struct {
	// cause is that of v1.Replaced.
	cause string
	// recent are the times, oldest first. They are not read until they are needed.
	recent []time.Time
	known  bool
}

// createdFor is when a replica was created for a cause; zero if it was not.
func createdFor(r *v1.Replica, cause string) (at time.Time) {
	if r.GetSpec().GetReplaces().GetCause() != cause {
		return at
	}
	return r.GetMetadata().GetCreateTime().AsTime()
}

// follow notes a new replica.
func (h *history) follow(before, after *v1.Replica) {
	if at := createdFor(after, h.cause); h.known && before == nil && !at.IsZero() {
		h.add(at)
	}
}

func (h *history) add(at time.Time) {
	i := sort.Search(len(h.recent), func(i int) bool { return h.recent[i].After(at) })
	h.recent = slices.Insert(h.recent, i, at)
}

// within lists the creations since a time, and forgets those that no configuration could ask
// for. Those further in the future were made by a leader whose clock was wrong, and do not count.
func (h *history) within(now time.Time, snap *state.Snapshot, per time.Duration) []time.Time {
	if !h.known {
		h.known = true
		for r := range snap.Replicas("", "") {
			if at := createdFor(r, h.cause); !at.IsZero() {
				h.recent = append(h.recent, at)
			}
		}
		slices.SortFunc(h.recent, time.Time.Compare)
	}
	after := func(since time.Time) int {
		return sort.Search(len(h.recent), func(i int) bool { return h.recent[i].After(since) })
	}
	h.recent = h.recent[after(now.Add(-spec.MaxPer)):]
	return h.recent[after(now.Add(-per)):after(now.Add(per))]
}
