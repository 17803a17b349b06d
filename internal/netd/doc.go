// Package netd is the network process of a node, and the agent's way to talk to it. The process runs the mesh. It is
// separate from the agent so that connections between replicas outlive the agent: a crash or a restart of the agent
// does not interrupt them. While there is no agent, it tells the servers whether the replicas still run, in the
// words that the agent has left for that.
//
// The process keeps nothing on disk: the agent gives it everything when it connects. It must not know the API, nor
// what the agent and the servers say to each other.
package netd
