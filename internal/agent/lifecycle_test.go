package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// within fails unless d is within the bounds: pauses have some jitter.
func within(t *testing.T, what string, d, low, high time.Duration) {
	t.Helper()
	if d < low || d > high {
		t.Errorf("%s took %s, want %s to %s", what, d, low, high)
	}
}

func TestAlwaysRestartsWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("always", "1s", "4s"))))
		for i, pause := range []time.Duration{0, 1, 2, 4, 4} {
			s.awaitRestart(t, "a", int32(i))
			exited := time.Now()
			n.tasks.exit(fmt.Sprint("a-", i+1), driver.Exit{Code: i}) // after success, too
			if pause > 0 {
				if got := s.await(t, "a", "backoff"); got.GetRestarts() != int32(i) || got.GetLastExit().GetCode() != int32(i) || got.GetPid() != 0 {
					t.Errorf("exit %d was reported as %v", i, got)
				}
			}
			n.tasks.awaitStart(fmt.Sprint("a-", i+2))
			pause *= time.Second
			within(t, "the pause", time.Since(exited), pause*9/10, pause)
		}
		s.awaitRestart(t, "a", 5)
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-6"}) {
			t.Errorf("earlier attempts are left: %v", got)
		}
	})
}

func TestRestartAfterALongRunIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("always", "1s", "1m"))))
		for i := range 3 {
			s.awaitRestart(t, "a", int32(i))
			n.tasks.exit(fmt.Sprint("a-", i+1), driver.Exit{Code: 1})
		}
		s.awaitRestart(t, "a", 3)
		time.Sleep(5 * time.Minute)
		exited := time.Now()
		n.tasks.exit("a-4", driver.Exit{Code: 1})
		n.tasks.awaitStart("a-5")
		within(t, "the pause", time.Since(exited), 0, 0)
	})
}

func TestPolicyDecidesAfterAnExit(t *testing.T) {
	for _, c := range []struct {
		policy string
		exit   driver.Exit
		phase  string
	}{
		{"always", driver.Exit{}, "running"},
		{"on-failure", driver.Exit{}, "completed"},
		{"on-failure", driver.Exit{Code: 3}, "running"},
		{"on-failure", driver.Exit{Code: 137, OOMKilled: true}, "running"},
		{"never", driver.Exit{}, "completed"},
		{"never", driver.Exit{Code: 3}, "failed"},
	} {
		t.Run(fmt.Sprintf("%s after %d is %s", c.policy, c.exit.Code, c.phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.start()
				s := n.join()
				s.send(t, full(assignment("a", restart(c.policy, "", ""))))
				s.await(t, "a", "running")
				n.tasks.exit("a-1", c.exit)
				got := s.awaitStatus(t, "a", c.phase, func(status *v1.ReplicaStatus) bool {
					return status.GetPhase() == c.phase && status.GetLastExit() != nil
				})
				if got.GetLastExit().GetOomKilled() != c.exit.OOMKilled || got.GetLastExit().GetCode() != int32(c.exit.Code) {
					t.Errorf("last exit is %v", got.GetLastExit())
				}
				if ended(c.phase) && got.GetEndTime() == nil {
					t.Error("ended without an end time")
				}
			})
		})
	}
}

func TestMissingImageIsRetriedUntilItExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.prepare = func(context.Context, driver.Task) error {
			return fmt.Errorf("pull hello:1: %w", driver.ErrImage)
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("never", "", ""))))
		got := s.await(t, "a", "backoff")
		if got.GetReason() != "pull hello:1: image not available" {
			t.Errorf("the reason is %q", got.GetReason())
		}
		n.tasks.mu.Lock()
		n.tasks.prepare = nil
		n.tasks.mu.Unlock()
		got = s.await(t, "a", "running")
		if got.GetRestarts() != 0 || got.GetReason() != "" {
			t.Errorf("a first run after waiting for the image is reported as %v", got)
		}
	})
}

