// Package traffic is the leader's book of what nodes report of their routes: how many requests, how many of them failed,
// how long they took, and which ports are open. It is in memory only.
//
// What was not heard is unknown, and not zero. A leader knows how many requests a service got only when every node that
// answers for it has reported for that long, so that a new leader scales nothing in by what it has missed. Nodes that are
// offline are not waited for.
//
// The package must not know sessions, autoscaling or rollouts, which feed it and ask it.
package traffic
