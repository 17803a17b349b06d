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
	// tolerance is by how much a date may run ahead of the uptime at each look without being doubted.
	tolerance = time.Minute
	// patience is how long a date that has jumped ahead must last until it is believed.
	patience = time.Hour
)

// Clock is safe for concurrent use.
type Clock struct {
	started time.Time // for its monotonic part

	mu      sync.Mutex
	date    time.Time     // the last that was believed
	at      time.Duration // the uptime then
	doubted bool
	since   time.Duration // the uptime since which the clock has been ahead
}

// New begins with the date of now, which has to be believed.
func New() *Clock {
	now := time.Now()
	return &Clock{started: now, date: now.Round(0)}
}

// At begins with a date that is given, at the uptime 0, and is asked by Look.
func At(date time.Time) *Clock { return &Clock{date: date} }

// Now is the date in UTC, without a monotonic part.
func (c *Clock) Now() time.Time { return c.Look(time.Now().Round(0), time.Since(c.started)).UTC() }

// Look is the date when the machine's clock says wall and the uptime is uptime,
// for those who have a time of their own.
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
