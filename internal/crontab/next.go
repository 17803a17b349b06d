package crontab

import (
	"fmt"
	"math/bits"
	"time"

	_ "time/tzdata" // for machines without time zone files
)

// Zone finds a time zone by its name. The empty name means UTC. It refuses the
// machine's local zone, because a schedule must mean the same on every server.
func Zone(name string) (*time.Location, error) {
	switch name {
	case "":
		return time.UTC, nil
	case "Local":
		return nil, fmt.Errorf("must name a time zone such as Europe/Berlin")
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%.64q is not known; write the name of a time zone such as Europe/Berlin or UTC", name)
	}
	return zone, nil
}

// horizon is how many days ahead Next looks: February 29 may be eight years away.
const horizon = 9 * 366

// Next returns the first time after the given one that matches the schedule in a zone.
// It is zero if nothing matches within the horizon.
func (s Schedule) Next(after time.Time, zone *time.Location) time.Time {
	if s.everyHour {
		return s.nextPassing(after.In(zone))
	}
	// Start a day early: if the calendar skips a whole day, its times run on the next one.
	at := civil(after.In(zone)).midnight() - minutesPerDay
	for range horizon {
		if s.onDay(at) {
			if t := s.firstOfDay(at, after, zone); !t.IsZero() {
				return t
			}
		}
		at += minutesPerDay
	}
	return time.Time{}
}

// Newest returns the last matching time that is after the first time and not after the
// second. It is zero if there is none.
func (s Schedule) Newest(after, until time.Time, zone *time.Location) time.Time {
	for span := time.Hour; ; span *= 8 {
		from := until.Add(-span)
		if from.Before(after) || span > horizon*24*time.Hour {
			from = after
		}
		newest := time.Time{}
		for t := s.Next(from, zone); !t.IsZero() && !t.After(until); t = s.Next(t, zone) {
			newest = t
		}
		if !newest.IsZero() || from.Equal(after) {
			return newest
		}
	}
}

// firstOfDay returns the first matching time after the given one, on the day that
// begins at midnight.
func (s Schedule) firstOfDay(midnight clock, after time.Time, zone *time.Location) time.Time {
	for hours := s.hours; hours != 0; hours &= hours - 1 {
		for minutes := s.minutes; minutes != 0; minutes &= minutes - 1 {
			at := midnight + clock(60*bits.TrailingZeros64(hours)+bits.TrailingZeros64(minutes))
			if t := at.first(zone); t.After(after) {
				return t
			}
		}
	}
	return time.Time{}
}

// nextPassing is Next for a schedule with everyHour: it follows elapsed minutes.
func (s Schedule) nextPassing(after time.Time) time.Time {
	zone := after.Location()
	end := after.AddDate(0, 0, horizon)
	t := after.Add(time.Minute - time.Duration(after.Second())*time.Second - time.Duration(after.Nanosecond()))
	for t.Before(end) {
		at := civil(t)
		switch {
		case !s.onDay(at.midnight()):
			// Skip to the next day, but not past a clock change, which may go back to a
			// matching day.
			next := (at.midnight() + minutesPerDay).first(zone)
			if _, change := t.ZoneBounds(); !change.IsZero() && change.Before(next) {
				next = change
			}
			if !next.After(t) { // that midnight was before the clocks went back
				next = t.Add(time.Minute)
			}
			t = next.In(zone)
		case s.minutes&(1<<(at%60)) == 0:
			t = t.Add(time.Minute)
		default:
			return t
		}
	}
	return time.Time{}
}

// onDay reports whether the day that begins at midnight matches the schedule.
func (s Schedule) onDay(midnight clock) bool {
	date := midnight.date()
	byDay := s.days&(1<<date.Day()) != 0
	byWeekday := s.weekdays&(1<<int(date.Weekday())) != 0
	switch {
	case s.months&(1<<int(date.Month())) == 0:
		return false
	case s.eitherDay:
		return byDay || byWeekday
	default:
		return byDay && byWeekday
	}
}

// clock is a local date and time without its zone, in minutes since 1970.
type clock int64

const minutesPerDay = 24 * 60

// civil returns the local date and time of a moment.
func civil(t time.Time) clock {
	y, m, d := t.Date()
	return clock(time.Date(y, m, d, t.Hour(), t.Minute(), 0, 0, time.UTC).Unix() / 60)
}

func (c clock) date() time.Time { return time.Unix(int64(c)*60, 0).UTC() }

func (c clock) midnight() clock {
	d := c % minutesPerDay
	if d < 0 {
		d += minutesPerDay
	}
	return c - d
}

// first returns the first moment at which the zone's clocks show c. If they skip c, it
// returns the moment of the clock change.
func (c clock) first(zone *time.Location) time.Time {
	// The moment is less than a day away. Try the offset here and those on the other
	// side of the nearest clock changes.
	near := time.Unix(int64(c)*60, 0).In(zone)
	begin, end := near.ZoneBounds()
	offsets := []time.Time{near}
	if !begin.IsZero() {
		offsets = append(offsets, begin.Add(-time.Second))
	}
	if !end.IsZero() {
		offsets = append(offsets, end)
	}
	var first time.Time
	for _, of := range offsets {
		_, offset := of.In(zone).Zone()
		t := time.Unix(int64(c)*60-int64(offset), 0).In(zone)
		if civil(t) == c && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if !first.IsZero() {
		return first
	}
	for _, change := range []time.Time{begin, end} {
		if !change.IsZero() && civil(change.Add(-time.Second).In(zone)) < c && c < civil(change.In(zone)) {
			return change.In(zone)
		}
	}
	return near
}
