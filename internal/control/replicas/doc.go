// Package replicas is the leader's loop that keeps every workload at its
// desired number of replicas of its current revision, each placed on a node.
//
// Tick is pure: a snapshot in, changes out; which changes are due is decided by
// package rollout, and where replicas go by package scheduler. Loop feeds it
// with what has changed, so that its cost follows the changes and not the size
// of the cluster. What a tick decides rests on nodes that may change before it is
// committed; the commit leaves out what rests on one that has (recheck.go).
// Placement.Forecast plays both on a fork of the state, to say what would come of a
// change. It knows nothing of sessions, drivers or the API.
package replicas
