// Package nodes is the leader's loop that keeps the state of every node by what
// its agent's session says.
//
// Heartbeats and usage stay in memory here; only transitions and changes of
// what a node is or has are proposed. Tick is pure. The package knows nothing
// of streams: the API edge tells it what happened.
//
//	enrolling ──connected──▶ ready ◀──connected── offline
//	                           │                     ▲
//	                           └──silent, or gone ───┘
//	                              for the window
package nodes
