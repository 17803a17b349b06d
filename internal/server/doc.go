// Package server is the API edge: it authenticates, authorizes and validates every call,
// proposes the changes, and answers from the replicated state. gRPC, HTTP/JSON, the
// registry, metrics and the agents' sessions all use one address.
//
// It guarantees that only /healthz is answered without an identity, and that a node can act
// only as itself. It decides nothing about placement or rollout, and it never connects to a
// node: logs and exec travel on streams that the agent opens.
package server
