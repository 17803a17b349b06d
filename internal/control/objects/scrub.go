package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// scrubSettle is how long a new leader waits with scrubs.
	scrubSettle = time.Hour
	// scrubTakes is how long the scrub of a node should take: long, because nobody waits for it.
	scrubTakes = 24 * time.Hour
	// scrubShare is one of how many nodes that is scrubbed at a time, so that all have their turn in a week.
	scrubShare = 4
	// leastScrubRate and mostScrubRate bound how many bytes a second are read.
	leastScrubRate, mostScrubRate = 2 << 20, 50 << 20
	// scrubAgain is how long a node whose scrub failed is left alone.
	scrubAgain = time.Hour
	scrubLook  = 10 * time.Minute
)

// keepScrubbed has each node check all of its chunks now and then, slowly, until ctx ends.
func (l *Loops) keepScrubbed(ctx context.Context, t *term) {
	if sleep.For(ctx, scrubSettle) != nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	failed := map[string]time.Time{}
	var mu sync.Mutex
	for {
		mu.Lock()
		due := dueScrubs(l.o.Disks.Nodes(), t.scrubs(), failed, l.o.Settings().ScrubEvery, time.Now())
		mu.Unlock()
		for _, n := range due {
			t.startScrub(n.UID)
			running.Go(func() {
				defer wake(t.scrub)
				defer t.endScrub(n.UID)
				err := l.o.Disks.Scrub(ctx, n.UID, scrubRate(n), func(_, _, _ int64) {})
				l.note(ctx, "a node could not check its chunks; trying again", err, "node", n.Name)
				mu.Lock()
				defer mu.Unlock()
				// Also without an error: the node may not have said yet when it was scrubbed.
				failed[n.UID] = time.Now()
			})
		}
		if !rest(ctx, t.scrub, scrubLook) {
			return
		}
	}
}

// dueScrubs returns the nodes to scrub now, those first that were not scrubbed for longest. It is pure.
func dueScrubs(nodes []object.Node, scrubbing map[string]bool, failed map[string]time.Time, every time.Duration, now time.Time) []object.Node {
	var due []object.Node
	slots := (len(nodes) + scrubShare - 1) / scrubShare
	for _, n := range nodes {
		switch {
		case scrubbing[n.UID]:
			slots--
		case n.Connected && n.Chunks > 0 && now.Sub(n.Scrubbed) >= every && now.Sub(failed[n.UID]) >= scrubAgain:
			due = append(due, n)
		}
	}
	slices.SortFunc(due, func(a, b object.Node) int {
		return cmp.Or(a.Scrubbed.Compare(b.Scrubbed), cmp.Compare(a.UID, b.UID))
	})
	return due[:max(0, min(slots, len(due)))]
}

// scrubRate is how many bytes a second a node reads.
func scrubRate(n object.Node) int64 {
	return min(max(n.Used/int64(scrubTakes.Seconds()), leastScrubRate), mostScrubRate)
}

func (t *term) scrubs() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]bool, len(t.scrubbing))
	for uid := range t.scrubbing {
		all[uid] = true
	}
	return all
}

func (t *term) startScrub(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scrubbing[uid] = true
}

func (t *term) endScrub(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.scrubbing, uid)
}

// Scrub has nodes check all of their chunks, by their UIDs; all connected nodes if there are none. A rate of 0 is the
// usual one of a node. It may be called on any server, which needs a connection to the nodes. progress is not called at
// once by several goroutines.
func (l *Loops) Scrub(ctx context.Context, nodes []string, rate int64, progress func(Progress)) error {
	wanted, err := l.toScrub(nodes)
	if err != nil {
		return err
	}
	var telling sync.Mutex
	tell := func(p Progress) {
		telling.Lock()
		defer telling.Unlock()
		if progress != nil {
			progress(p)
		}
	}
	var running sync.WaitGroup
	failures := make([]error, len(wanted))
	for i, n := range wanted {
		running.Go(func() { failures[i] = l.scrub(ctx, n, rate, tell) })
	}
	running.Wait()
	return errors.Join(failures...)
}

func (l *Loops) scrub(ctx context.Context, n object.Node, rate int64, tell func(Progress)) error {
	if t := l.leading(); t != nil {
		t.startScrub(n.UID)
		defer t.endScrub(n.UID)
	}
	last := Progress{Node: n.UID}
	err := l.o.Disks.Scrub(ctx, n.UID, rate, func(checked, total, damaged int64) {
		last.Done, last.Total, last.Damaged = checked, total, damaged
		tell(last)
	})
	if err != nil {
		last.Message = err.Error()
		tell(last)
		return fmt.Errorf("scrub node %s: %w", n.Name, err)
	}
	last.Finished = true
	tell(last)
	return nil
}

// toScrub are the nodes with these UIDs, or all that are connected.
func (l *Loops) toScrub(uids []string) ([]object.Node, error) {
	var wanted []object.Node
	for _, n := range l.o.Disks.Nodes() {
		if slices.Contains(uids, n.UID) || len(uids) == 0 && n.Connected {
			wanted = append(wanted, n)
		}
	}
	if len(wanted) < len(uids) {
		return nil, errors.New("a node to be scrubbed is not in the cluster")
	}
	return wanted, nil
}
