// Package scheduler says on which node each replica should run, and for what
// fits nowhere, what speaks against every node.
//
// It is a pure function from a snapshot and a request to a plan: no clock, no
// randomness, no I/O. The same nodes and asks give the same plan, in whatever
// order the nodes come; whoever commits the plan checks it against the newest
// state. A plan never puts a replica where a filter refuses it, never promises
// more than a node has, and leaves a replica unplaced only if no node would
// take it.
//
// The score packs workloads onto few nodes, but spreads the replicas of one
// workload over nodes.
package scheduler
