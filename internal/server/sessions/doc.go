// Package sessions serves the agents. An agent keeps one stream open, its session:
// assignments go down, heartbeats and reports come up. When a caller wants a log or a
// shell, the agent opens one more stream.
//
// A node has at most one session, and it is with the leader. An agent learns only the
// newest state of a replica, however slow its connection is. The package knows neither
// the API of the nouns nor where replicas are placed.
package sessions
