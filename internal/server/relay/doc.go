// Package relay connects the servers of a cluster: any server accepts any call, and relays
// the calls that only the leader can answer to the leader, over connections that all calls
// share.
//
// It guarantees that a call is retried only if that is safe, and that the caller learns if
// the outcome is unknown. It knows no noun: it carries messages without reading them.
package relay
