package crontab_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/crontab"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := crontab.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func parse(t testing.TB, text string) crontab.Schedule {
	t.Helper()
	s, err := crontab.Parse(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}

func TestNext(t *testing.T) {
	const form = "Mon 2006-01-02 15:04 -0700"
	for _, c := range []struct{ name, schedule, zone, after, want string }{
		{"at a minute of every hour", "5 * * * *", "UTC", "Fri 2026-05-01 12:05 +0000", "Fri 2026-05-01 13:05 +0000"},
		{"every quarter of an hour", "*/15 * * * *", "UTC", "Fri 2026-05-01 12:05 +0000", "Fri 2026-05-01 12:15 +0000"},
		{"at a time of every day", "30 3 * * *", "UTC", "Fri 2026-05-01 12:00 +0000", "Sat 2026-05-02 03:30 +0000"},
		{"in a time zone", "30 3 * * *", "Europe/Berlin", "Fri 2026-05-01 00:00 +0000", "Fri 2026-05-01 03:30 +0200"},
		{"on working days", "0 9 * * 1-5", "UTC", "Fri 2026-05-01 09:00 +0000", "Mon 2026-05-04 09:00 +0000"},
		{"on days by name", "0 9 * * tue,Thu", "UTC", "Fri 2026-05-01 09:00 +0000", "Tue 2026-05-05 09:00 +0000"},
		{"on Sunday, which is 0 and 7", "0 0 * * 7", "UTC", "Fri 2026-05-01 00:00 +0000", "Sun 2026-05-03 00:00 +0000"},
		{"from Friday to Sunday", "0 0 * * 5-7", "UTC", "Sat 2026-05-02 00:00 +0000", "Sun 2026-05-03 00:00 +0000"},
		{"on the first of the month", "@monthly", "UTC", "Fri 2026-05-01 00:00 +0000", "Mon 2026-06-01 00:00 +0000"},
		{"in some months", "0 0 1 jan,7 *", "UTC", "Fri 2026-05-01 00:00 +0000", "Wed 2026-07-01 00:00 +0000"},
		{"on the 13th and on Fridays, as crontabs have it", "0 0 13 * 5", "UTC", "Sat 2026-05-09 00:00 +0000", "Wed 2026-05-13 00:00 +0000"},
		{"on a day that comes every four years", "0 0 29 2 *", "UTC", "Fri 2026-05-01 00:00 +0000", "Tue 2028-02-29 00:00 +0000"},
		{"or eight", "0 0 29 2 *", "UTC", "Fri 2096-03-02 00:00 +0000", "Fri 2104-02-29 00:00 +0000"},

		// In Berlin the clocks go from 02:00 to 03:00 on 2026-03-29 and from 03:00 to 02:00 on 2026-10-25.
		{"a skipped time runs right after the gap", "30 2 * * *", "Europe/Berlin", "Sun 2026-03-29 00:00 +0100", "Sun 2026-03-29 03:00 +0200"},
		{"and only once", "30 2 * * *", "Europe/Berlin", "Sun 2026-03-29 03:00 +0200", "Mon 2026-03-30 02:30 +0200"},
		{"two skipped times run once", "15,45 2 * * *", "Europe/Berlin", "Sun 2026-03-29 03:00 +0200", "Mon 2026-03-30 02:15 +0200"},
		{"every elapsed hour counts in spring", "30 * * * *", "Europe/Berlin", "Sun 2026-03-29 01:30 +0100", "Sun 2026-03-29 03:30 +0200"},
		{"a repeated time runs the first time", "30 2 * * *", "Europe/Berlin", "Sun 2026-10-25 00:00 +0200", "Sun 2026-10-25 02:30 +0200"},
		{"and not the second", "30 2 * * *", "Europe/Berlin", "Sun 2026-10-25 02:30 +0200", "Mon 2026-10-26 02:30 +0100"},
		{"every elapsed hour counts in autumn", "30 * * * *", "Europe/Berlin", "Sun 2026-10-25 02:30 +0200", "Sun 2026-10-25 02:30 +0100"},
		{"where the clocks skip midnight", "0 0 * * *", "Africa/Cairo", "Thu 2026-04-23 12:00 +0200", "Fri 2026-04-24 01:00 +0300"},
		{"where the calendar skipped a day", "0 12 30 12 *", "Pacific/Apia", "Thu 2011-12-29 12:00 -1000", "Sat 2011-12-31 00:00 +1400"},
		{"where clocks are set by half an hour", "15 2 * * *", "Australia/Lord_Howe", "Sun 2026-10-04 00:00 +1030", "Sun 2026-10-04 02:30 +1100"},
	} {
		after, err := time.Parse(form, c.after)
		if err != nil {
			t.Fatal(err)
		}
		got := parse(t, c.schedule).Next(after, zone(t, c.zone)).In(zone(t, c.zone)).Format(form)
		if got != c.want {
			t.Errorf("%s: %q after %s is %s, want %s", c.name, c.schedule, c.after, got, c.want)
		}
	}
}

