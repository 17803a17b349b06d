package storage

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// readEvery is how often the disk is read, which costs next to nothing.
	readEvery = time.Second
	// measureEvery is how often replicas are measured, and measureOften how often while the disk is tight. Measuring takes
	// at most one part in measureShare of the time.
	measureEvery = 10 * time.Second
	measureOften = time.Second
	measureShare = 20
	// imagesEvery is the shortest time between two looks for unused images.
	imagesEvery = 10 * time.Second
)

// Options says what to watch, and how to make room.
type Options struct {
	// Read measures the disk.
	Read func() (Disk, error)
	// HighPercent is how full the disk must be for unused images to be removed.
	HighPercent func() int
	// Images lists the images, and Remove removes one.
	Images func(context.Context) ([]Image, error)
	Remove func(context.Context, Image) error
	// Replicas measures the running replicas.
	Replicas func(context.Context) []Replica
	// Evict evicts a replica for that reason, and returns when its files are gone or when ctx ends.
	Evict func(ctx context.Context, uid, reason string)
	// Failed is called when something cannot be measured or removed.
	Failed func(error)
}

// watcher remembers when it did what.
type watcher struct {
	Options
	measured, looked time.Time
	took             time.Duration
}

// Watch keeps the disk from filling up until ctx ends.
func Watch(ctx context.Context, opts Options) {
	w := &watcher{Options: opts}
	for ctx.Err() == nil {
		w.step(ctx)
		_ = sleep.For(ctx, readEvery)
	}
}

// step removes what nobody needs, and evicts at most one replica.
func (w *watcher) step(ctx context.Context) {
	disk, err := w.Read()
	if err != nil {
		w.Failed(err)
		return
	}
	if disk.above(w.HighPercent()) && time.Since(w.looked) >= imagesEvery {
		w.removeImages(ctx, disk)
		w.looked = time.Now()
		if disk, err = w.Read(); err != nil {
			return
		}
	}
	every := measureEvery
	if disk.tight() {
		every = measureOften
	}
	if time.Since(w.measured) < max(every, measureShare*w.took) {
		return
	}
	began := time.Now()
	replicas := w.Replicas(ctx)
	w.measured, w.took = time.Now(), time.Since(began)
	if uid, reason := Victim(replicas, disk); uid != "" && ctx.Err() == nil {
		w.Evict(ctx, uid, reason)
		w.measured = time.Time{} // there may be another one
	}
}

func (w *watcher) removeImages(ctx context.Context, disk Disk) {
	images, err := w.Images(ctx)
	if err != nil {
		w.Failed(err)
		return
	}
	for _, one := range Unneeded(images, disk, w.HighPercent(), time.Now()) {
		if err := w.Remove(ctx, one); err != nil {
			w.Failed(err)
		}
	}
}
