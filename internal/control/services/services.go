// Package services is the leader's loop that gives every workload with ports a service of the same name: it creates,
// updates and removes that service with the workload.
//
// Tick is pure: a snapshot and some names in, changes out. It does not change services that a user applied. What a
// workload's service looks like, and which addresses it gets, is decided by internal/services.
//
// It knows nothing of endpoints: they follow from the state whenever they are asked for.
package services

import (
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxChanges keeps one transaction small; the next tick does the rest.
const maxChanges = 256

// Name is the name that a workload and its service share.
type Name struct{ Namespace, Name string }

// All lists the names of all workloads and services. A name may appear twice.
func All(snap *state.Snapshot) iter.Seq[Name] {
	return func(yield func(Name) bool) {
		for w := range snap.Workloads("", "") {
			if !yield(nameOf(w)) {
				return
			}
		}
		for s := range snap.Services("", "") {
			if !yield(nameOf(s)) {
				return
			}
		}
	}
}

func nameOf(o state.Object) Name {
	return Name{Namespace: o.GetMetadata().GetNamespace(), Name: o.GetMetadata().GetName()}
}

// Tick returns the changes that are due for the given names. If it stops early, because a transaction has enough
// changes, more is true.
func Tick(now time.Time, snap *state.Snapshot, names iter.Seq[Name], newUID func() string) (batch *state.Batch, more bool) {
	t := &tick{now: now, snap: snap, newUID: newUID, batch: &state.Batch{}, addresses: services.NewAllocator(snap), seen: map[Name]bool{}}
	for name := range names {
		if t.seen[name] {
			continue
		}
		if t.batch.Len() >= maxChanges {
			return t.batch, true
		}
		t.seen[name] = true
		t.settle(name)
	}
	return t.batch, false
}

// tick collects the changes of one call.
type tick struct {
	now       time.Time
	snap      *state.Snapshot
	newUID    func() string
	batch     *state.Batch
	addresses *services.Allocator
	seen      map[Name]bool
}

// settle brings the service of one name in line with the workload of that name.
func (t *tick) settle(name Name) {
	stored := t.snap.ServiceByName(name.Namespace, name.Name)
	wanted := services.Implicit(t.snap.WorkloadByName(name.Namespace, name.Name))
	switch {
	case stored == nil && wanted == nil:
	case stored == nil:
		t.create(wanted)
	case !spec.IsImplicit(stored):
		t.update(stored, stored)
	case wanted == nil:
		t.remove(stored)
	default:
		t.update(stored, services.Become(stored, wanted))
	}
}

func (t *tick) create(s *v1.Service) {
	s.Metadata.Uid = t.newUID()
	t.address(s)
	t.batch.Create(s)
	t.event(s, "Created", "for workload "+s.GetStatus().GetWorkload(), state.SeverityInfo)
	if reason := s.GetStatus().GetReason(); reason != "" {
		t.event(s, "NoAddress", reason, state.SeverityWarning)
	}
}

// update stores a service that has changed or that gets the address that it lacked.
func (t *tick) update(stored, wanted *v1.Service) {
	now := proto.CloneOf(wanted)
	t.address(now)
	if !proto.Equal(stored, now) {
		t.batch.Update(now, stored.GetMetadata().GetVersion())
	}
}

// address gives a service its addresses, or stores why it has none. The loop tries again when an address may be free.
func (t *tick) address(s *v1.Service) {
	err := t.addresses.Allocate(s)
	if s.Status.Reason = ""; err != nil {
		s.Status.Reason = err.Error()
	}
}

// remove deletes a service with the endpoints that were registered with it.
func (t *tick) remove(s *v1.Service) {
	for e := range t.snap.EndpointsOf(s.GetMetadata().GetUid()) {
		t.batch.Delete(state.KindEndpoint, e.GetMetadata().GetUid())
	}
	t.batch.DeleteVersion(state.KindService, s.GetMetadata().GetUid(), s.GetMetadata().GetVersion())
	t.event(s, "Deleted", "", state.SeverityInfo)
}

func (t *tick) event(about state.Object, reason, message, severity string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.now, about, severity, reason, message, "services"))
}
