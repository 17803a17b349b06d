package state

import (
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The severities of events.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
)

// ReasonLeads is the reason of the event that a server records when it becomes the leader.
const ReasonLeads = "Leads"

// Events lists the events from the newest to the oldest. It lists only those with a smaller uid than before, unless that
// is empty.
func (s *Snapshot) Events(before string) iter.Seq[*v1.Event] {
	return func(yield func(*v1.Event) bool) {
		limit := &before
		if before == "" {
			limit = nil
		}
		s.rows[ordinals[KindEvent]].byUID.descend(limit, func(_ string, o Object) bool { return yield(o.(*v1.Event)) })
	}
}

// OldestEvents lists the events from the oldest to the newest.
func (s *Snapshot) OldestEvents() iter.Seq[*v1.Event] {
	return listByPrefix[*v1.Event](s, KindEvent, indexUID, nil)
}

// LeaderEvents lists the events of servers that became the leader, newest first.
func (s *Snapshot) LeaderEvents() iter.Seq[*v1.Event] {
	return func(yield func(*v1.Event) bool) {
		for e := range s.Events("") {
			elected := e.GetSpec().GetReason() == ReasonLeads && e.GetSpec().GetObjectKind() == string(KindServer)
			if elected && !yield(e) {
				return
			}
		}
	}
}

// NewEvent returns an event about an object: the reason is one word for what happened, the message a sentence. The uid
// must be a UUIDv7, because events are ordered by it.
func NewEvent(uid string, now time.Time, about Object, severity, reason, message, actor string) *v1.Event {
	m := about.GetMetadata()
	return &v1.Event{
		ApiVersion: "cloudless/v1",
		Kind:       "Event",
		Metadata:   &v1.Metadata{Uid: uid, Name: uid, Namespace: m.GetNamespace()},
		Spec: &v1.EventSpec{
			Time:       timestamppb.New(now),
			Severity:   severity,
			Reason:     reason,
			Message:    message,
			ObjectKind: strings.ReplaceAll(string(KindOf(about)), "_", ""), // as commands write it: rolebinding
			ObjectName: m.GetName(),
			ObjectUid:  m.GetUid(),
			Actor:      actor,
			Workload:   workloadOf(about),
		},
	}
}

// workloadOf returns the name of the workload that an object is or belongs to, or "".
func workloadOf(about Object) string {
	switch o := about.(type) {
	case *v1.Workload:
		return o.GetMetadata().GetName()
	case *v1.Replica:
		return o.GetSpec().GetWorkload()
	case *v1.Deployment:
		return o.GetSpec().GetWorkload()
	}
	return ""
}
