package nodes

import (
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Standing is the record behind a node's reliability score, while there is a leader. The
// next leader resumes from the stored copy.
type Standing struct {
	record *v1.ReliabilityRecord
	// counted is until when the record includes the time.
	counted time.Time
	// state is the node's state, empty until it is known.
	state string
	// broken is whether the last session has broken, and is in the record.
	broken bool
}

// NewStanding is that of an unknown node.
func NewStanding(now time.Time) Standing {
	return Standing{record: &v1.ReliabilityRecord{}, counted: now}
}

// Resume restores the stored record of a node. Time without a leader does not count.
func (s *Standing) Resume(n *v1.Node, now time.Time) {
	s.counted, s.record, s.broken = now, &v1.ReliabilityRecord{}, false
	if stored := n.GetStatus().GetReliability().GetRecord(); stored != nil {
		s.record = proto.CloneOf(stored)
	}
}

// Enter notes that the node is in another state from now on. Going offline is one loss. If
// its broken session was already counted, only the rest is added.
func (s *Standing) Enter(state string, now time.Time) {
	if state == s.state {
		return
	}
	s.pass(now)
	known := s.state != ""
	s.state = state
	if s.state == spec.NodeOffline && known {
		s.record.Losses++
		if s.broken {
			s.record.Losses -= brokenSession
		}
		s.broken = false
	}
}

// Broke notes that the node's session has broken. It does not count for an offline node,
// whose session is ended on purpose.
func (s *Standing) Broke(now time.Time) {
	if !s.waits() {
		s.pass(now) // so that earlier time does not reduce its weight
		s.record.Losses += brokenSession
		s.broken = true
	}
}

// Mended notes that the node has a session again: the one before has only broken.
func (s *Standing) Mended() { s.broken = false }

// Score is the node's current reliability. scarce names its scarcest resource, if known.
func (s *Standing) Score(now time.Time, scarce string) *v1.Reliability {
	s.pass(now)
	return score(now, proto.CloneOf(s.record), scarce)
}

// waits reports whether the node is offline or was never heard of: it has no deadline, and
// a heartbeat is news.
func (s *Standing) waits() bool { return !inService(s.state) && s.state != spec.NodeFailed }

// pass brings the record up to now. The time before a node's first session does not count.
func (s *Standing) pass(now time.Time) {
	if s.state != "" && s.state != spec.NodeEnrolling {
		pass(s.record, now.Sub(s.counted), !s.waits())
	}
	s.counted = now
}
