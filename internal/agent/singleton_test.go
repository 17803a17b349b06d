package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// leaseTime is how long the leases of these tests last.
const leaseTime = 15 * time.Second

// singleton is an assignment of which at most one replica may run.
func singleton(uid string, epoch uint64) *v1.Assignment {
	a := assignment(uid, func(w *v1.WorkloadSpec) { w.Singleton = true })
	a.Replica.Spec.Epoch = epoch
	return a
}

// asked waits for a heartbeat that asks for leases.
func (s *session) asked() *v1.Heartbeat {
	for {
		up := <-s.ups
		s.keep(up.GetReport().GetReplicas())
		if beat := up.GetHeartbeat(); len(beat.GetLeases()) > 0 {
			return beat
		}
	}
}

// grant grants what a heartbeat asks for.
func (s *session) grant(t *testing.T, beat *v1.Heartbeat) {
	t.Helper()
	down := &v1.SessionDown{Message: &v1.SessionDown_Lease{Lease: &v1.Lease{
		Number: beat.GetLeaseNumber(), Duration: durationpb.New(leaseTime), Replicas: beat.GetLeases(),
	}}}
	if err := s.stream.Send(down); err != nil {
		t.Fatal(err)
	}
}

func TestSingletonStartsOnlyWithALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(singleton("a", 7)))
		beat := s.asked()
		if got := n.tasks.started(); len(got) > 0 {
			t.Fatalf("%v started without a lease", got)
		}
		s.grant(t, beat)
		s.await(t, "a", "running")
		if got := n.tasks.environment("a-1")["CLOUDLESS_EPOCH"]; got != "7" {
			t.Errorf("its epoch is %q", got)
		}
	})
}

func TestSingletonRunsOnWhileItsLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(singleton("a", 1)))
		began := time.Now()
		for time.Since(began) < 4*leaseTime {
			s.grant(t, s.asked())
		}
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Errorf("stopped %v", got)
		}
	})
}

func TestSingletonStopsBeforeItsLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(singleton("a", 1), assignment("b")))
		beat := s.asked()
		asked := time.Now()
		s.grant(t, beat)
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		n.server.setAway(true)
		close(s.end) // the network is cut
		for len(n.tasks.stopped()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(asked); took > leaseTime || took < leaseTime-leaseReserve-time.Second {
			t.Errorf("it stopped %s after its lease began", took)
		}
		if got := n.tasks.stopped(); !slices.Equal(got, []string{"a-1 SIGTERM 3s"}) {
			t.Errorf("stopped %v, want only the singleton", got)
		}
		// It starts again only with a new lease.
		n.server.setAway(false)
		s = n.join()
		s.send(t, full(singleton("a", 1), assignment("b")))
		beat = s.asked()
		if got := n.tasks.started(); slices.Contains(got, "a-2") {
			t.Fatal("it started again without a lease")
		}
		s.grant(t, beat)
		s.await(t, "a", "running")
	})
}

// An answer to a request of long ago is worth only what is left of the lease.
func TestLateLeaseCountsFromItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(singleton("a", 1)))
		beat := s.asked()
		time.Sleep(leaseTime)
		s.grant(t, beat)
		synctest.Wait()
		if got := n.tasks.started(); len(got) > 0 {
			t.Errorf("%v started with a lease that had expired", got)
		}
	})
}
