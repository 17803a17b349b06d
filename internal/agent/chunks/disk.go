package chunks

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// lookEvery is how often the disk is looked at, and tellEvery how often servers hear of small changes.
	lookEvery = time.Second
	tellEvery = 15 * time.Second
	// A change is noticeable if it is one part in noticeable of the disk.
	noticeable = 200
	// rememberDamage bounds the damaged chunks that a server is told of at once. It finds others when it compares lists.
	rememberDamage = 65536
)

// disk is what servers hear of this node's disk.
type disk struct {
	mu      sync.Mutex
	status  *v1.DiskStatus // nil until the first look; not changed afterwards
	address string
	told    time.Time
	changed chan struct{}
	// watchers have the damaged chunks that each of them was not told of yet.
	watchers map[*watcher]bool
}

type watcher struct{ damaged [][]byte }

func newDisk() *disk {
	return &disk{changed: make(chan struct{}), watchers: map[*watcher]bool{}}
}

// follow looks at the disk until ctx ends.
func (d *disk) follow(ctx context.Context, look func() *v1.DiskStatus) {
	for ctx.Err() == nil {
		d.look(look())
		_ = sleep.For(ctx, lookEvery)
	}
}

// look takes the newest status, and tells the servers if it has changed noticeably.
func (d *disk) look(now *v1.DiskStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now.Address = d.address
	if proto.Equal(d.status, now) {
		return
	}
	if d.status == nil || differs(d.status, now) || time.Since(d.told) >= tellEvery {
		d.tell(now)
	}
}

// differs reports whether a change is noticeable.
func differs(before, now *v1.DiskStatus) bool {
	much := func(a, b int64) bool {
		return (a-b)*noticeable > now.GetCapacity() || (b-a)*noticeable > now.GetCapacity()
	}
	return before.GetProblem() != now.GetProblem() || before.GetAddress() != now.GetAddress() || before.GetClass() != now.GetClass() ||
		before.GetCapacity() != now.GetCapacity() || before.GetScrubbed() != now.GetScrubbed() || before.GetDamagedTotal() != now.GetDamagedTotal() ||
		much(before.GetFree(), now.GetFree()) || much(before.GetUsed(), now.GetUsed()) ||
		before.GetFree() > 0 != (now.GetFree() > 0) || before.GetIdle() != now.GetIdle()
}

// tell makes a status the newest one. The caller holds mu.
func (d *disk) tell(now *v1.DiskStatus) {
	d.status, d.told = now, time.Now()
	d.wake()
}

func (d *disk) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// setAddress says where this node answers others.
func (d *disk) setAddress(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.address = address; d.status != nil {
		now := proto.CloneOf(d.status)
		now.Address = address
		d.tell(now)
	}
}

// damage tells all servers of damaged chunks.
func (d *disk) damage(digests [][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for w := range d.watchers {
		w.damaged = append(w.damaged, digests[:min(len(digests), rememberDamage-len(w.damaged))]...)
	}
	d.wake()
}

// WatchDisk implements the ChunkService.
func (c *Chunks) WatchDisk(_ *v1.WatchDiskRequest, stream grpc.ServerStreamingServer[v1.DiskReport]) error {
	d, w := c.disk, &watcher{}
	d.mu.Lock()
	d.watchers[w] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watchers, w)
	}()
	var told *v1.DiskStatus
	for {
		report, changed := d.news(w, told)
		if report != nil {
			if err := stream.Send(report); err != nil {
				return err
			}
			if report.GetStatus() != nil {
				told = report.GetStatus()
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// news is what a server was not told yet, nil if that is nothing, and a channel that is closed when there may be more.
func (d *disk) news(w *watcher, told *v1.DiskStatus) (*v1.DiskReport, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status == nil || d.status == told && len(w.damaged) == 0 {
		return nil, d.changed
	}
	report := &v1.DiskReport{Damaged: w.damaged}
	w.damaged = nil
	if d.status != told {
		report.Status = d.status
	}
	return report, d.changed
}
