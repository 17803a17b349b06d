// Package netd is the network process of a node, and the agent's way to talk to it. The process runs the mesh. It is
// separate from the agent so that connections between replicas outlive the agent: a crash or a restart of the agent
// does not interrupt them.
//
// The process keeps nothing on disk: the agent gives it everything when it connects. It must not know the API, nor
// what the agent and the servers say to each other.
package netd
