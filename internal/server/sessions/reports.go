package sessions

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/state"
)

// reports queues what agents report until it is written. The queue fills while the last
// batch is being committed, so that many reports share a batch.
type reports struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting map[reportKey]*v1.ReplicaStatus
	events  map[string]*nodeEvents // by node
}

// reportKey has the node in it, so that a node cannot replace the report of another node.
type reportKey struct{ node, replica string }

func newReports() *reports {
	return &reports{wake: make(chan struct{}, 1), waiting: map[reportKey]*v1.ReplicaStatus{}, events: map[string]*nodeEvents{}}
}

// submit queues the reports of a node. A newer report of a replica replaces the older one.
func (r *reports) submit(node string, replicas []*v1.ReplicaReport) {
	if len(replicas) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range replicas {
		r.waiting[reportKey{node, one.GetUid()}] = one.GetStatus()
	}
	r.signal()
}

func (r *reports) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take returns and clears the queued reports.
func (r *reports) take() map[reportKey]*v1.ReplicaStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.waiting
	r.waiting = map[reportKey]*v1.ReplicaStatus{}
	return taken
}

// The limits of one batch: its reports, and the bytes of its replicas' labels. A batch must
// fit into a transaction, and other writers wait for it.
const (
	maxReports      = 192
	maxReportLabels = 2 << 20
)

// writeReports writes what agents report until ctx ends.
func (s *Sessions) writeReports(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.reports.wake:
		}
		err := s.write(ctx, s.reports.take())
		if err == nil {
			err = s.writeEvents(ctx, s.reports.takeEvents())
		}
		if err == nil {
			err = s.writeDeliveries(ctx, s.deliveries.take())
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "cannot write the agents' reports; all agents have to reconnect and report again", slog.Any("error", err))
			s.connected.endAll(ctx, err)
		}
	}
}

// endAllPause is how long endAll waits. The cause, such as a full disk, usually lasts
// longer than the agents need to reconnect.
const endAllPause = time.Second

// endAll ends the present sessions after a pause, unless ctx ends first. An agent reports
// everything when it reconnects, so sessions that begin during the pause may stay.
func (t *table) endAll(ctx context.Context, why error) {
	var present []*session
	t.each(func(one *session) { present = append(present, one) })
	pause := time.NewTimer(endAllPause)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return
	case <-pause.C:
	}
	for _, one := range present {
		one.cancel(why)
	}
}

// write writes reports in batches.
func (s *Sessions) write(ctx context.Context, reports map[reportKey]*v1.ReplicaStatus) error {
	order := slices.SortedFunc(maps.Keys(reports), func(a, b reportKey) int {
		return cmp.Or(cmp.Compare(a.replica, b.replica), cmp.Compare(a.node, b.node))
	})
	for len(order) > 0 {
		written := 0
		_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			written = 0
			plain := &transitions{}
			for labels := 0; written < min(len(order), maxReports) && labels < maxReportLabels; written++ {
				key := order[written]
				if r := s.addReport(ctx, snap, b, key, reports[key], plain); r != nil {
					labels += labelSize(r.GetMetadata().GetLabels())
				}
			}
			plain.addEvents(ctx, s, snap, b)
			return nil
		})
		if err != nil {
			return err
		}
		order = order[written:]
	}
	return nil
}

func labelSize(labels map[string]string) (size int) {
	for key, value := range labels {
		size += len(key) + len(value)
	}
	return size
}

// addReport adds a report to a batch if the replica is on the node that reported it and
// has not ended yet. It returns the changed replica, or nil.
func (s *Sessions) addReport(ctx context.Context, snap *state.Snapshot, b *state.Batch, key reportKey, status *v1.ReplicaStatus, plain *transitions) *v1.Replica {
	old := snap.Replica(key.replica)
	r := assignment.Reported(old, key.node, assignment.Within(snap.Node(key.node).GetSpec(), status), s.Now())
	if r == nil {
		return nil
	}
	r.Status.Reason = shorten(r.Status.GetReason())
	if exit := r.Status.GetLastExit(); exit != nil {
		exit.Reason = shorten(exit.GetReason())
	}
	b.Update(r, old.GetMetadata().GetVersion())
	reason, message, severe := transition(old.GetStatus(), r.GetStatus())
	switch {
	case reason == "":
	case message == "" && !severe:
		plain.add(r, reason)
	default:
		b.Create(s.replicaEvent(ctx, r, reason, message, severe))
	}
	return r
}

// shorten bounds the texts that a node can write into the state.
func shorten(text string) string {
	const longest = 1024
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}
