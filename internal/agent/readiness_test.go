package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// nextReady waits for a heartbeat with a change of the Ready condition.
func (s *session) nextReady(t *testing.T) *v1.Condition {
	t.Helper()
	for range 10_000 {
		for _, c := range (<-s.ups).GetHeartbeat().GetStatus().GetConditions() {
			if c.GetType() == "Ready" {
				return c
			}
		}
	}
	t.Fatal("nothing is said of whether the node is ready")
	return nil
}

// A node whose data folder is not writable reports that with the time, and reports when it
// is over.
func TestUnwritableDataFolderMakesTheNodeUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		dir := filepath.Join(n.dir, storeDir)
		time.Sleep(time.Minute)
		began := time.Now()
		if err := os.Rename(dir, dir+"-away"); err != nil {
			t.Fatal(err)
		}
		lost := s.nextReady(t)
		if lost.GetStatus() || lost.GetReason() == "" || lost.GetChangeTime().AsTime().Before(began) {
			t.Errorf("the node says %v", lost)
		}
		if err := os.Rename(dir+"-away", dir); err != nil {
			t.Fatal(err)
		}
		if back := s.nextReady(t); !back.GetStatus() || !back.GetChangeTime().AsTime().After(lost.GetChangeTime().AsTime()) {
			t.Errorf("the node says %v", back)
		}
	})
}

func TestOneFailedCheckKeepsTheNodeReady(t *testing.T) {
	f := readiness{since: time.Unix(0, 0)}
	broken := errors.New("driver container does not work")
	for i := range unreadyAfter - 1 {
		if news, _ := f.note(broken, time.Unix(int64(i), 0)); news || !f.condition().GetStatus() {
			t.Fatalf("after %d failures the node is unfit", i+1)
		}
	}
	f.note(nil, time.Unix(5, 0))
	for i := range unreadyAfter {
		f.note(broken, time.Unix(int64(10+i), 0))
	}
	if c := f.condition(); c.GetStatus() || c.GetChangeTime().GetSeconds() != 10+unreadyAfter-1 {
		t.Errorf("the condition is %v", c)
	}
}

// The agent reports as often as the server says, starting with that very message.
func TestServerSetsTheReportInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, &v1.Assignments{Epoch: 1, Full: true, Heartbeat: "5s"})
		for (<-s.ups).GetHeartbeat().GetInterval() != "5s" {
		}
		begin := time.Now()
		for range 3 {
			if beat := (<-s.ups).GetHeartbeat(); beat.GetInterval() != "5s" {
				t.Errorf("heartbeat: %v", beat)
			}
		}
		if passed := time.Since(begin); passed != 15*time.Second {
			t.Errorf("three heartbeats took %s", passed)
		}
	})
}

func TestReportIntervalIsBounded(t *testing.T) {
	p := newPace(time.Second)
	for text, want := range map[string]time.Duration{"": time.Second, "0s": paceMost, "1ms": paceMost, "2s": 2 * time.Second, "1000h": paceLeast} {
		p.every.Store(int64(time.Second))
		if err := p.set(text); err != nil || p.now() != want {
			t.Errorf("after %q, the interval is %s (%v)", text, p.now(), err)
		}
	}
	if err := p.set("often"); err == nil {
		t.Error("a pace that is none was taken")
	}
}

func TestPingIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full())
		synctest.Wait()
		begin := time.Now()
		if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Ping{Ping: &v1.Ping{Sequence: 7}}}); err != nil {
			t.Fatal(err)
		}
		for {
			up := <-s.ups
			if up.GetPong() != nil {
				if up.GetPong().GetSequence() != 7 || time.Since(begin) != 0 {
					t.Errorf("answered with %v after %s", up, time.Since(begin))
				}
				return
			}
		}
	})
}

// An agent that stops for `cloudless down` says goodbye. One that is only restarted says
// nothing, and has time to come back.
func TestGoodbyeIsForDownOnly(t *testing.T) {
	for _, goingDown := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			stop, done := n.startAndStop(goingDown)
			s := n.join()
			s.send(t, full())
			synctest.Wait()
			stop()
			if said := s.goodbyes(done); said != goingDown {
				t.Errorf("going down: %v, said goodbye: %v", goingDown, said)
			}
		})
	}
}

