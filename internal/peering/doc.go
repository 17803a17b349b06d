// Package peering is how a machine finds and reaches the servers of its cluster: Peers for a server that looks for the
// others, ServerList for a node.
//
// It knows addresses, gossip and connections. It must not know the command line, nor what the servers agree on beyond
// where they are.
package peering