func TestInvalidTaskFailsUnlessRestartable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.prepare = func(context.Context, driver.Task) error {
			return fmt.Errorf("%w: no command \xff in the image", driver.ErrInvalid)
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("never", "", "")), assignment("b")))
		if got := s.await(t, "a", "failed"); !strings.Contains(got.GetReason(), "no command") {
			t.Errorf("the reason is %q", got.GetReason())
		}
		s.await(t, "b", "backoff")
		s.send(t, delta(assignment("c", func(w *v1.WorkloadSpec) {
			w.Driver = "quantum"
			w.Restart = &v1.Restart{Policy: "never"}
		})))
		if got := s.await(t, "c", "failed"); !strings.Contains(got.GetReason(), `no driver "quantum"`) {
			t.Errorf("the reason is %q", got.GetReason())
		}
	})
}

func TestStopBySignalAndGraceKeepsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.ending = time.Second // otherwise it may stop before it reports stopping
		n.start()
		s := n.join()
		a := assignment("a", func(w *v1.WorkloadSpec) { w.Stop = &v1.Stop{Signal: "SIGINT", Grace: "3s"} })
		s.send(t, full(a))
		s.await(t, "a", "running")
		s.send(t, delta(stopped(a)))
		s.await(t, "a", "stopping")
		if got := s.await(t, "a", "stopped"); got.GetLastExit().GetCode() != 143 || got.GetEndTime() == nil {
			t.Errorf("stopped: %v", got)
		}
		synctest.Wait()
		if got := n.tasks.stopped(); !slices.Equal(got, []string{"a-1 SIGINT 3s"}) {
			t.Errorf("stops: %v", got)
		}
		if got := n.tasks.ids(); len(got) != 0 {
			t.Errorf("tasks are left: %v", got)
		}
		if _, err := os.Stat(filepath.Join(n.dir, "logs", "a")); err != nil {
			t.Error(err)
		}
		s.send(t, delta(a)) // wanted again
		s.await(t, "a", "running")
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-2"}) {
			t.Errorf("wanted again, there is %v", got)
		}
	})
}

// A temporary problem is cleared from the status once it is over, before a pause and before
// the end: a long wait follows both.
func TestSolvedProblemIsClearedFromTheStatus(t *testing.T) {
	for policy, phase := range map[string]string{"always": "backoff", "never": "failed"} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.start()
			s := n.join()
			s.send(t, full(assignment("a", restart(policy, "1h", "1h"))))
			s.await(t, "a", "running")
			task := "a-1"
			if policy == "always" { // there is a pause only after the second exit
				n.tasks.exit(task, driver.Exit{Code: 3})
				s.awaitRestart(t, "a", 1)
				task = "a-2"
			}
			n.tasks.setBusy(errors.New("device or resource busy"))
			n.tasks.exit(task, driver.Exit{Code: 3})
			s.awaitStatus(t, "a", "held up", func(status *v1.ReplicaStatus) bool {
				return strings.Contains(status.GetReason(), "device or resource busy")
			})
			n.tasks.setBusy(nil)
			free := time.Now()
			s.awaitStatus(t, "a", "failed for its own reason", func(status *v1.ReplicaStatus) bool {
				return status.GetPhase() == phase && status.GetReason() == "It exited with code 3."
			})
			within(t, "taking it back", time.Since(free), 0, time.Minute)
		})
	}
}

func TestUnknownSignalDoesNotPreventAStop(t *testing.T) {
	for signal, whose := range map[string]string{"SIGQIUT": "nobody's", "SIGPWR": "not the driver's"} {
		t.Run(signal+" is "+whose, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.tasks.unknown = "SIGPWR"
				n.start()
				s := n.join()
				a := assignment("a", func(w *v1.WorkloadSpec) { w.Stop = &v1.Stop{Signal: signal, Grace: "3s"} })
				s.send(t, full(a))
				s.await(t, "a", "running")
				s.send(t, delta(stopped(a)))
				s.await(t, "a", "stopped")
				if got := n.tasks.stopped(); !slices.Equal(got, []string{"a-1 SIGTERM 3s"}) {
					t.Errorf("stops: %v", got)
				}
			})
		})
	}
}

func TestChangedAssignmentInterruptsAtOnce(t *testing.T) {
	for phase, prepare := range map[string]func(context.Context, driver.Task) error{
		"backoff": func(context.Context, driver.Task) error { return driver.ErrImage },
		"preparing": func(ctx context.Context, _ driver.Task) error {
			<-ctx.Done() // a pull that never ends
			return ctx.Err()
		},
	} {
		t.Run(phase, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.tasks.prepare = prepare
				n.start()
				s := n.join()
				a := assignment("a", restart("always", "1h", "1h"))
				s.send(t, full(a))
				s.await(t, "a", phase)
				synctest.Wait()
				begin := time.Now()
				s.send(t, delta(stopped(a)))
				s.await(t, "a", "stopped")
				if passed := time.Since(begin); passed != 0 {
					t.Errorf("stopping out of %s took %s", phase, passed)
				}
				if got := n.tasks.started(); len(got) != 0 {
					t.Errorf("started %v", got)
				}
			})
		})
	}
}

func TestVanishedTaskIsRestartedByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.crash()
		n.tasks.lose("a-1")
		n.start()
		s = n.join()
		n.tasks.awaitStart("a-2")
		again := s.awaitStatus(t, "a", "restarted", func(status *v1.ReplicaStatus) bool {
			return status.GetPhase() == "running" && status.GetRestarts() == 1
		})
		if !strings.Contains(again.GetLastExit().GetReason(), "disappeared") {
			t.Errorf("after it disappeared: %v", again)
		}
	})
}

func TestRemovedReplicaLeavesOnlyItsLogUntilRetentionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "a", "running")
		n.tasks.print(t, "a-1", "hello")
		s.send(t, &v1.Assignments{Epoch: 1, Remove: []string{"a"}})
		s.await(t, "a", "stopped")
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(n.dir, "agent", "replicas", "a")); !os.IsNotExist(err) {
			t.Errorf("its record is left: %v", err)
		}
		log := filepath.Join(n.dir, "logs", "a", "00000001.log")
		time.Sleep(24*time.Hour - time.Minute)
		synctest.Wait()
		if _, err := os.Stat(log); err != nil {
			t.Errorf("the log went before its time: %v", err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := os.Stat(filepath.Dir(log)); !os.IsNotExist(err) {
			t.Errorf("the log is left: %v", err)
		}
		if _, err := os.Stat(filepath.Join(n.dir, "logs", "b")); err != nil {
			t.Errorf("the log of a replica that runs: %v", err)
		}
	})
}

// An OOM exit names the memory limit.
func TestOOMExitNamesTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", restart("never", "", ""), func(w *v1.WorkloadSpec) {
			w.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Memory: "64Mi"}}
		})))
		s.await(t, "a", "running")
		n.tasks.exit("a-1", driver.Exit{Code: 137, OOMKilled: true})
		got := s.await(t, "a", "failed")
		for _, told := range []string{got.GetReason(), got.GetLastExit().GetReason()} {
			if want := "It ran out of memory (OOM): its limit is 64Mi; raise spec.resources.limits.memory, or make it use less"; told != want {
				t.Errorf("it is reported as %q, want %q", told, want)
			}
		}
	})
}

// A program that fails because its child was OOM-killed is reported as such.
func TestExitAfterAnOOMKilledChildNamesTheLimit(t *testing.T) {
	rec := newRecord(assignment("a", func(w *v1.WorkloadSpec) {
		w.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Memory: "64Mi"}}
	}), "boot-1")
	exit := rec.seenExit(driver.Exit{Code: 3, ChildOOMKilled: true})
	want := "A process that it had started was killed. It ran out of memory (OOM): its limit is 64Mi; raise spec.resources.limits.memory, or make it use less"
	if exit.GetReason() != want || exit.GetOomKilled() || exit.GetCode() != 3 {
		t.Errorf("it is reported as %v, want %q", exit, want)
	}
}

// Connections go elsewhere before the program is asked to end.
func TestReplicaLeavesItsServicesBeforeItsStopSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		web := assignment("a", func(w *v1.WorkloadSpec) { w.Ports = []*v1.Port{{Port: 80}} })
		s.send(t, full(web))
		address := s.awaitReady(t, "a").GetAddresses()[0]
		s.send(t, delta(stopped(web)))
		s.await(t, "a", "stopping") // no longer an endpoint, for every node
		left := time.Now()
		if state := n.agent.ownStates()[address]; state != spec.EndpointDraining {
			t.Errorf("its node may not know of its successor, and yet the endpoint is %q there", state)
		}
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Fatalf("%v before the other nodes have heard of it", got)
		}
		s.await(t, "a", "stopped")
		if took := time.Since(left); took < leavePause {
			t.Errorf("it got its stop signal %s after it had left", took)
		}
	})
}
