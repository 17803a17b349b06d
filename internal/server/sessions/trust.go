package sessions

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/state"
)

// sendTrust tells an agent which authorities to trust, if it does not know that yet.
func (s *Sessions) sendTrust(stream sessionStream, current *session) error {
	if !current.lower(&current.trustDue) {
		return nil
	}
	a := s.Store.Snapshot().Authority()
	if a == nil {
		return nil
	}
	down := &v1.TrustDown{Certificates: state.TrustedAuthorities(a), Renew: a.GetStep() != authority.StepDistribute}
	return stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Trust{Trust: down}})
}

// hearTrust notes what an agent trusts.
func (s *Sessions) hearTrust(current *session, up *v1.TrustUp) {
	current.mu.Lock()
	current.trusts = up
	current.mu.Unlock()
	select {
	case s.trustChanged <- struct{}{}:
	default:
	}
}

// TrustChanged has a value when an agent has said that it trusts other authorities.
func (s *Sessions) TrustChanged() <-chan struct{} { return s.trustChanged }

// TrustReports are what the connected agents say of their keys.
func (s *Sessions) TrustReports() map[string]authority.NodeReport {
	all := map[string]authority.NodeReport{}
	s.connected.each(func(one *session) {
		one.mu.Lock()
		defer one.mu.Unlock()
		all[one.node] = authority.NodeReport{Trusted: one.trusts.GetTrusted(), Issuer: one.trusts.GetIssuer()}
	})
	return all
}
