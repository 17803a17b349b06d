package nodes

import (
	"fmt"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func replicaOn(node, uid string) *v1.Replica {
	return &v1.Replica{
		Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
		Spec:     &v1.ReplicaSpec{NodeUid: node, Node: "n1", Workload: "web"},
		Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning},
	}
}

// put changes the state behind the loop.
func put(t *testing.T, l *Loop, objects ...state.Object) {
	t.Helper()
	var b state.Batch
	for _, o := range objects {
		b.Put(o)
	}
	if _, err := l.proposer.Propose(t.Context(), b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
}

func beat(uids ...string) *v1.Heartbeat {
	b := &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "1"}}
	for _, uid := range uids {
		// Names in the report are ignored.
		b.Replicas = append(b.Replicas, &v1.ReplicaUsage{Uid: uid, Workload: "forged", Node: "forged", MemoryBytes: 7})
	}
	return b
}

func used(l *Loop) string {
	nodes, replicas, _ := l.Usage()
	text := fmt.Sprint(len(nodes), " node:")
	for _, uid := range []string{"a", "b", "c", "other"} {
		if replicas[uid] != nil {
			text += " " + uid
		}
	}
	return text
}

func wantUsed(t *testing.T, l *Loop, want string) {
	t.Helper()
	if got := used(l); got != want {
		t.Errorf("in use is %q, want %q", got, want)
	}
}

func TestUsageIsKeptWithItsReplicaAndNode(t *testing.T) {
	_ = lead(t, "enrolling", nil, func(t *testing.T, l *Loop, state func() string, proposals func() int) {
		put(t, l, replicaOn("n", "a"), replicaOn("n", "b"), replicaOn("another", "other"))
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, state, "ready")
		before := proposals()
		l.Heartbeat("n", beat("a", "b", "other", "unknown"))
		wantUsed(t, l, "1 node: a b")
		_, replicas, _ := l.Usage()
		if a := replicas["a"]; a.GetNamespace() != "default" || a.GetWorkload() != "web" || a.GetReplica() != "web-a" || a.GetNode() != "n1" || a.GetMemoryBytes() != 7 {
			t.Errorf("the usage of a is %v", a)
		}
		if proposals() != before {
			t.Error("usage was proposed to be replicated")
		}

		// A heartbeat without measurements leaves the last ones.
		l.Heartbeat("n", beat())
		wantUsed(t, l, "1 node: a b")
		// A measurement without a replica means that it does not run any more.
		l.Heartbeat("n", beat("a"))
		wantUsed(t, l, "1 node: a")
		// An ended replica disappears at once, and from memory with the next report.
		ended := replicaOn("n", "a")
		ended.Status.Phase = spec.PhaseStopped
		put(t, l, ended)
		wantUsed(t, l, "1 node:")
		l.Heartbeat("n", beat())
		if kept := l.entries["n"].replicas; len(kept) != 0 {
			t.Errorf("memory still holds %v", kept)
		}

		// The last usage of an offline node is dropped.
		l.Heartbeat("n", beat("b"))
		wantUsed(t, l, "1 node: b")
		time.Sleep(windows.Silence - time.Second)
		wantUsed(t, l, "1 node: b")
		time.Sleep(time.Second)
		want(t, state, "offline")
		wantUsed(t, l, "0 node:")
		l.Heartbeat("n", beat("b"))
		want(t, state, "ready")
		wantUsed(t, l, "1 node: b")
		l.Disconnected("n")
		time.Sleep(windows.Reconnect)
		want(t, state, "offline")
		wantUsed(t, l, "0 node:")
	})
}

func TestUsageReportsWakeWatchers(t *testing.T) {
	_ = lead(t, "enrolling", nil, func(t *testing.T, l *Loop, state func() string, _ func() int) {
		put(t, l, replicaOn("n", "a"))
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, state, "ready")
		_, _, one := l.Usage()
		_, _, other := l.Usage()
		l.Heartbeat("n", beat("a"))
		<-one
		<-other
		// Silence is news, too, once: the node's usage is gone.
		_, _, news := l.Usage()
		began := time.Now()
		<-news
		if passed := time.Since(began); passed != windows.Silence {
			t.Errorf("the loss was reported after %s", passed)
		}
		wantUsed(t, l, "0 node:")
	})
}

func TestRemovedNodeIsForgotten(t *testing.T) {
	_ = lead(t, "enrolling", nil, func(t *testing.T, l *Loop, s func() string, _ func() int) {
		l.Connected("n", here, &v1.NodeStatus{})
		want(t, s, "ready")
		var b state.Batch
		b.Delete(state.KindNode, "n")
		if _, err := l.proposer.Propose(t.Context(), b.Transaction(time.Now())); err != nil {
			t.Fatal(err)
		}
		l.Disconnected("n")
		s() // the loop has come to rest
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.entries) != 0 {
			t.Errorf("memory holds %v", l.entries)
		}
	})
}