func TestNewest(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 7, 30, 0, time.UTC)
	for _, c := range []struct {
		name, schedule string
		after          time.Time
		want           time.Time
	}{
		{"of many the last", "*/5 * * * *", now.AddDate(-5, 0, 0), time.Date(2026, 5, 1, 12, 5, 0, 0, time.UTC)},
		{"one long ago", "@yearly", now.AddDate(-5, 0, 0), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
		{"none in the span", "@yearly", now.AddDate(0, -1, 0), time.Time{}},
		{"the moment itself is behind", "5 12 * * *", time.Date(2026, 5, 1, 12, 5, 0, 0, time.UTC), time.Time{}},
	} {
		if got := parse(t, c.schedule).Newest(c.after, now, time.UTC); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "must have five fields, minute, hour, day, month and weekday, such as \"30 3 * * 1-5\", and has 0",
		"* * * *":           "must have five fields, minute, hour, day, month and weekday, such as \"30 3 * * 1-5\", and has 4",
		"60 * * * *":        `has the minute "60", which must be between 0 and 59`,
		"* 24 * * *":        `has the hour "24", which must be between 0 and 23`,
		"* * 0 * *":         `has the day of the month "0", which must be between 1 and 31`,
		"* * * foo *":       `has the month "foo", which must be between 1 and 12`,
		"* * * * 8":         `has the day of the week "8", which must be between 0 and 7`,
		"*/0 * * * *":       `has the step "0" of the minute, which must be a number above 0`,
		"5-1 * * * *":       "has the minute from 5 to 1, which is the wrong way round",
		"1,,2 * * * *":      `has the minute "", which must be between 0 and 59`,
		"0 0 31 2,4 *":      "never matches: none of its months has such a day",
		"@every 1h":         `"@every 1h" is not known; write @hourly, @daily, @weekly, @monthly or @yearly, or five fields such as "30 3 * * *"`,
		"TZ=UTC 0 0 * * *":  "must have five fields, minute, hour, day, month and weekday, such as \"30 3 * * 1-5\", and has 6",
		"0 0 * * * command": "must have five fields, minute, hour, day, month and weekday, such as \"30 3 * * 1-5\", and has 6",
	} {
		if _, err := crontab.Parse(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, name := range []string{"Local", "Europe/Berlln", "../etc/passwd"} {
		if _, err := crontab.Zone(name); err == nil || !strings.Contains(err.Error(), "Europe/Berlin") {
			t.Errorf("zone %s: %v", name, err)
		}
	}
}

// fields is a schedule as its author wrote it, for a reference implementation that
// checks every minute.
type fields struct{ minutes, hours, days, months, weekdays string }

func (f fields) String() string {
	return strings.Join([]string{f.minutes, f.hours, f.days, f.months, f.weekdays}, " ")
}

func member(list string, n int) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item == "*" || item == strconv.Itoa(n) {
			return true
		}
	}
	return false
}

