// Package ingress is the agent's side of routes: it keeps what servers say of them, starts the ingress process while the node
// answers for a route, and passes messages both ways. The process does the rest, and goes on without agent and servers.
//
// What servers said is kept in memory and, for an agent that starts without servers, in a file on a tmpfs: it has the keys of
// certificates, which are never on a disk. Of the replicas of this node the agent knows first whether they serve, so their
// endpoints are as it says.
//
// The package must not know sessions, nor how the process serves requests.
package ingress
