package agent

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// withKeepalives is a node in a session with a server that sends a sign of life every three
// seconds, or promises none.
func withKeepalives(t *testing.T, promise string, quiet func() time.Duration) (s *session, left *atomic.Int32) {
	n := newNode(t)
	left, n.quiet = new(atomic.Int32), quiet
	n.leave = func() { left.Add(1) }
	n.start()
	s = n.join()
	go func() {
		for range s.ups { // a hung server still accepts heartbeats for a while
		}
	}()
	t.Cleanup(func() { close(s.ups) })
	t.Cleanup(n.stop)
	first := full()
	first.Alive = promise
	s.send(t, first)
	return s, left
}

func TestAgentLeavesAHangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, left := withKeepalives(t, "3s", nil)
		for range 100 {
			time.Sleep(2 * time.Second)
			if err := s.stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Alive{Alive: &v1.Alive{}}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if left.Load() != 0 || s.stream.Context().Err() != nil {
			t.Fatal("a server that spoke five seconds ago was left")
		}
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if left.Load() != 1 || s.stream.Context().Err() == nil {
			t.Errorf("a server that has missed two signs of life was left %d times, and the session goes on: %t", left.Load(), s.stream.Context().Err() == nil)
		}
	})
}

// The promised interval can change at any time, and counts from then on.
func TestServerChangesTheKeepaliveInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, left := withKeepalives(t, "3s", nil)
		s.send(t, &v1.Assignments{Epoch: 1, Alive: "1m"})
		time.Sleep(119 * time.Second)
		synctest.Wait()
		if left.Load() != 0 || s.stream.Context().Err() != nil {
			t.Error("the server was left before it has missed two signs of life")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left.Load() != 1 {
			t.Error("the server was not left")
		}
	})
}

func TestServerWithoutKeepalivesIsNotLeft(t *testing.T) {
	for _, promise := range []string{"", "0s", "soon"} {
		synctest.Test(t, func(t *testing.T) {
			s, left := withKeepalives(t, promise, nil)
			time.Sleep(time.Hour)
			synctest.Wait()
			if left.Load() != 0 || s.stream.Context().Err() != nil {
				t.Errorf("a server that has promised %q was left", promise)
			}
		})
	}
}

// A long message on a slow line arrives bit by bit, and signs of life wait behind it.
func TestServerIsNotLeftDuringALongMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		came := time.Now().Add(time.Minute) // when its last part arrives
		quiet := func() time.Duration { return max(time.Second, time.Since(came)) }
		s, left := withKeepalives(t, "3s", quiet)
		time.Sleep(65 * time.Second)
		synctest.Wait()
		if left.Load() != 0 || s.stream.Context().Err() != nil {
			t.Error("the server was left though something came from it five seconds ago")
		}
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if left.Load() != 1 {
			t.Error("the server was not left though nothing has come from it for six seconds")
		}
	})
}
