// Package ingressd is the ingress process of a node, and the agent's way to talk to it. The process answers for the
// routes of the cluster. It is separate from the agent so that connections of clients outlive the agent: neither a
// crash nor an upgrade of the agent interrupts them. A process of another version hands its open ports over to its
// successor, and ends when its last connection has ended.
//
// The process hears everything from the agent. What it knows is kept in memory, and on a tmpfs for a successor after a
// crash; keys are never on a disk. The package must not know sessions, nor what the agent and the servers say to each
// other.
package ingressd
