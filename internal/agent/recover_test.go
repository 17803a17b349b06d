package agent

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// Every row of the table above resume, and lost records.
func TestResume(t *testing.T) {
	const created, running, exited = driver.StateCreated, driver.StateRunning, driver.StateExited
	type found = map[int]driver.State // by attempt
	for _, c := range []struct {
		name     string
		phase    string
		started  bool
		attempt  int
		rebooted bool
		tasks    found

		wantPhase   string
		wantAttempt int
		wantStale   int
	}{
		{"prepared, not started", "preparing", false, 1, false, nil, "preparing", 1, 0},
		{"start cut short", "preparing", false, 1, false, found{1: created}, "preparing", 1, 1},
		{"started, not recorded", "preparing", false, 2, false, found{2: running}, "running", 2, 0},
		{"started and exited, not recorded", "placed", false, 1, false, found{1: exited}, "running", 1, 0},
		{"an old attempt is in the way", "preparing", false, 2, false, found{1: exited}, "preparing", 2, 1},
		{"runs", "running", true, 3, false, found{3: running}, "running", 3, 0},
		{"exited meanwhile", "running", true, 3, false, found{3: exited}, "running", 3, 0},
		{"disappeared", "running", true, 3, false, nil, "running", 3, 0},
		{"record is older than the task", "placed", false, 1, false, found{4: running}, "running", 4, 0},
		{"pausing", "backoff", true, 3, false, found{3: exited}, "backoff", 3, 0},
		{"ended", "completed", true, 3, false, nil, "completed", 3, 0},
		{"stopping", "stopping", true, 3, false, found{3: running}, "stopping", 3, 0},

		{"reboot before the start", "preparing", false, 1, true, nil, "preparing", 1, 0},
		{"reboot after an unrecorded start", "preparing", false, 1, true, found{1: exited}, "preparing", 1, 1},
		{"reboot, then started, not recorded", "preparing", false, 1, true, found{1: running}, "running", 1, 0},
		{"reboot while it ran, then the next was started, not recorded", "running", true, 3, true, found{3: exited, 4: running}, "running", 4, 1},
		{"reboot while it ran", "running", true, 3, true, nil, "preparing", 4, 0},
		{"reboot while it ran, something is left", "running", true, 3, true, found{3: exited}, "preparing", 4, 1},
		{"reboot during a pause", "backoff", true, 3, true, nil, "backoff", 3, 0},
		{"reboot after its end", "failed", true, 3, true, found{3: exited}, "failed", 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := record{
				Assignment:  assignment("a"),
				Status:      &v1.ReplicaStatus{Phase: c.phase},
				recordState: recordState{Boot: "boot-1", Attempt: c.attempt, Started: c.started},
			}
			boot := "boot-1"
			if c.rebooted {
				boot = "boot-2"
			}
			var tasks []foundTask
			for attempt, state := range c.tasks {
				tasks = append(tasks, foundTask{replica: "a", attempt: attempt, status: driver.Status{State: state, PID: 7}})
			}
			got, stale := resume(rec, boot, tasks, time.Now())
			if got.Status.GetPhase() != c.wantPhase || got.Attempt != c.wantAttempt || len(stale) != c.wantStale {
				t.Errorf("phase %s, attempt %d, %d stale tasks; want %s, %d, %d",
					got.Status.GetPhase(), got.Attempt, len(stale), c.wantPhase, c.wantAttempt, c.wantStale)
			}
			if got.Boot != boot {
				t.Errorf("boot %s", got.Boot)
			}
			if rec.Status.GetPhase() != c.phase {
				t.Error("the given record was modified")
			}
		})
	}
}

func TestForeignTasksAreIgnored(t *testing.T) {
	for _, status := range []driver.Status{
		{ID: "a-1"},
		{ID: "a-1", Labels: map[string]string{labelReplica: "a"}},
		{ID: "a-1", Labels: map[string]string{labelReplica: "a", labelAttempt: "one"}},
		{ID: "b-1", Labels: map[string]string{labelReplica: "a", labelAttempt: "1"}},
	} {
		if _, ours := identify(nil, status); ours {
			t.Errorf("%v was taken for ours", status)
		}
	}
}
