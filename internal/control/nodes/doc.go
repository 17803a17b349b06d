// Package nodes is the leader's loop that maintains the state of every node. The state
// follows from the agent's session, from probes of the machine, and from the operator's
// spec.
//
//	            first session
//	enrolling ────────────────┐
//	                          ▼
//	           ┌───────── in service ─────────┐
//	           │                              │
//	           │  ready ◀──spec──▶ cordoned   │
//	           │    ▲                  ▲      │
//	           │    └─spec─▶ draining ◀┘      │
//	           └─┬─────────▲──┬────────────▲──┘
//	     cannot  │     can │  │ away       │ back, and
//	     run     ▼    again│  │            │ can run
//	           failed ─────┘  │            │
//	             │ ▲          ▼            │
//	             │ └─back,── offline ──────┘
//	             └───away──▶ but cannot run
//
// A node is away when its session has been silent for the configured time, when it has no
// session and its machine no longer answers, when it has had no session for the whole
// reconnect window, or when its agent has said goodbye. A node is failed while its agent
// answers and its Ready condition says that it can run nothing: a driver or the data folder
// is broken. The operator chooses among the three states in service by spec.availability. A
// node that was never heard of stays enrolling, and no node becomes enrolling again.
//
// Heartbeats, usage and answers to probes stay in memory. Only transitions, changes of a
// node's facts and capacity, and now and then its reliability are proposed. Tick is pure:
// observations are its input. Silence is measured by the monotonic clock, and from the
// moment at which this server began to lead, so that a new leader declares no node offline
// that it could not have heard of.
//
// The package knows nothing of streams: the API edge calls it with what happened.
package nodes
