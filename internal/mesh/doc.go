// Package mesh is a node's part of the encrypted network: WireGuard in user space on a TUN device, direct paths to
// peers wherever they can be had, and a relay where not.
//
// Its caller gives it peers and relays, and learns from it where this node can be reached. It must not know the API,
// what peers run, or how a connection to a relay is authenticated.
package mesh
