package nodes

import (
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Standing is how a node has fared while somebody led: the record behind its
// score. What the state keeps of it is gone on from by whoever leads next.
type Standing struct {
	record *v1.ReliabilityRecord
	// counted is until when the time is in the record.
	counted time.Time
	// state is what the state says of the node, empty before that is known.
	state string
	// broken is whether the last session has broken, and is in the record.
	broken bool
}

// NewStanding is that of a node of which nothing is known.
func NewStanding(now time.Time) Standing {
	return Standing{record: &v1.ReliabilityRecord{}, counted: now}
}

// Resume goes on from what the state keeps of a node. The time in which nobody
// watched does not count.
func (s *Standing) Resume(n *v1.Node, now time.Time) {
	s.counted, s.record, s.broken = now, &v1.ReliabilityRecord{}, false
	if stored := n.GetStatus().GetReliability().GetRecord(); stored != nil {
		s.record = proto.CloneOf(stored)
	}
}

// Enter notes that the node is in another state from now on. One that goes
// offline is one loss, of which its broken session may have been counted.
func (s *Standing) Enter(state string, now time.Time) {
	if state == s.state {
		return
	}
	s.pass(now)
	known := s.state != ""
	s.state = state
	if s.state == stateOffline && known {
		s.record.Losses++
		if s.broken {
			s.record.Losses -= brokenSession
		}
		s.broken = false
	}
}

// Broke notes that the node's session has broken. That of one which is offline is
// ended because it is.
func (s *Standing) Broke(now time.Time) {
	if !s.waits() {
		s.pass(now) // what was before does not make it count less
		s.record.Losses += brokenSession
		s.broken = true
	}
}

// Mended notes that the node has a session again: the one before has only broken.
func (s *Standing) Mended() { s.broken = false }

// Score is how far the node can be relied on now. scarce names what is scarcest
// there, if that is known.
func (s *Standing) Score(now time.Time, scarce string) *v1.Reliability {
	s.pass(now)
	return score(now, proto.CloneOf(s.record), scarce)
}

// waits is whether the node is offline or was never heard of: no time runs for
// it, and a heartbeat is news.
func (s *Standing) waits() bool { return !inService(s.state) && s.state != stateFailed }

// pass brings the record up to now. The time before a node's first session says
// nothing about it.
func (s *Standing) pass(now time.Time) {
	if s.state != "" && s.state != stateEnrolling {
		pass(s.record, now.Sub(s.counted), !s.waits())
	}
	s.counted = now
}
