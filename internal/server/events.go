package server

import (
	"context"
	"iter"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// eventService is the EventService.
type eventService struct {
	v1.UnsafeEventServiceServer
	*collection[*v1.Event]
}

// newEvents lists events from the newest to the oldest.
func newEvents(s *Server) *collection[*v1.Event] {
	c := newCollection[*v1.Event](s, state.KindEvent)
	c.all = func(snap *state.Snapshot, _, before string) iter.Seq[*v1.Event] { return snap.Events(before) }
	c.cursor = uidOf[*v1.Event]
	c.find = func(snap *state.Snapshot, _, name string) *v1.Event { return c.get(snap, name) }
	c.missing = func(_ *state.Snapshot, _, name string) error {
		return core.Refuse(codes.NotFound, "event %s does not exist, or is no longer kept; see the others with: cloudless events", name)
	}
	return c
}

// eventFilter is the filter of a list or a watch of events.
type eventFilter interface {
	GetNamespace() string
	GetObject() string
	GetObjectKind() string
	GetWorkload() string
}

func eventMatches(e *v1.Event, f eventFilter) bool {
	namespace, workload := f.GetNamespace(), f.GetWorkload()
	return (namespace == "" || e.GetMetadata().GetNamespace() == namespace || e.GetMetadata().GetNamespace() == "") &&
		eventIsAbout(e, f.GetObjectKind(), f.GetObject()) && (workload == "" || e.GetSpec().GetWorkload() == workload)
}

// eventIsAbout reports whether an event is about an object. An empty kind means any kind, an empty name any object.
func eventIsAbout(e *v1.Event, kind, name string) bool {
	ofKind := func(one string) bool { return kind == "" || strings.EqualFold(kind, one) }
	return ofKind(e.GetSpec().GetObjectKind()) && (name == "" || e.GetSpec().GetObjectName() == name) ||
		name != "" && ofKind(string(state.KindWorkload)) && isReplicaOf(e, name)
}

// isReplicaOf counts the events of a workload's replicas as events of the workload. A
// replica is named after its workload, with a suffix without a dash.
func isReplicaOf(e *v1.Event, workload string) bool {
	name := e.GetSpec().GetObjectName()
	dash := strings.LastIndexByte(name, '-')
	return e.GetSpec().GetObjectKind() == string(state.KindReplica) && dash > 0 && name[:dash] == workload
}

func (s *eventService) GetEvent(ctx context.Context, request *v1.GetEventRequest) (*v1.Event, error) {
	return s.read(ctx, request.GetNamespace(), request.GetName())
}

func (s *eventService) ListEvents(ctx context.Context, request *v1.ListEventsRequest) (*v1.ListEventsResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Event]{
		also: func(e *v1.Event) bool { return eventMatches(e, request) },
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListEventsResponse{Items: items, Next: next}, nil
}

func (s *eventService) WatchEvents(request *v1.WatchEventsRequest, stream grpc.ServerStreamingServer[v1.Event]) error {
	sees := core.Caller(stream.Context())
	// A caller that has the header misses no event from then on.
	start := func(*state.Snapshot) error { return core.BeginStream(stream) }
	return s.Server.watch(stream.Context(), start, func(_ *state.Snapshot, changes []state.Change) error {
		for _, c := range changes {
			e, ok := c.New.(*v1.Event)
			if !ok || !sees.Sees("event", e.GetMetadata().GetNamespace()) || !eventMatches(e, request) {
				continue
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	})
}
