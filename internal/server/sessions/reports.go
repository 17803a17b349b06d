package sessions

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// reports collects what agents say about their replicas and writes it in
// batches: while one batch is being agreed on, the next one fills.
type reports struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting map[reported]*v1.ReplicaStatus
	noticed map[string]*noticed // by node
}

// reported is a replica in the words of one node, so that what one node says
// never takes the place of what another one does.
type reported struct{ node, replica string }

func newReports() *reports {
	return &reports{wake: make(chan struct{}, 1), waiting: map[reported]*v1.ReplicaStatus{}, noticed: map[string]*noticed{}}
}

func (r *reports) submit(node string, replicas []*v1.ReplicaReport) {
	if len(replicas) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range replicas {
		r.waiting[reported{node, one.GetUid()}] = one.GetStatus()
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reports) take() map[reported]*v1.ReplicaStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.waiting
	r.waiting = map[reported]*v1.ReplicaStatus{}
	return taken
}

// A batch has so many reports, of replicas with so many bytes of labels: it must
// be within the size of a transaction, and others that write wait for it.
const (
	maxReports      = 192
	maxReportLabels = 2 << 20
)

// record writes reports until ctx ends.
func (s *Sessions) record(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.reports.wake:
		}
		err := s.write(ctx, s.reports.take())
		if err == nil {
			err = s.writeNoticed(ctx, s.reports.takeNoticed())
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "reports could not be written", slog.Any("error", err))
			s.connected.hearAgain(ctx, err)
		}
	}
}

// hearAgainPause is how long the leader waits before it has all agents say
// everything again: what kept it from writing, a full disk say, lasts longer
// than they need to connect.
const hearAgainPause = time.Second

// hearAgain ends the sessions there are, unless ctx ends before. An agent says
// everything again when it connects again; who connects meanwhile has.
func (s *table) hearAgain(ctx context.Context, why error) {
	var heard []*session
	s.each(func(one *session) { heard = append(heard, one) })
	pause := time.NewTimer(hearAgainPause)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return
	case <-pause.C:
	}
	for _, one := range heard {
		one.cancel(why)
	}
}

func (s *Sessions) write(ctx context.Context, batch map[reported]*v1.ReplicaStatus) error {
	order := slices.SortedFunc(maps.Keys(batch), func(a, b reported) int {
		return cmp.Or(cmp.Compare(a.replica, b.replica), cmp.Compare(a.node, b.node))
	})
	for len(order) > 0 {
		written := 0
		_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			written = 0
			said := &transitions{}
			for labels := 0; written < min(len(order), maxReports) && labels < maxReportLabels; written++ {
				what := order[written]
				if r := s.recordOne(ctx, snap, b, what, batch[what], said); r != nil {
					labels += labelSize(r.GetMetadata().GetLabels())
				}
			}
			said.tell(ctx, s, snap, b)
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

// recordOne adds a report to the batch if the replica belongs to the node that
// reported it and has not ended already, and returns the replica then.
func (s *Sessions) recordOne(ctx context.Context, snap *state.Snapshot, b *state.Batch, what reported, status *v1.ReplicaStatus, said *transitions) *v1.Replica {
	old := snap.Replica(what.replica)
	r := assignment.Reported(old, what.node, status, s.Now())
	if r == nil {
		return nil
	}
	r.Status.Reason = brief(r.Status.GetReason())
	if exit := r.Status.GetLastExit(); exit != nil {
		exit.Reason = brief(exit.GetReason())
	}
	b.Update(r, old.GetMetadata().GetVersion())
	reason, message, severe := transition(old.GetStatus(), r.GetStatus())
	switch {
	case reason == "":
	case message == "" && !severe:
		said.add(r, reason)
	default:
		b.Create(s.replicaEvent(ctx, r, reason, message, severe))
	}
	return r
}

// replicaEvent is what a node says about one replica.
func (s *Sessions) replicaEvent(ctx context.Context, r *v1.Replica, reason, message string, severe bool) *v1.Event {
	e := s.Event(ctx, r, reason, message)
	e.Spec.Actor = "node/" + r.GetSpec().GetNode()
	if severe {
		e.Spec.Severity = state.SeverityWarning
	}
	return e
}

// brief keeps what a node can write into the state short.
func brief(reason string) string {
	const longest = 1024
	if len(reason) <= longest {
		return reason
	}
	return strings.ToValidUTF8(reason[:longest], "") + "…"
}

// transition says in words what changed between two statuses, if it is worth
// an event.
func transition(before, after *v1.ReplicaStatus) (reason, message string, severe bool) {
	exit := after.GetLastExit()
	switch {
	case exit != nil && !proto.Equal(before.GetLastExit(), exit) && after.GetPhase() != spec.PhaseStopped:
		message = fmt.Sprintf("exit code %d", exit.GetCode())
		if why := spec.ExitReason(exit); why != "" {
			message += ": " + why
		}
		return "Exited", message, exit.GetCode() != 0
	case before.GetPhase() == after.GetPhase():
		return "", "", false
	case after.GetPhase() == spec.PhaseRunning:
		return "Started", "", false
	case after.GetPhase() == spec.PhaseStopped:
		return "Stopped", "", false
	case after.GetPhase() == spec.PhaseBackoff, after.GetPhase() == spec.PhaseFailed:
		return "Failed", after.GetReason(), true
	}
	return "", "", false
}

// fewTransitions is how many replicas that start or stop are told one by one. An
// event is as dear as what it tells of, and nobody reads thousands of them.
const fewTransitions = 32

// transitions are those of one batch of reports of which there is no more to say
// than that they happened.
type transitions struct {
	all []transitioned
}

type transitioned struct {
	replica *v1.Replica
	reason  string
}

func (t *transitions) add(r *v1.Replica, reason string) {
	t.all = append(t.all, transitioned{r, reason})
}

// tell makes events of them: one for each replica where they are few, else one
// for each workload.
func (t *transitions) tell(ctx context.Context, s *Sessions, snap *state.Snapshot, b *state.Batch) {
	type group struct{ workload, reason string }
	of := map[group]int{}
	for _, one := range t.all {
		of[group{one.replica.GetSpec().GetWorkloadUid(), one.reason}]++
	}
	told := map[group]bool{}
	for _, one := range t.all {
		key := group{one.replica.GetSpec().GetWorkloadUid(), one.reason}
		w := snap.Workload(key.workload)
		switch {
		case len(t.all) <= fewTransitions, of[key] == 1, w == nil:
			b.Create(s.replicaEvent(ctx, one.replica, one.reason, "", false))
		case !told[key]:
			told[key] = true
			b.Create(s.Event(ctx, w, one.reason, fmt.Sprintf("%d replicas", of[key])))
		}
	}
}
