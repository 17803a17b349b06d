package nodes

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func fleetOf(count int) (names []string, nodes []*v1.Node) {
	for i := range count {
		name := fmt.Sprintf("n-%05d", i)
		names = append(names, name)
		nodes = append(nodes, &v1.Node{Metadata: &v1.Metadata{Uid: name, Name: name}, Status: &v1.NodeStatus{State: "ready"}})
	}
	return names, nodes
}

// A tenth of a large fleet falls silent. Those nodes and no others go offline when the
// silence limit is over, in few transactions.
func TestATenthOfAFleetGoesOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 2000
		names, all := fleetOf(count)
		proposer := &log{store: storeWith(t, all...), index: 1}
		loop := New(proposer.store, proposer, alive)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		for _, name := range names {
			loop.Connected(name, here, &v1.NodeStatus{})
		}
		offline := func() (n int) {
			synctest.Wait()
			for node := range proposer.store.Snapshot().Nodes("") {
				if node.GetStatus().GetState() == "offline" {
					n++
				}
			}
			return n
		}
		beats := func(seconds int, of []string) {
			for range seconds {
				time.Sleep(time.Second)
				for _, name := range of {
					loop.Heartbeat(name, &v1.Heartbeat{})
				}
			}
		}
		beats(20, names)
		if n := offline(); n != 0 {
			t.Errorf("%d of a fleet that reports are offline", n)
		}
		before := proposer.made()
		beats(4, names[count/10:])
		if n := offline(); n != count/10 {
			t.Errorf("%d are offline, %d are silent", n, count/10)
		}
		if made := proposer.made() - before; made > 3 {
			t.Errorf("it took %d transactions", made)
		}
		cancel()
		<-done
	})
}

// BenchmarkHeartbeat is what one heartbeat costs in a fleet of 5,000, ticks included.
func BenchmarkHeartbeat(b *testing.B) {
	names, all := fleetOf(5000)
	proposer := &log{store: storeWith(b, all...), index: 1}
	loop := New(proposer.store, proposer, alive)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	for _, name := range names {
		loop.Connected(name, here, &v1.NodeStatus{Capacity: &v1.NodeResources{Cpu: "4", Memory: "8Gi", Disk: "100Gi"}})
	}
	beat := &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "1", Memory: "1Gi", Disk: "1Gi"}}
	i := 0
	for b.Loop() {
		loop.Heartbeat(names[i%len(names)], beat)
		i++
	}
	cancel()
	<-done
}
