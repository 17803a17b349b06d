// Package nodes is the leader's loop that keeps the state of every node by what
// its agent's session says, what its machine answers, and what the operator
// wants of it.
//
//	            first session
//	enrolling ────────────────┐
//	                          ▼
//	           ┌───────── in service ─────────┐
//	           │                              │
//	           │  ready ◀──wish──▶ cordoned   │
//	           │    ▲                  ▲      │
//	           │    └─wish─▶ draining ◀┘      │
//	           └─┬─────────▲──┬────────────▲──┘
//	     cannot  │     can │  │ away       │ back, and
//	     run     ▼    again│  │            │ can run
//	           failed ─────┘  │            │
//	             │ ▲          ▼            │
//	             │ └─back,── offline ──────┘
//	             └───away──▶ but cannot run
//
// A node is away when its session has been silent for the configured time, when
// it has none and its machine does not answer any more, when it has none for
// the whole reconnect window, or when its agent has said goodbye. It is failed
// while its agent answers and says, by its condition Ready, that it can run
// nothing: a driver or the data folder is broken. Which of the three states in
// service it has is the operator's wish, spec.availability. What has never been
// heard of stays enrolling, and nothing ever becomes enrolling again.
//
// Heartbeats, usage and answers stay in memory here; only transitions, changes
// of what a node is or has, and now and then its reliability are proposed. Tick
// is pure: what was observed is given to it. Silence is measured by the
// monotonic clock, and from the moment at which this server began to lead, so
// that a new leader takes nobody for offline whom it could not have heard of.
//
// The package knows nothing of streams: the API edge tells it what happened.
package nodes
