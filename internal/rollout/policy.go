package rollout

import "github.com/cloudless/cloudless/internal/spec"

// Restart policies.
const (
	PolicyAlways    = "always"
	policyOnFailure = "on-failure"
	policyNever     = "never"
)

// done reports whether a replica has done its work, so that none replaces it.
func done(phase, policy string) bool {
	switch policy {
	case policyNever:
		return phase == spec.PhaseCompleted || phase == spec.PhaseFailed
	case policyOnFailure:
		return phase == spec.PhaseCompleted
	default:
		return false
	}
}
