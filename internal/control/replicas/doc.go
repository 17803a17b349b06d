// Package replicas is the leader's loop that keeps every workload at its desired number of
// replicas of its current revision, each placed on a node.
//
// Engine decides: it reads a snapshot, follows the changes after it, and settles what they
// make due. Its cost follows the number of changes, not the size of the cluster. Package
// rollout decides what to create and stop, and package scheduler where replicas go; the
// engine itself only keeps their input up to date. Loop gives it the leader's clock, feed
// and log. Placement.Forecast runs it on a fork of the state to predict the effect of a
// change. The simulator (test/sim) drives it in simulated time. Nodes may change between a
// decision and its commit; the commit leaves out what was decided on outdated nodes
// (recheck.go). The package knows nothing of sessions, drivers or the API.
package replicas
