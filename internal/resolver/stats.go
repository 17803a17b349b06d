package resolver

import "sync/atomic"

// Stats counts what happened since the resolver was made.
type Stats struct {
	Cluster          uint64 // queries for names of services and replicas
	Reverse          uint64 // queries for the cluster's addresses
	Cached           uint64 // queries that the cache answered
	Forwarded        uint64 // queries that were sent to upstreams
	Merged           uint64 // queries that shared the answer to another one
	Refused          uint64 // queries of strangers, and of kinds that are not supported
	Malformed        uint64 // messages that are no queries
	Dropped          uint64 // queries of clients above their rate
	Overloaded       uint64 // queries of clients with too many that wait for upstreams
	UpstreamFailures uint64 // times that an upstream did not answer
}

type counters struct {
	cluster, reverse, cached, forwarded, merged, refused, malformed, dropped, overloaded atomic.Uint64
}

// Stats returns the counters.
func (r *Resolver) Stats() Stats {
	c := &r.counters
	return Stats{
		Cluster: c.cluster.Load(), Reverse: c.reverse.Load(), Cached: c.cached.Load(), Forwarded: c.forwarded.Load(),
		Merged: c.merged.Load(), Refused: c.refused.Load(), Malformed: c.malformed.Load(), Dropped: c.dropped.Load(),
		Overloaded: c.overloaded.Load(), UpstreamFailures: r.pool.failureCount(),
	}
}
