// Package replicas is the leader's loop that keeps every workload at its
// desired number of replicas of its current revision, each placed on a node.
//
// Engine decides: it begins with a snapshot, follows the changes after it, and settles
// what they make due, so that its cost follows the changes and not the size of the
// cluster. It is pure but for what it keeps: which changes are due is decided by package
// rollout, and where replicas go by package scheduler. Loop gives it the leader's clock,
// feed and log, Placement.Forecast plays it on a fork of the state to say what would come
// of a change, and the simulator (test/sim) drives it in simulated time. What a step
// decides rests on nodes that may change before it is committed; the commit leaves out
// what rests on one that has (recheck.go). It knows nothing of sessions, drivers or the API.
package replicas
