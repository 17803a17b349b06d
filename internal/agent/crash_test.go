package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/driver"
)

func TestRestartedAgentReattachesToRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		before := s.await(t, "a", "running")
		n.tasks.print(t, "a-1", "before")
		n.crash()
		n.server.setAway(true) // reattached without a server

		n.start()
		synctest.Wait()
		n.server.setAway(false)
		s = n.join()
		after := s.said("a")
		if after.GetPhase() != "running" || after.GetPid() != before.GetPid() || after.GetRestarts() != 0 ||
			!after.GetStartTime().AsTime().Equal(before.GetStartTime().AsTime()) {
			t.Errorf("was %v, is %v", before, after)
		}
		s.send(t, full(assignment("a")))
		n.tasks.exit("a-1", driver.Exit{Code: 5}) // and the agent still owns it
		if got := s.awaitRestart(t, "a", 1); got.GetLastExit().GetCode() != 5 {
			t.Errorf("the exit was seen as %v", got)
		}
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1", "a-2"}) {
			t.Errorf("started %v", got)
		}
		n.tasks.mu.Lock()
		defer n.tasks.mu.Unlock()
		if got := filepath.Base(n.tasks.byID["a-2"].LogDir); got != "a" {
			t.Errorf("the log moved to %s", got)
		}
	})
}

func TestExitWhileTheAgentWasDownIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("never", "", ""))))
		s.await(t, "a", "running")
		n.crash()
		n.tasks.exit("a-1", driver.Exit{Code: 9})
		n.start()
		s = n.join()
		if got := s.await(t, "a", "failed"); got.GetLastExit().GetCode() != 9 {
			t.Errorf("the exit was seen as %v", got)
		}
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

// The driver has started the task, but the agent dies before it can record that.
func TestKilledBeforeRecordingTheStartStartsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.hold = make(chan struct{})
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		n.tasks.awaitStart("a-1")
		n.crash()

		n.start()
		s = n.join()
		if got := s.said("a"); got.GetPhase() != "running" || got.GetPid() != 1001 || got.GetRestarts() != 0 {
			t.Errorf("hello says %v", got)
		}
		s.send(t, full(assignment("a")))
		synctest.Wait()
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

func TestKilledBeforeTheStartStartsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.prepare = func(ctx context.Context, _ driver.Task) error {
			<-ctx.Done()
			return ctx.Err()
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "preparing")
		n.crash()
		n.tasks.prepare = nil
		n.server.setAway(true)
		n.start()
		n.tasks.awaitStart("a-1")
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

func TestKilledDuringAPauseResumesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("always", "1m", "1h"))))
		s.await(t, "a", "running")
		n.tasks.exit("a-1", driver.Exit{Code: 1}) // which causes no pause
		s.awaitRestart(t, "a", 1)
		exited := time.Now()
		n.tasks.exit("a-2", driver.Exit{Code: 1})
		s.await(t, "a", "backoff")
		time.Sleep(29 * time.Second) // not during a disk check, whose file may vanish while it is copied
		n.crash()
		n.start()
		n.tasks.awaitStart("a-3")
		within(t, "the pause", time.Since(exited), 54*time.Second, time.Minute)
		s = n.join()
		s.awaitRestart(t, "a", 2)
	})
}

func TestKilledWhileRemovingResumesWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.driver.cut() // it can no longer be stopped
		s.send(t, full())
		s.await(t, "a", "stopping")
		n.crash()
		n.server.setAway(true)
		n.start()
		synctest.Wait()
		if got := n.tasks.ids(); len(got) != 0 {
			t.Errorf("tasks are left: %v", got)
		}
	})
}

// A driver that is killed while removing a task first forgets the task's exit. The next
// agent has a record that the task ran, and removes the rest.
func TestPartlyRemovedTaskIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		a := assignment("a")
		s.send(t, full(a))
		s.await(t, "a", "running")
		n.driver.cut()
		s.send(t, delta(stopped(a)))
		s.await(t, "a", "stopping")
		n.crash()
		n.tasks.removePartly("a-1")
		n.start()
		s = n.join()
		s.await(t, "a", "stopped")
		synctest.Wait()
		if got := n.tasks.ids(); len(got) != 0 {
			t.Errorf("tasks are left: %v", got)
		}
	})
}

