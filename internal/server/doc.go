// Package server is the API edge: it authenticates, authorizes and validates
// every call, proposes what it changes, and answers from the replicated state.
// gRPC, HTTP/JSON, the registry, metrics and the agents' sessions all come in
// through here, on one address.
//
// It guarantees that no call but /healthz is answered without an identity, and
// that a node acts only as itself. It decides nothing about placement or
// rollout, and it never reaches out to a node: logs and exec travel on streams
// that the agent opens.
package server
