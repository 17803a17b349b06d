package agent

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A pause is measured by a clock that nobody can set, as long as the process runs.
func TestAPauseDoesNotFollowTheDate(t *testing.T) {
	rec := freshRecord(assignment("a", restart("always", "1s", "4s")), "boot-1")
	rec.Status.StartTime = now()
	rec.exited(&v1.Exit{Code: 1, Time: now()})
	if rec.Status.GetPhase() != phaseBackoff || !strings.Contains(rec.Resume.String(), " m=") {
		t.Errorf("the pause ends at %s, which is a mere date", rec.Resume)
	}
}

// A record from before a restart has only the date. If the clock was set back by
// hours since, the replica does not wait for hours.
func TestAPauseFromDiskBearsAClockThatWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a := assignment("a", restart("always", "1s", "4s"))
		st, err := openStore(filepath.Join(n.dir, storeDir))
		if err != nil {
			t.Fatal(err)
		}
		rec := freshRecord(a, "boot-1")
		rec.Status.Phase, rec.Attempt, rec.Started = phaseBackoff, 1, true
		rec.Resume = time.Now().Add(10 * time.Hour)
		if err := st.save(&rec); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n.start()
		n.tasks.awaitStart("a-2")
		within(t, "the pause", time.Since(began), 0, 4*time.Second)
	})
}

// A run in which the clock was set forward counts as a long one at most, and one
// in which it was set back as a short one: the pauses stay within their bounds.
func TestAnExitBearsAClockThatJumps(t *testing.T) {
	for _, jump := range []time.Duration{-10 * time.Hour, 10 * time.Hour} {
		rec := freshRecord(assignment("a", restart("always", "1s", "4s")), "boot-1")
		for range 5 {
			rec.Status.StartTime = now()
			exit := &v1.Exit{Code: 1, Time: now()}
			exit.Time.Seconds += int64(jump / time.Second)
			rec.exited(exit)
			within(t, "the pause", max(0, time.Until(rec.Resume)), 0, 4*time.Second)
		}
	}
}
