// Package relay connects the servers of a cluster: any server accepts any call,
// and passes what only the leader can answer on to the leader, over connections
// that it shares with all other calls.
//
// It guarantees that a call is made again only if that cannot do harm, and that
// the caller learns if the outcome is not known. It knows no noun: it carries
// messages that it does not look at.
package relay
