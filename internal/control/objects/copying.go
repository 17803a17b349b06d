package objects

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/object/names"
)

// rateWindow is over how long the rate of a repair is measured.
const rateWindow = 2 * time.Second

func (t *term) beginCopying(total int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.copying = copying{active: true, began: time.Now(), mark: time.Now(), total: total}
}

func (t *term) endCopying() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.copying.active = false
}

// progressed counts a copy.
func (t *term) progressed(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &t.copying
	c.copies++
	c.done += bytes
	c.recent += bytes
	if passed := time.Since(c.mark); passed >= rateWindow {
		c.rate = float64(c.recent) / passed.Seconds()
		c.recent, c.mark = 0, time.Now()
	}
}

// missed counts copies that were not made.
func (t *term) missed(chunks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.copying.failed += int64(chunks)
}

func (t *term) copied() copying {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.copying
}

// perSecond is how many bytes a second are copied now.
func (c copying) perSecond() int64 {
	if !c.active {
		return 0
	}
	if c.rate > 0 {
		return int64(c.rate)
	}
	if passed := time.Since(c.began).Seconds(); passed > 0 {
		return int64(float64(c.done) / passed)
	}
	return 0
}

// call adds a caller of RepairNow. The channel gets one answer.
func (t *term) call() chan error {
	answer := make(chan error, 1)
	t.mu.Lock()
	t.waiting = append(t.waiting, answer)
	t.mu.Unlock()
	wake(t.repair)
	return answer
}

// callers takes those who wait for a repair that begins now.
func (t *term) callers() []chan error {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting
	t.waiting = nil
	return waiting
}

// refuse answers callers whose repair does not begin any more.
func (t *term) refuse() {
	for _, caller := range t.callers() {
		caller <- ErrNotLeading
	}
}

// RepairNow copies what has too few copies, without the delay, and returns when that is done as far as it can be. It is
// ErrNotLeading on other servers. progress may be nil.
func (l *Loops) RepairNow(ctx context.Context, progress func(Progress)) error {
	t := l.leading()
	if t == nil {
		return ErrNotLeading
	}
	answer := t.call()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-answer:
			if progress != nil {
				progress(t.progress(err))
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-t.ctx.Done():
			return ErrNotLeading
		case <-ticker.C:
			if c := t.copied(); progress != nil && c.active {
				progress(Progress{Done: c.done, Total: c.total})
			}
		}
	}
}

// progress is what a repair has come to.
func (t *term) progress(err error) Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Progress{Done: t.copying.done, Total: t.copying.total, Finished: err == nil}
	switch {
	case err != nil:
		p.Message = err.Error()
	case t.found.lacking > 0 || t.found.unreachable > 0:
		p.Message = unfinished(t.found)
	default:
		p.Message = "all objects have their copies"
	}
	return p
}

// unfinished says what a repair could not do.
func unfinished(s survey) string {
	var all []string
	if s.lacking > 0 {
		all = append(all, pieces(s.lacking, "still has", "still have")+" too few copies")
	}
	if s.unreachable > 0 {
		all = append(all, pieces(s.unreachable, "has", "have")+" no copy that can be reached")
	}
	return strings.Join(all, ", and ") + "; see why with: cloudless storage status"
}

// Left returns how many chunks have a copy on a node according to the names. A node that is draining can be removed
// without loss when there are none. It may be called on any server.
func (l *Loops) Left(ctx context.Context, node string) (left int64, err error) {
	err = l.read(ctx, func(view *names.View) error {
		numbers, err := view.Nodes()
		if err != nil || numbers[node] == 0 {
			return err
		}
		var after names.Hash
		for {
			page, err := view.ChunksOn(numbers[node], after, scanPage)
			left += int64(len(page))
			if err != nil || len(page) < scanPage {
				return err
			}
			after = page[len(page)-1].Hash
		}
	})
	return left, err
}

// sizeOf writes bytes for people.
func sizeOf(bytes int64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	size, prefix := float64(bytes)/unit, 0
	for size >= unit && prefix < 5 {
		size /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %ciB", size, "KMGTPE"[prefix])
}
