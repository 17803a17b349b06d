package agent

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// While the process runs, a pause is measured by the monotonic clock.
func TestPauseUsesTheMonotonicClock(t *testing.T) {
	rec := newRecord(assignment("a", restart("always", "1s", "4s")), "boot-1")
	rec.Status.StartTime = now()
	rec.exited(&v1.Exit{Code: 1, Time: now()}, false)
	if rec.Status.GetPhase() != spec.PhaseBackoff || !strings.Contains(rec.Resume.String(), " m=") {
		t.Errorf("the pause ends at %s, which is a mere date", rec.Resume)
	}
}

// A record from before a restart has only the wall time. If the clock was set back by hours
// since, the replica does not wait for hours.
func TestPauseFromDiskSurvivesAClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		a := assignment("a", restart("always", "1s", "4s"))
		st, err := openStore(filepath.Join(n.dir, storeDir))
		if err != nil {
			t.Fatal(err)
		}
		rec := newRecord(a, "boot-1")
		rec.Status.Phase, rec.Attempt, rec.Started = spec.PhaseBackoff, 1, true
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

// If the clock jumps during a run, the run counts as a long or a short one, and the pauses
// stay within their bounds.
func TestExitSurvivesAClockJump(t *testing.T) {
	for _, jump := range []time.Duration{-10 * time.Hour, 10 * time.Hour} {
		rec := newRecord(assignment("a", restart("always", "1s", "4s")), "boot-1")
		for range 5 {
			rec.Status.StartTime = now()
			exit := &v1.Exit{Code: 1, Time: now()}
			exit.Time.Seconds += int64(jump / time.Second)
			rec.exited(exit, false)
			within(t, "the pause", max(0, time.Until(rec.Resume)), 0, 4*time.Second)
		}
	}
}
