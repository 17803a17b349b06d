package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// down stops the agent and everything that it has started, as `cloudless down` does.
func (n *node) down() {
	n.t.Helper()
	n.stop()
	err := Down(n.t.Context(), DownOptions{
		DataDir: n.dir, Drivers: []driver.Driver{&handle{tasks: n.tasks}}, BootID: n.machine.boot, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if left := n.tasks.ids(); len(left) > 0 {
		n.t.Errorf("after Down there are %v", left)
	}
}

func TestDownIsLikeAReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		own := func(w *v1.WorkloadSpec) { w.Stop = &v1.Stop{Signal: "SIGINT", Grace: "3s"} }
		s.send(t, full(assignment("a", own), assignment("b", restart("on-failure", "", "")), assignment("once", restart("never", "", ""))))
		for _, uid := range []string{"a", "b", "once"} {
			s.await(t, uid, "running")
		}
		n.down()
		stops := n.tasks.stopped()
		slices.Sort(stops)
		if want := []string{"a-1 SIGINT 3s", "b-1 SIGTERM 10s", "once-1 SIGTERM 10s"}; !slices.Equal(stops, want) {
			t.Errorf("stops %v, want %v", stops, want)
		}

		n.server.setAway(true)
		n.start()
		n.tasks.awaitStart("a-2")
		n.tasks.awaitStart("b-2")
		synctest.Wait()
		n.server.setAway(false)
		s = n.join()
		for _, uid := range []string{"a", "b"} {
			if got := s.said(uid); got.GetPhase() != "running" || got.GetRestarts() != 0 || got.GetLastExit() != nil {
				t.Errorf("%s is %v", uid, got)
			}
		}
		if got := s.said("once"); got.GetPhase() != "failed" || !strings.Contains(got.GetReason(), "cloudless down") || got.GetEndTime() == nil {
			t.Errorf("what may never be restarted is %v", got)
		}
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-2", "b-2"}) {
			t.Errorf("there are %v", got)
		}
	})
}

// No agent has seen these exits yet, and Down removes the tasks.
func TestDownKeepsEarlierExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("done", restart("never", "", "")), assignment("crashed", restart("always", "1h", "1h"))))
		s.await(t, "done", "running")
		s.await(t, "crashed", "running")
		n.crash()
		n.tasks.exit("done-1", driver.Exit{})
		n.tasks.exit("crashed-1", driver.Exit{Code: 7})
		n.down()
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Errorf("stopped %v", got)
		}
		n.start()
		s = n.join()
		if got := s.said("done"); got.GetPhase() != "completed" || got.GetLastExit() == nil {
			t.Errorf("what had completed is %v", got)
		}
		if got := s.said("crashed"); got.GetPhase() != "backoff" || got.GetLastExit().GetCode() != 7 {
			t.Errorf("what had crashed is %v", got)
		}
	})
}

func TestDownWhileAReplicaIsStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		a := assignment("a", restart("never", "", ""))
		s.send(t, full(a))
		s.await(t, "a", "running")
		n.crash()
		st := &store{dir: filepath.Join(n.dir, storeDir)}
		rec, err := st.read("a")
		if err != nil {
			t.Fatal(err)
		}
		rec.Assignment = stopped(a) // recorded, but not acted on yet
		if err := st.save(rec); err != nil {
			t.Fatal(err)
		}
		n.down()
		n.start()
		s = n.join()
		if got := s.await(t, "a", "stopped"); got.GetReason() != "" {
			t.Errorf("it is %v", got)
		}
	})
}

func TestDownStopsTasksWithUnreadableRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("damaged"), assignment("lost"), assignment("whole")))
		for _, uid := range []string{"damaged", "lost", "whole"} {
			s.await(t, uid, "running")
		}
		n.stop()
		records := filepath.Join(n.dir, storeDir, replicasDir)
		if err := os.WriteFile(filepath.Join(records, "damaged"), []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(records, "lost")); err != nil {
			t.Fatal(err)
		}
		stranger := driver.Task{ID: "stranger", LogDir: t.TempDir()}
		if _, err := n.driver.Start(t.Context(), stranger); err != nil {
			t.Fatal(err)
		}
		n.down()
		if got := n.tasks.stopped(); len(got) != 4 {
			t.Errorf("stopped %v", got)
		}
	})
}

// A crash after the task was stopped and before it was removed.
func TestDownMayBeRepeated(t *testing.T) {
	rec := record{
		Assignment:  assignment("a"),
		Status:      &v1.ReplicaStatus{Phase: "running"},
		recordState: recordState{Boot: "boot-1", Attempt: 3, Started: true},
	}
	task := foundTask{replica: "a", attempt: 3, status: driver.Status{State: driver.StateRunning, PID: 7}}
	first := rec.afterDown("boot-1", []foundTask{task}, time.Now())
	task.status = driver.Status{State: driver.StateExited, Exit: &driver.Exit{Code: 143}}
	again := first.afterDown("boot-1", []foundTask{task}, time.Now())
	for _, got := range []record{first, again} {
		if got.Attempt != 4 || got.Started || got.Status.GetPhase() != "preparing" || got.Status.GetLastExit() != nil {
			t.Errorf("got %v, attempt %d", got.Status, got.Attempt)
		}
	}
}
