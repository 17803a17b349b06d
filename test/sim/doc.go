// Package sim proves the control plane by living through thousands of hours of
// clusters that have a hard time.
//
// A [World] is one cluster: servers that agree on a log and elect each other,
// machines with agents that run programs, a network between them, operators who
// want something. All of it is driven by one goroutine, one queue of events, a
// simulated clock and one seeded source of chance, so that a seed is a story
// that can be told again, word for word. What is simulated is the world; what
// decides is the product itself: the state and its snapshots (internal/state),
// the rules of replacing (internal/rollout), the scheduler, the assignments
// (internal/assignment), the engine of replicas and the Tick of the leader's other
// loops (internal/control).
// The agent is a model of internal/agent: the same phases, records on a disk
// that forget nothing, programs that outlive it.
//
// A story is made of rounds. In each, acts happen: faults, and wishes of
// operators. Then everything is healed, time passes, and what must be true in
// the end is checked; what must be true always is checked after every entry of
// the log and for every decision of a loop. invariants.go and rest.go have the
// list. A story that breaks one is told again with fewer and fewer acts, until
// no act can be left out. A calm story has no rounds but a month of ordinary life, of
// which calm.go computes how available the control plane is.
//
// The package must not know how the product is wired, and nothing in it waits
// for real time: an hour in which nothing happens costs nothing.
package sim
