package spec

import v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

// The phases of a replica. They only move forward, except that a program that has ended may be started again:
//
//	pending ──▶ placed ──▶ preparing ──▶ running ──▶ completed or failed
//	   │           │           │          │  ▲ │     (ended, will not run again)
//	   │           │           │          │  │ ▼
//	   │           │           │          │ backoff  (ended, will run again)
//	   │           │           │          │    │
//	   │           └───────────┴─────┬────┴────┘
//	   │ (no longer wanted)          ▼
//	   │                         stopping
//	   │                             │
//	   └───────────▶ stopped ◀───────┘
//
// A replica that cannot be started at all goes from preparing to backoff, or to failed if its policy is never. A placed
// replica that has not ended becomes lost when its node is given up: when the node is removed, or is offline while
// another replica runs in its place.
const (
	PhasePending   = "pending"   // has no node yet
	PhasePlaced    = "placed"    // has a node that does not know of it yet
	PhasePreparing = "preparing" // its image is pulled and its container created
	PhaseRunning   = "running"   // its program runs
	PhaseBackoff   = "backoff"   // its program ended and will be restarted
	PhaseStopping  = "stopping"  // its program was asked to end
	PhaseCompleted = "completed" // ended well and will not run again
	PhaseFailed    = "failed"    // ended badly and will not run again
	PhaseStopped   = "stopped"   // ended because it was no longer wanted
	PhaseLost      = "lost"      // its node was given up
)

// PhaseUnknown is shown, and never stored, for a replica whose node is offline: it may still run there.
const PhaseUnknown = "unknown"

// A workload has the phases of its replicas, and these.
const (
	PhaseDegraded  = "degraded"  // some of its replicas serve
	PhaseDeleting  = "deleting"  // its replicas are being stopped
	PhaseScheduled = "scheduled" // a cron that waits for its next time
	PhaseSuspended = "suspended" // a cron that starts no jobs
)

// What the cluster wants of a replica.
const (
	DesiredRunning = "running"
	DesiredStopped = "stopped"
)

// Ended reports whether a replica in this phase will never run again.
func Ended(phase string) bool {
	switch phase {
	case PhaseCompleted, PhaseFailed, PhaseStopped, PhaseLost:
		return true
	}
	return false
}

// Live is the opposite of Ended.
func Live(phase string) bool { return !Ended(phase) }

// Serves reports whether a replica does its work now, as far as its status says. Everything that waits for replicas,
// counts them or spares them asks here. Whether the replica is still wanted, or its node is offline, are other questions.
func Serves(r *v1.Replica) bool { return ServesNow(r.GetStatus()) }

// JustStarted is why a replica is unready that has not been probed yet.
const JustStarted = "It was just started."

// ServesNow is Serves for a status without its replica.
func ServesNow(s *v1.ReplicaStatus) bool { return s.GetPhase() == PhaseRunning && s.GetUnready() == "" }

// Steady reports whether a replica serves, and has done so for as long as its workload asks for.
func Steady(r *v1.Replica) bool { return Serves(r) && !r.GetStatus().GetSettling() }

// The states of a node; package nodes draws the transitions.
const (
	NodeEnrolling = "enrolling" // has not been heard yet
	NodeReady     = "ready"
	NodeDraining  = "draining" // its replicas move to other nodes
	NodeCordoned  = "cordoned" // gets no new replicas
	NodeOffline   = "offline"
	NodeFailed    = "failed" // cannot run anything
)

// What an operator wants of a node; empty means ready.
const (
	AvailabilityCordoned = "cordoned"
	AvailabilityDraining = "draining"
)

// What a plan does with an object, and what a write did.
const (
	ActionCreate    = "create"
	ActionUpdate    = "update"
	ActionDelete    = "delete"
	ActionUnchanged = "unchanged"
)

// What a plan does with a replica, besides ActionCreate.
const (
	ActionReplace = "replace" // stop it and start a successor
	ActionMove    = "move"    // stop it and start another on another node
	ActionStop    = "stop"
	ActionKeep    = "keep"
)

// The conditions by which a node takes itself out of service.
const (
	// LowBattery keeps new replicas away.
	LowBattery = "LowBattery"
	// Departing moves the replicas elsewhere: the machine is about to shut down or to sleep.
	Departing = "Departing"
)
