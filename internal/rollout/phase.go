package rollout

// The phases of a replica. They only move forward, except for the circle in
// which a program ends and is started again:
//
//	pending ──▶ placed ──▶ preparing ──▶ running ──▶ completed or failed
//	   │           │           │          │  ▲ │     (ended, not to run again)
//	   │           │           │          │  │ ▼
//	   │           │           │          │ backoff  (ended, to run again)
//	   │           │           │          │    │
//	   │           └───────────┴─────┬────┴────┘
//	   │ (no longer wanted)          ▼
//	   │                         stopping
//	   │                             │
//	   └───────────▶ stopped ◀───────┘
//
// Preparing goes to backoff too, or to failed where the policy is never, when
// the replica cannot be started at all. Every phase of a placed replica that
// has not ended becomes lost when its node is given up: when the node is
// removed, or is offline while another replica runs in the place of this one.
const (
	PhasePending   = "pending"   // has no node yet
	PhasePlaced    = "placed"    // has a node that does not know of it yet
	PhasePreparing = "preparing" // its image is fetched and its container made
	PhaseRunning   = "running"   // its program runs
	PhaseBackoff   = "backoff"   // its program ended and waits to be started again
	PhaseStopping  = "stopping"  // its program was asked to end
	PhaseCompleted = "completed" // ended well and is not to run again
	PhaseFailed    = "failed"    // ended badly and is not to run again
	PhaseStopped   = "stopped"   // ended because it was no longer wanted
	PhaseLost      = "lost"      // its node was given up
)

// PhaseUnknown is shown, and never stored, of a replica whose node is offline: it
// may still run there.
const PhaseUnknown = "unknown"

// What is wanted of a replica.
const (
	DesiredRunning = "running"
	DesiredStopped = "stopped"
)

// Restart policies.
const (
	PolicyAlways    = "always"
	policyOnFailure = "on-failure"
	policyNever     = "never"
)

// Ended reports whether a replica in this phase will never run again.
func Ended(phase string) bool {
	switch phase {
	case PhaseCompleted, PhaseFailed, PhaseStopped, PhaseLost:
		return true
	default:
		return false
	}
}

// Live is the opposite of Ended.
func Live(phase string) bool { return !Ended(phase) }

// done reports whether a replica has done what its workload wants of it, so
// that none takes its place.
func done(phase, policy string) bool {
	switch policy {
	case policyNever:
		return phase == PhaseCompleted || phase == PhaseFailed
	case policyOnFailure:
		return phase == PhaseCompleted
	default:
		return false
	}
}
