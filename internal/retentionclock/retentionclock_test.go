package retentionclock

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestClockFollowsTheWallClock(t *testing.T) {
	c := At(noon)
	for up := time.Duration(0); up < 48*time.Hour; up += 7 * time.Minute {
		wall := noon.Add(up + up/1000) // a little too fast
		if got := c.Look(wall, up); !got.Equal(wall) {
			t.Fatalf("after %s it is %s, want %s", up, got, wall)
		}
	}
}

func TestJumpAheadMustLastAnHour(t *testing.T) {
	c := At(noon)
	jumped := noon.Add(1000 * time.Hour)
	for up := time.Minute; up < patience; up += 5 * time.Minute {
		if got := c.Look(jumped.Add(up), up); !got.Equal(noon.Add(up)) {
			t.Fatalf("%s after the jump it is %s", up, got)
		}
	}
	// The wall clock is corrected within the hour.
	up := 58 * time.Minute
	if got := c.Look(noon.Add(up), up); !got.Equal(noon.Add(up)) {
		t.Errorf("after the correction it is %s", got)
	}
	// A second jump starts a new hour.
	for _, up := range []time.Duration{59 * time.Minute, 90 * time.Minute, 118 * time.Minute} {
		if got := c.Look(jumped, up); !got.Equal(noon.Add(up)) {
			t.Errorf("%s after the start it is %s", up, got)
		}
	}
	if got := c.Look(jumped, 119*time.Minute); !got.Equal(jumped) {
		t.Errorf("a jump that lasted an hour is not accepted: %s", got)
	}
}

func TestEarlierDateIsAcceptedAtOnce(t *testing.T) {
	c := At(noon)
	back := noon.Add(-5 * time.Hour)
	if got := c.Look(back, time.Minute); !got.Equal(back) {
		t.Errorf("it is %s", got)
	}
	if got := c.Look(back.Add(time.Minute), 2*time.Minute); !got.Equal(back.Add(time.Minute)) {
		t.Errorf("it is %s", got)
	}
}

// Whatever the wall clock does within an hour, the date advances no faster than the
// uptime, apart from the tolerance at each call.
func TestJumpDoesNotAgeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := At(noon)
		up, last := time.Duration(0), noon
		quietUntil := patience
		for up < quietUntil {
			step := time.Duration(rapid.Int64Range(1, int64(10*time.Minute)).Draw(t, "step"))
			up += step
			if up >= quietUntil {
				return
			}
			wall := noon.Add(up + time.Duration(rapid.Int64Range(-int64(1e6*time.Hour), int64(1e6*time.Hour)).Draw(t, "jump")))
			got := c.Look(wall, up)
			if got.After(last.Add(step + tolerance)) {
				t.Fatalf("in %s the date went from %s to %s", step, last, got)
			}
			if got.After(wall) && wall.Before(last) {
				t.Fatalf("the date is %s although the clock says %s", got, wall)
			}
			last = got
		}
	})
}

func TestNowFollowsTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		time.Sleep(100 * time.Hour)
		if got := c.Now(); !got.Equal(time.Now()) || got.Location() != time.UTC {
			t.Errorf("it is %s, want %s", got, time.Now())
		}
	})
}