// match reports whether the local time t matches.
func (f fields) match(t time.Time) bool {
	day, weekday := member(f.days, t.Day()), member(f.weekdays, int(t.Weekday()))
	either := f.days != "*" && f.weekdays != "*"
	return member(f.minutes, t.Minute()) && member(f.hours, t.Hour()) && member(f.months, int(t.Month())) &&
		(either && (day || weekday) || !either && day && weekday)
}

// wall returns the local time without its zone.
func wall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
}

// walk finds the next time by checking every minute. It starts two days early to know
// which local times have passed already.
func (f fields) walk(after time.Time, z *time.Location, days int) time.Time {
	t := after.Add(-48 * time.Hour).Truncate(time.Minute).In(z)
	high := wall(t)
	for range (days + 2) * 24 * 60 {
		t = t.Add(time.Minute)
		shown := wall(t)
		due := f.hours == "*" && f.match(shown)
		if f.hours != "*" {
			for high.Before(shown) {
				high = high.Add(time.Minute)
				due = due || f.match(high)
			}
		}
		if due && t.After(after) {
			return t
		}
	}
	return time.Time{}
}

var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo",
	"America/Santiago", "Asia/Kathmandu", "Africa/Casablanca", "Asia/Gaza", "America/Havana",
}

// Next agrees with checking every minute, most often near a clock change.
func TestNextAgreesWithCheckingEveryMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
		f := fields{
			minutes:  pick("minutes", "*", "0", "30", "0,15,45", "59", "1,29,31"),
			hours:    pick("hours", "*", "*", "0", "1", "2", "3", "23", "0,1,2,3", "2,14"),
			days:     pick("days", "*", "*", "*", "1,15,30", "29,30,31"),
			months:   pick("months", "*", "*", "3,4,10,11,12"),
			weekdays: pick("weekdays", "*", "*", "0", "1,2,3,4,5", "0,6"),
		}
		z, err := crontab.Zone(pick("zone", zones...))
		if err != nil {
			t.Fatal(err)
		}
		s, err := crontab.Parse(f.String())
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		after := time.Unix(rapid.Int64Range(1262304000, 1893456000).Draw(t, "after"), 0) // 2010 to 2030
		if _, change := after.In(z).ZoneBounds(); !change.IsZero() && change.Year() < 2031 && rapid.Bool().Draw(t, "near a change") {
			after = change.Add(time.Duration(rapid.Int64Range(-36*3600, 4*3600).Draw(t, "from it")) * time.Second)
		}
		const days = 8
		got, want := s.Next(after, z), f.walk(after, z, days)
		if want.IsZero() {
			if !got.IsZero() && got.Before(after.AddDate(0, 0, days-1)) {
				t.Fatalf("%q in %s after %s: got %s, want none", f, z, after.In(z), got.In(z))
			}
			return
		}
		if !got.Equal(want) {
			t.Fatalf("%q in %s after %s: got %s, want %s", f, z, after.In(z), got.In(z), want.In(z))
		}
	})
}

// FuzzParse checks that every accepted schedule has a next time, and that Newest finds it.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"* * * * *", "*/5 1-3 1,2 jan mon", "@daily", "0 0 29 2 *", "59 23 31 12 7", "0-59/7 */2 * * 5-7/2", "0 0 13 * 5"} {
		f.Add(text)
	}
	berlin := zone(f, "Europe/Berlin")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := crontab.Parse(text)
		if err != nil {
			return
		}
		after := time.Unix(1700000000, 0)
		next := s.Next(after, berlin)
		if !next.After(after) {
			t.Fatalf("%q: %s is not after %s", text, next, after)
		}
		if newest := s.Newest(after, next, berlin); !newest.Equal(next) {
			t.Fatalf("%q: the newest until %s is %s", text, next, newest)
		}
	})
}
