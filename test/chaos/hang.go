package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

// wordsUnderway is how long messages may still arrive after a process has stopped.
const wordsUnderway = 2 * time.Second

// hang stops the process of the leader, and then of a follower, while the kernel still
// accepts connections. Their nodes must switch to another server in time: none of them may
// go offline.
func (l *lab) hang(ctx context.Context) error {
	first, err := l.leader(ctx)
	if err != nil {
		return err
	}
	if err := l.hangOne(ctx, first); err != nil {
		return fmt.Errorf("while %s hung, which led: %w", first.name, err)
	}
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	// Not the first again: its nodes have left it.
	i := slices.IndexFunc(l.servers, func(m *machine) bool { return m != first && m != leader })
	if err := l.hangOne(ctx, l.servers[i]); err != nil {
		return fmt.Errorf("while %s hung, which followed: %w", l.servers[i].name, err)
	}
	return nil
}

func (l *lab) hangOne(ctx context.Context, m *machine) (err error) {
	i := slices.Index(l.servers, m)
	// Not through the one that hangs.
	observer, err := l.dial(ctx, l.addressesFrom(i + 1)[:len(l.servers)-1])
	if err != nil {
		return err
	}
	defer observer.Close()
	if err := l.runNew(ctx, observer, "before-"+m.name); err != nil { // over kept connections
		return err
	}
	began := time.Now()
	if err := m.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() {
		l.told.note("%s hung for %v", m.name, time.Since(began).Round(time.Millisecond))
		if err = errors.Join(err, m.signal(syscall.SIGCONT)); err == nil {
			err = l.until(ctx, l.whole)
		}
	}()
	if err := l.until(ctx, func(ctx context.Context) error { return heardSince(ctx, observer, began.Add(wordsUnderway)) }); err != nil {
		return err
	}
	if err := l.runNew(ctx, observer, "during-"+m.name); err != nil {
		return err
	}
	return noneOffline(ctx, observer, began)
}

// runNew lets every node pull a new image and run it.
func (l *lab) runNew(ctx context.Context, by *client.Client, name string) error {
	image, err := l.pushBy(ctx, by, name)
	if err != nil {
		return fmt.Errorf("push %s: %w", name, err)
	}
	_, err = by.Workloads().CreateWorkload(ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: name}, Spec: &v1.WorkloadSpec{Image: image, Kind: "daemon"},
	}})
	if err != nil {
		return err
	}
	return l.until(ctx, func(ctx context.Context) error {
		w, err := by.Workloads().GetWorkload(ctx, &v1.GetWorkloadRequest{Name: name})
		if err == nil && int(w.GetStatus().GetRunning()) != len(l.nodes) {
			err = fmt.Errorf("workload %s runs %d times: %v", name, w.GetStatus().GetRunning(), w.GetStatus())
		}
		return err
	})
}

// heardSince says which node has not been heard of since.
func heardSince(ctx context.Context, observer *client.Client, since time.Time) error {
	nodes, err := observer.Nodes().ListNodes(ctx, &v1.ListNodesRequest{})
	if err != nil {
		return err
	}
	for _, n := range nodes.GetItems() {
		if seen := n.GetStatus().GetLastSeen().AsTime(); !seen.After(since) {
			return fmt.Errorf("node %s, which is %s, was last heard of at %v", n.GetMetadata().GetName(), n.GetStatus().GetState(), seen)
		}
	}
	return nil
}

// noneOffline says which nodes went offline since.
func noneOffline(ctx context.Context, observer *client.Client, since time.Time) error {
	events, err := observer.Events().ListEvents(ctx, &v1.ListEventsRequest{})
	if err != nil {
		return err
	}
	var all []error
	for _, event := range events.GetItems() {
		if e := event.GetSpec(); e.GetReason() == "Offline" && e.GetTime().AsTime().After(since) {
			all = append(all, fmt.Errorf("%s was taken for offline: %s", e.GetObjectName(), e.GetMessage()))
		}
	}
	return errors.Join(all...)
}