// An agent that has just lost its session still says goodbye.
func TestGoodbyeOpensASessionIfNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		stop, done := n.startAndStop(true)
		lost := n.join()
		lost.send(t, full())
		synctest.Wait()
		close(lost.end)
		synctest.Wait() // the agent pauses before it retries
		stop()
		select {
		case s := <-n.server.sessions:
			if !s.goodbyes(done) {
				t.Error("no goodbye in the last session")
			}
		case <-done:
			t.Error("the agent left without a word")
		}
	})
}

// awaitUp waits for a message of the agent.
func (s *session) awaitUp(t *testing.T, is func(*v1.SessionUp) bool) *v1.SessionUp {
	t.Helper()
	for range 10_000 {
		select {
		case up := <-s.ups:
			s.keep(up.GetReport().GetReplicas())
			if is(up) {
				return up
			}
		case <-s.stream.Context().Done():
			t.Fatal("the session has ended")
		}
	}
	t.Fatal("it never says so")
	return nil
}

// departing reports whether a status says that the machine is about to leave.
func departing(status *v1.NodeStatus) bool {
	return slices.ContainsFunc(status.GetConditions(), func(c *v1.Condition) bool { return c.GetType() == spec.Departing && c.GetStatus() })
}

// A machine that goes to sleep announces it, waits until its replicas have left, says goodbye,
// and has no session until it is awake.
func TestSleepingMachineLeavesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		left := make(chan struct{})
		go func() {
			defer close(left)
			n.agent.depart(t.Context(), "The machine goes to sleep.")
		}()
		s.awaitUp(t, func(up *v1.SessionUp) bool { return departing(up.GetHeartbeat().GetStatus()) })
		synctest.Wait()
		select {
		case <-left:
			t.Fatal("it leaves while a replica runs")
		default:
		}
		s.send(t, full(stopped(assignment("a"))))
		s.await(t, "a", "stopped")
		bye := s.awaitUp(t, func(up *v1.SessionUp) bool { return up.GetGoodbye() != nil })
		if bye.GetGoodbye().GetReason() != "The machine goes to sleep." {
			t.Errorf("it says %v", bye)
		}
		<-left
		time.Sleep(time.Hour)
		select {
		case <-n.server.sessions:
			t.Fatal("it comes back although it sleeps")
		default:
		}
		n.agent.departure.end()
		if s := n.join(); departing(s.hello.GetStatus()) {
			t.Error("it still departs when it is awake")
		}
	})
}

// A machine that shuts down says goodbye when its time is over, whatever still runs there.
func TestMachineShutsDownInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		began := time.Now()
		go n.agent.depart(ctx, "The machine shuts down.")
		s.awaitUp(t, func(up *v1.SessionUp) bool { return up.GetGoodbye().GetReason() == "The machine shuts down." })
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("it leaves after %s", took)
		}
		n.stop() // as systemd does then
		select {
		case <-n.server.sessions:
			t.Error("it opens another session")
		default:
		}
	})
}

// A shutdown that does not come about leaves the node as it was.
func TestCancelledDepartureIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.agent.departure.begin("The machine shuts down.")
		n.agent.noteChange()
		s.awaitUp(t, func(up *v1.SessionUp) bool { return departing(up.GetHeartbeat().GetStatus()) })
		n.agent.departure.end()
		s.awaitUp(t, func(up *v1.SessionUp) bool {
			return up.GetHeartbeat().GetStatus() != nil && !departing(up.GetHeartbeat().GetStatus())
		})
	})
}

// startAndStop runs an agent that is stopped by `cloudless down`, or only to be restarted.
func (n *node) startAndStop(goingDown bool) (stop func(), done <-chan error) {
	n.t.Helper()
	n.driver = &handle{tasks: n.tasks}
	opts := n.options()
	opts.GoingDown = func() bool { return goingDown }
	agent, err := New(opts)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	return cancel, ended
}

// goodbyes reports whether a goodbye comes before the agent ends.
func (s *session) goodbyes(done <-chan error) bool {
	for said := false; ; {
		select {
		case up := <-s.ups:
			said = said || up.GetGoodbye() != nil
		case <-done:
			return said
		}
	}
}
