package simulated

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Thousands of nodes report every second: that must not create garbage.
func TestHeartbeatsAllocateNothing(t *testing.T) {
	l := &link{stream: 1, last: 1}
	var shared beats
	round := 0
	buffer := make([]byte, 0, maxFrame)
	allocations := testing.AllocsPerRun(1000, func() {
		l.window, l.streamWindow = 1000, 1000
		round++
		if _, err := l.message(buffer[:0], shared.of(time.Second, round)); err != nil {
			t.Fatal(err)
		}
	})
	if allocations != 0 {
		t.Errorf("a heartbeat allocates %v times", allocations)
	}
}

func TestHeartbeatsCarryTheirInterval(t *testing.T) {
	var shared beats
	seen := map[string]bool{}
	for i := range 3 * variants {
		var up v1.SessionUp
		if err := proto.Unmarshal(shared.of(2*time.Second, i), &up); err != nil {
			t.Fatal(err)
		}
		if got := up.GetHeartbeat().GetInterval(); got != "2s" {
			t.Errorf("heartbeat %d comes every %q", i, got)
		}
		seen[up.GetHeartbeat().GetUsage().GetCpu()] = true
	}
	if len(seen) != variants {
		t.Errorf("there are %d different measurements", len(seen))
	}
}

// Nodes are spread over the interval, each keeps its interval, and a late one does not catch up.
func TestHeartbeatsAreSpreadAndKeepTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fleet{nodes: make([]*Node, 8)}
		for i := range f.nodes {
			f.nodes[i] = &Node{fleet: f, index: i}
			f.nodes[i].setPace(time.Second)
		}
		f.schedule()
		f.nodes[3].setPace(3 * time.Second) // as the cluster asked it to after its first
		count := map[int]int{}
		for range 30 * 10 { // half a minute
			time.Sleep(100 * time.Millisecond)
			for _, s := range f.shards {
				for d, ok := s.next(time.Now()); ok; d, ok = s.next(time.Now()) {
					count[d.node.index]++
				}
			}
		}
		for i, n := range count {
			if want := map[bool]int{true: 10, false: 30}[i == 3]; n < want || n > want+1 {
				t.Errorf("node %d has reported %d times in 30 s", i, n)
			}
		}
		time.Sleep(time.Hour)
		late := 0
		for _, s := range f.shards {
			for _, ok := s.next(time.Now()); ok; _, ok = s.next(time.Now()) {
				late++
			}
		}
		if late != len(f.nodes) {
			t.Errorf("after an hour without time, %d nodes report %d times", len(f.nodes), late)
		}
	})
}

// Orders arrive while heartbeats are due, without a deadlock.
func TestOrdersAndHeartbeatsGoTogether(t *testing.T) {
	f := &Fleet{nodes: make([]*Node, 1), options: Options{Delay: time.Millisecond}}
	n := &Node{fleet: f}
	n.setPace(time.Nanosecond)
	f.nodes[0] = n
	f.schedule()
	var work sync.WaitGroup
	const times = 20000
	work.Go(func() {
		for range times {
			n.take(orders{assigned: []desired{{uid: uuid.New()}}})
		}
	})
	work.Go(func() {
		for range times {
			n.shard().next(time.Now())
		}
	})
	work.Wait()
	if got := f.counts.assigned.Load(); got != times {
		t.Errorf("%d of %d replicas were taken", got, times)
	}
}
