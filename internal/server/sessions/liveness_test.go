package sessions

import (
	"testing"
	"testing/synctest"
	"time"
)

// A garbage collection delays a keepalive by half an interval at most: an agent that misses two keepalives leaves.
func TestGarbageCollectionDelaysKeepalives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keepalive := newKeepalive()
		defer keepalive.Stop()
		keepalive.restart(3 * time.Second)
		began := time.Now()
		sent := func(collecting bool) time.Duration {
			for {
				<-keepalive.C
				if keepalive.due(collecting) {
					return time.Since(began)
				}
			}
		}
		if at := sent(false); at != 3*time.Second {
			t.Errorf("the first keepalive was sent after %s", at)
		}
		if at := sent(true); at != 7500*time.Millisecond {
			t.Errorf("the delayed keepalive was sent after %s", at)
		}
		if at := sent(false); at != 10500*time.Millisecond {
			t.Errorf("the next keepalive was sent after %s", at)
		}
	})
}

func TestAgentIsPingedOncePerInterval(t *testing.T) {
	var p pings
	now := time.Now()
	if !p.schedule(now) || p.schedule(now.Add(pingEvery-1)) {
		t.Error("a ping is not scheduled exactly once in an interval")
	}
	first, ok := p.take(now)
	if _, again := p.take(now); !ok || again {
		t.Error("a scheduled ping is not sent exactly once")
	}
	if _, ok := p.answered(first+1, now); ok {
		t.Error("the answer to another ping counts")
	}
	if took, ok := p.answered(first, now.Add(time.Second)); !ok || took != time.Second {
		t.Errorf("the answer took %s", took)
	}
	if _, ok := p.answered(first, now.Add(time.Minute)); ok {
		t.Error("a second answer to the same ping counts")
	}
	if !p.schedule(now.Add(pingEvery)) {
		t.Error("no ping is scheduled after an interval")
	}
}
