// Package crontab parses the five fields of a crontab and computes the times that
// they match in a time zone.
//
// It is pure: the same schedule, zone and time give the same result. Daylight
// saving time works like this:
//
//   - A time that is skipped runs at the first moment after the gap.
//   - A time that occurs twice runs the first time.
//   - If the hour is *, nothing is skipped or repeated: the schedule follows elapsed
//     hours.
//
// It does not know workloads and reads no clock.
package crontab

import (
	"fmt"
	"strconv"
	"strings"
)

// Schedule is a set of times of day on certain days. The zero value is empty.
type Schedule struct {
	minutes, hours, days, months, weekdays uint64 // bits

	// everyHour means that all hours match, so that the schedule follows elapsed hours
	// instead of the wall clock.
	everyHour bool
	// eitherDay means that day and weekday are both restricted. Then one match is
	// enough.
	eitherDay bool
}

// words are short forms of five fields.
var words = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// field describes one of the five fields.
type field struct {
	noun     string
	min, max int
	names    []string // of the values from min on
}

var (
	minute  = field{noun: "minute", max: 59}
	hour    = field{noun: "hour", max: 23}
	day     = field{noun: "day of the month", min: 1, max: 31}
	month   = field{noun: "month", min: 1, max: 12, names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}}
	weekday = field{noun: "day of the week", max: 7, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}} // 0 and 7 are Sunday
)

// Parse reads a schedule. Its errors continue a sentence that starts with the name of
// the field.
func Parse(text string) (Schedule, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "@") {
		five, known := words[strings.ToLower(text)]
		if !known {
			return Schedule{}, fmt.Errorf("%.32q is not known; write @hourly, @daily, @weekly, @monthly or @yearly, or five fields such as \"30 3 * * *\"", text)
		}
		text = five
	}
	parts := strings.Fields(text)
	if len(parts) != 5 {
		return Schedule{}, fmt.Errorf("must have five fields, minute, hour, day, month and weekday, such as \"30 3 * * 1-5\", and has %d", len(parts))
	}
	var s Schedule
	for i, to := range []*uint64{&s.minutes, &s.hours, &s.days, &s.months, &s.weekdays} {
		var err error
		if *to, err = []field{minute, hour, day, month, weekday}[i].parse(parts[i]); err != nil {
			return Schedule{}, err
		}
	}
	if s.weekdays&(1<<7) != 0 {
		s.weekdays |= 1
	}
	s.everyHour = s.hours == 1<<24-1
	s.eitherDay = !open(parts[2]) && !open(parts[4])
	if !s.possible() {
		return Schedule{}, fmt.Errorf("never matches: none of its months has such a day")
	}
	return s, nil
}

// open reports whether a field begins with * and so counts as unrestricted.
func open(part string) bool { return part[0] == '*' }

// possible reports whether some month has one of the days.
func (s Schedule) possible() bool {
	if s.eitherDay {
		return true
	}
	for m, last := range []int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31} {
		if s.months&(1<<(m+1)) != 0 && s.days&(1<<(last+1)-1) != 0 {
			return true
		}
	}
	return false
}

// parse reads a list such as "1-5,10,*/15" as bits.
func (f field) parse(list string) (bits uint64, err error) {
	for item := range strings.SplitSeq(list, ",") {
		some, err := f.item(item)
		if err != nil {
			return 0, err
		}
		bits |= some
	}
	return bits, nil
}

// item reads "*", "5" or "1-5", each with an optional step such as "/15".
func (f field) item(text string) (bits uint64, err error) {
	span, stepText, stepped := strings.Cut(text, "/")
	step := 1
	if stepped {
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 || len(stepText) > 3 {
			return 0, fmt.Errorf("has the step %.16q of the %s, which must be a number above 0", stepText, f.noun)
		}
	}
	from, to := f.min, f.max
	if f.max == weekday.max && (span == "*") {
		to = 6 // otherwise Sunday would count twice
	}
	if span != "*" {
		first, last, ranged := strings.Cut(span, "-")
		if from, err = f.number(first); err != nil {
			return 0, err
		}
		switch {
		case ranged:
			if to, err = f.number(last); err != nil {
				return 0, err
			}
		case !stepped:
			to = from
		}
	}
	if from > to {
		return 0, fmt.Errorf("has the %s from %d to %d, which is the wrong way round", f.noun, from, to)
	}
	for n := from; n <= to; n += step {
		bits |= 1 << n
	}
	return bits, nil
}

// number reads a number or a name.
func (f field) number(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || len(text) > 2 || n < f.min || n > f.max || text[0] == '+' || text[0] == '-' {
		return 0, fmt.Errorf("has the %s %.16q, which must be between %d and %d", f.noun, text, f.min, f.max)
	}
	return n, nil
}
