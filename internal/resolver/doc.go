// Package resolver is the DNS server of a node. It is authoritative for the names of services and replicas below
// cloudless.internal and for the reverse names of the cluster's addresses, and forwards everything else to the
// machine's name servers.
//
// What it guarantees:
// - Names of the cluster are answered from memory, whether or not a server or an upstream can be reached. A change
// is visible to the first query after Update or Replace returns. Before the first Replace, such names fail
// instead of not existing.
// - A client sees the services of its own namespace and those that are exported. To other clients a service does
// not exist.
// - Names of the cluster are never forwarded, and nothing is forwarded to the resolver itself.
// - Memory is bounded: cache, queries that wait for an upstream, and connections. One client cannot use up what the
// others need.
// - Only the monotonic clock counts: setting the machine's clock changes nothing.
//
// It must not know of the API, the state, nodes or how services come about: callers pass them in.
package resolver
