package pressure

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// How often memory is read, and how often while it could be short soon.
const (
	readEvery = time.Second
	readOften = 100 * time.Millisecond
	// effectPause is how long the effect of an eviction is awaited before another one.
	effectPause = 2 * time.Second
)

// Options says what to watch and how to evict.
type Options struct {
	// Read returns the memory now.
	Read func() (Reading, error)
	// Replicas measures the running replicas. It is called only while memory is short.
	Replicas func(context.Context) []Replica
	// Evict evicts a replica for that reason and returns when its memory is free, or when ctx ends.
	Evict func(ctx context.Context, r Replica, reason string)
	// Failed is called when the memory cannot be read.
	Failed func(error)
}

// Watch evicts replicas whenever memory is short, one at a time, until ctx ends.
func Watch(ctx context.Context, opts Options) {
	var shortage Shortage
	for ctx.Err() == nil {
		_ = sleep.For(ctx, opts.step(ctx, &shortage))
	}
}

// step reads, evicts at most one replica, and returns how long to wait for the next step.
func (o Options) step(ctx context.Context, shortage *Shortage) time.Duration {
	reading, err := o.Read()
	if err != nil {
		o.Failed(err)
		return readEvery
	}
	if shortage.Update(reading) {
		if victim, ok := Victim(o.Replicas(ctx)); ok && ctx.Err() == nil {
			o.Evict(ctx, victim, victim.Reason(reading))
			return effectPause
		}
	}
	if reading.near() {
		return readOften
	}
	return readEvery
}
