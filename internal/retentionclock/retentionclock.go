// Package retentionclock is the clock for deleting things by age. It distrusts
// jumps.
//
// A wall clock that is set forward by mistake makes everything look old at once.
// A Clock keeps counting at the pace of the monotonic clock instead, and accepts
// the new date only after it has lasted for an hour. It accepts an earlier date at
// once, because that deletes less.
//
// It must not be used for dates that machines agree on, such as the expiry of
// certificates and tokens.
package retentionclock

import (
	"sync"
	"time"
)

const (
	// tolerance is how far the wall clock may run ahead of the uptime between two calls.
	tolerance = time.Minute
	// patience is how long a jump ahead must last before it is accepted.
	patience = time.Hour
)

// Clock is safe for concurrent use.
type Clock struct {
	started time.Time // for its monotonic part

	mu      sync.Mutex
	date    time.Time     // the last accepted date
	at      time.Duration // the uptime at that date
	doubted bool          // the wall clock is ahead
	since   time.Duration // the uptime at which it jumped ahead
}

// New starts a clock with the current date, which it has to trust.
func New() *Clock {
	now := time.Now()
	return &Clock{started: now, date: now.Round(0)}
}

// At starts a clock with a given date at uptime 0. Read it with Look.
func At(date time.Time) *Clock { return &Clock{date: date} }

// Now returns the date in UTC, without a monotonic part.
func (c *Clock) Now() time.Time { return c.Look(time.Now().Round(0), time.Since(c.started)).UTC() }

// Look returns the date for a wall clock and an uptime, for callers with their own time.
func (c *Clock) Look(wall time.Time, uptime time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	expected := c.date.Add(uptime - c.at)
	ahead := wall.Sub(expected) > tolerance
	switch {
	case !ahead:
		c.date, c.doubted = wall, false
	case !c.doubted:
		c.date, c.doubted, c.since = expected, true, uptime
	case uptime-c.since < patience:
		c.date = expected
	default:
		c.date, c.doubted = wall, false
	}
	c.at = uptime
	return c.date
}
