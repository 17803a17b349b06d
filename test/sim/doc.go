// Package sim tests the control plane by simulating thousands of hours of clusters under
// faults.
//
// A [World] is one cluster: servers that agree on a log and elect each other, machines with
// agents that run programs, a network between them, operators who change things. One
// goroutine drives all of it, with one queue of events, a simulated clock and one seeded
// random source, so that a seed is a story that can be replayed exactly. The world is
// simulated; the decisions are made by the product itself: the state and its snapshots
// (internal/state), the rollout rules (internal/rollout), the scheduler, the assignments
// (internal/assignment), the engine of replicas, the leases of singletons and the Tick of the
// leader's other loops (internal/control). Operators make their transactions with the functions
// that the API uses (internal/rollout, internal/control/placement). The agent is a model of
// internal/agent: the same phases, durable records on disk, programs that outlive it.
//
// A story consists of rounds. In each, acts happen: faults, and requests of operators. Then
// everything is healed, time passes, and the final invariants are checked; the permanent
// ones are checked after every entry of the log and for every decision of a loop.
// invariants.go, rollouts.go, singletons.go and rest.go have the list. A story that breaks one is repeated with fewer
// and fewer acts, until no act can be left out. A calm story has no rounds but a month with
// the usual faults, from which calm.go computes the availability of the control plane.
//
// The package must not know how the product is wired, and nothing in it waits for real
// time: an idle hour costs nothing.
package sim
