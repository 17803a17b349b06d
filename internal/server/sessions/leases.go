package sessions

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/lease"
)

// grantLeases answers a heartbeat that asks for leases, unless an earlier one is being answered. A majority of the
// servers confirms first that this one still leads: the leases of a deposed leader would surprise the next one.
func (s *Sessions) grantLeases(current *session, beat *v1.Heartbeat) {
	if len(beat.GetLeases()) == 0 || !current.granting.CompareAndSwap(false, true) {
		return
	}
	go func() { // ends with the session
		defer current.granting.Store(false)
		snap, err := s.Consensus.Read(current.ctx)
		if err != nil {
			return // the agent asks again
		}
		current.handle(func() {
			granted := s.leases.Grant(time.Now(), snap, current.node, beat.GetLeases())
			current.sendLease(&v1.Lease{Number: beat.GetLeaseNumber(), Duration: durationpb.New(lease.Duration), Replicas: granted})
		})
	}()
}

// sendLease queues a lease. Only the newest counts.
func (s *session) sendLease(l *v1.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = l
	s.signal()
}

func (s *session) takeLease() *v1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lease
	s.lease = nil
	return l
}
