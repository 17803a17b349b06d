package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// refuse makes the server end every session with err; nil ends that.
func (s *server) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = err
}

// removed is a cluster's refusal of a removed node.
func removed(t *testing.T, epoch uint64) error {
	s, err := status.New(codes.Unauthenticated, "node box is not a member any more").WithDetails(api.NodeRemoved(epoch))
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

// runUntilRemoved starts an agent and waits until it ends because its node was removed.
func (n *node) runUntilRemoved() {
	n.t.Helper()
	n.driver = &handle{tasks: n.tasks}
	agent, err := New(n.options())
	if err != nil {
		n.t.Fatal(err)
	}
	if err := agent.Run(n.t.Context()); !errors.Is(err, ErrRemoved) {
		n.t.Errorf("Run ended with %v", err)
	}
}

// nothingLeft checks that no task, record or address of a replica is left.
func (n *node) nothingLeft() {
	n.t.Helper()
	if ids := n.tasks.ids(); len(ids) > 0 {
		n.t.Errorf("tasks %v are left", ids)
	}
	records, err := (&store{dir: n.dir + "/" + storeDir}).load()
	if err != nil || len(records) > 0 {
		n.t.Errorf("%d records are left (%v)", len(records), err)
	}
}

func TestRemovedNodeStopsItsReplicasAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.driver = &handle{tasks: n.tasks}
		agent, err := New(n.options())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- agent.Run(t.Context()) }()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		n.server.refuse(removed(t, 1))
		close(s.end)
		if err := <-ended; !errors.Is(err, ErrRemoved) {
			t.Errorf("Run ended with %v", err)
		}
		if stopped := n.tasks.stopped(); len(stopped) != 2 {
			t.Errorf("stopped %v", stopped)
		}
		n.nothingLeft()
	})
}

// Stopping may take as long as the longest grace period, and is reported.
func TestRemovedNodeReportsWhatItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		patient := func(w *v1.WorkloadSpec) { w.Stop = &v1.Stop{Grace: "40s"} }
		s.send(t, full(assignment("a"), assignment("b", patient)))
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		n.crash()
		n.server.refuse(removed(t, 1))
		n.driver = &handle{tasks: n.tasks}
		options, told := n.options(), ""
		options.Ending = func(replicas int, atMost time.Duration) { told += fmt.Sprintf("%d replicas, %s;", replicas, atMost) }
		agent, err := New(options)
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Run(t.Context()); !errors.Is(err, ErrRemoved) || told != "2 replicas, 40s;" {
			t.Errorf("Run ended with %v, and reported %q", err, told)
		}
	})
}

// An agent that was down when its node was removed learns it from the first server that it
// reaches, and stops what an earlier agent left running.
func TestRestartedAgentOfARemovedNodeStopsItsReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.crash()
		n.server.refuse(removed(t, 1))
		n.runUntilRemoved()
		if stopped := n.tasks.stopped(); len(stopped) != 1 {
			t.Errorf("stopped %v", stopped)
		}
		n.nothingLeft()
	})
}

// A removal is on disk before anything is stopped: an agent that is killed meanwhile stops
// the rest at its next start, even without a server.
func TestRemovalSurvivesACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.tasks.setBusy(errors.New("the driver is busy"))
		n.server.refuse(removed(t, 1))
		close(s.end)
		synctest.Wait()
		time.Sleep(time.Minute)
		n.crash()
		n.tasks.setBusy(nil)
		n.server.refuse(status.Error(codes.Unavailable, "the server is away"))
		n.start()
		time.Sleep(time.Minute)
		n.nothingLeft()
	})
}

// A server that does not know the node proves nothing: it may have been restored from an
// older state. A removal in an older epoch comes from servers that the cluster left behind.
func TestReplicasSurviveOtherRefusals(t *testing.T) {
	for name, refusal := range map[string]func(*testing.T) error{
		"unknown node": func(*testing.T) error {
			return status.Error(codes.Unauthenticated, "node box is not a member of this cluster")
		},
		"older epoch": func(t *testing.T) error { return removed(t, 0) },
		"away":        func(*testing.T) error { return status.Error(codes.Unavailable, "the server is away") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.start()
				s := n.join()
				s.send(t, full(assignment("a")))
				s.await(t, "a", "running")
				n.server.refuse(refusal(t))
				close(s.end)
				time.Sleep(time.Hour)
				if stopped := n.tasks.stopped(); len(stopped) > 0 {
					t.Errorf("stopped %v", stopped)
				}
				n.server.refuse(nil)
				if s = n.join(); s.said("a").GetPhase() != "running" {
					t.Errorf("replica a is %s", s.said("a").GetPhase())
				}
			})
		})
	}
}

// An agent that is asked to stop while it stops the replicas of a removed node ends without
// them.
func TestAgentOfARemovedNodeCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.driver = &handle{tasks: n.tasks}
		agent, err := New(n.options())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- agent.Run(ctx) }()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.tasks.setBusy(errors.New("the driver is busy"))
		n.server.refuse(removed(t, 1))
		close(s.end)
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// Another node of the same machine has another key in the mesh: two nodes with one key could not be told apart.
func TestDisownedKeyIsNotUsedAgain(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore(filepath.Join(dir, storeDir))
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.meshKey()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, there is none
		if err := Disown(dir); err != nil {
			t.Fatal(err)
		}
	}
	after, err := s.meshKey()
	if err != nil || after.Public() == before.Public() {
		t.Errorf("the new node has the key of the former one: %v", err)
	}
}

// A machine that becomes another node after a restart starts none of its former node's
// replicas, even before a server sends assignments.
func TestDisownedReplicasAreRemovedAndNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.crash()
		n.tasks.reboot()
		n.machine.boot = "boot-2"
		if err := Disown(n.dir); err != nil {
			t.Fatal(err)
		}
		starts := len(n.tasks.started())
		n.server.setAway(true)
		n.start()
		time.Sleep(time.Minute)
		if more := n.tasks.started()[starts:]; len(more) > 0 {
			t.Errorf("started %v", more)
		}
		n.nothingLeft()
	})
}