func TestOrphansAreRemovedOnlyByAFullSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		n.crash()
		for _, uid := range []string{"a", "b"} { // the agent's records are lost
			if err := os.Remove(filepath.Join(n.dir, "agent", "replicas", uid)); err != nil {
				t.Fatal(err)
			}
		}
		n.start()
		s = n.join()
		s.send(t, delta(assignment("c")))
		s.await(t, "c", "running")
		time.Sleep(time.Hour)
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-1", "b-1", "c-1"}) {
			t.Fatalf("before a full set there are %v", got)
		}
		s.send(t, full(assignment("a"), assignment("c")))
		s.await(t, "a", "running") // reattached, though nothing was recorded
		s.await(t, "b", "stopped")
		synctest.Wait()
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-1", "c-1"}) {
			t.Errorf("after a full set there are %v", got)
		}
		if got := n.tasks.started(); len(got) != 3 {
			t.Errorf("started %v", got)
		}
	})
}

func TestRebootCountsAsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("once", restart("never", "", ""))))
		s.await(t, "a", "running")
		s.await(t, "once", "running")
		n.crash()
		n.tasks.reboot()
		n.machine.boot = "boot-2"
		n.server.setAway(true)
		n.start()
		n.tasks.awaitStart("a-2")
		synctest.Wait()
		n.server.setAway(false)
		s = n.join()
		if got := s.said("a"); got.GetPhase() != "running" || got.GetRestarts() != 0 {
			t.Errorf("after the reboot: %v", got)
		}
		if got := s.said("once"); got.GetPhase() != "failed" || !strings.Contains(got.GetReason(), "machine was restarted") {
			t.Errorf("what may never be restarted is after the reboot: %v", got)
		}
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-2"}) {
			t.Errorf("there are %v", got)
		}
	})
}

// A crash between the first start after a reboot and its record is like any other: the
// agent owns the task, whether it still runs or not.
func TestKilledBeforeRecordingTheStartAfterAReboot(t *testing.T) {
	for _, exited := range []bool{false, true} {
		t.Run(map[bool]string{false: "it runs", true: "it has exited"}[exited], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.start()
				s := n.join()
				s.send(t, full(assignment("a", restart("always", "1h", "1h"))))
				s.await(t, "a", "running")
				n.crash()
				n.tasks.reboot()
				n.machine.boot = "boot-2"
				n.server.setAway(true)
				n.tasks.hold = make(chan struct{})
				n.start()
				n.tasks.awaitStart("a-2")
				n.crash()
				if exited {
					n.tasks.exit("a-2", driver.Exit{Code: 7})
				}

				n.start()
				synctest.Wait()
				n.server.setAway(false)
				s = n.join()
				got := s.said("a")
				if !exited && (got.GetPhase() != "running" || got.GetPid() != 1002) {
					t.Errorf("hello says %v", got)
				}
				started := []string{"a-1", "a-2"}
				if exited {
					started = append(started, "a-3") // the first restart is immediate
				}
				if exited && (got.GetPhase() != "running" || got.GetLastExit().GetCode() != 7) {
					t.Errorf("hello says %v", got)
				}
				if got := n.tasks.started(); !slices.Equal(got, started) {
					t.Errorf("started %v, want %v", got, started)
				}
			})
		})
	}
}

func TestDamagedFileIsRefusedAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.crash()
		path := filepath.Join(n.dir, "agent", "replicas", "a")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damagedBytes := slices.Clone(whole)
		damagedBytes[len(whole)/2] ^= 1
		if err := os.WriteFile(path, damagedBytes, 0o600); err != nil {
			t.Fatal(err)
		}
		n.driver = &handle{tasks: n.tasks}
		_, err = New(n.options())
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("New: %v", err)
		}
		if kept, _ := os.ReadFile(path); !slices.Equal(kept, damagedBytes) {
			t.Error("the damaged file was changed")
		}
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("there are %v", got)
		}
	})
}

func TestEndedReplicaDoesNotRunAgainAfterLostRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		a := assignment("a", restart("never", "", ""))
		s.send(t, full(a))
		s.await(t, "a", "running")
		n.tasks.exit("a-1", driver.Exit{})
		a.Replica.Status = s.await(t, "a", "completed")
		n.crash()
		if err := os.RemoveAll(n.dir); err != nil {
			t.Fatal(err)
		}
		n.start()
		s = n.join()
		s.send(t, full(a))
		if got := s.await(t, "a", "completed"); got.GetEndTime() == nil {
			t.Errorf("its past is lost: %v", got)
		}
		synctest.Wait()
		if got := n.tasks.started(); len(got) != 1 {
			t.Errorf("started %v", got)
		}
	})
}
