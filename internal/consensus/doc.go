// Package consensus makes several servers agree on one sequence of entries, by Raft, and keeps it on disk. A [Group] hands
// the entries to a [Machine]. [Consensus] is the control group, whose entries are transactions of the state.
//
// It guarantees:
// - A proposal that was acknowledged is on the disks of a majority and survives kill -9 and power loss.
// - [Consensus.Read] sees every proposal that was acknowledged before it began.
// - [Consensus.Lead] runs its function on one server at a time, from a state that includes everything earlier leaders
// did, as far as Raft can tell: what the function proposes after it lost leadership is refused.
// - Damage to the log or the snapshots is found when they are opened and refused with a message. Only an unacknowledged
// end of the log, whose writing a crash interrupted, is dropped.
// - An entry that this release does not understand stops the server instead of letting its state diverge.
//
// The package must not know what the entries mean, but for handing transactions to a [state.Store]. The transport knows the
// addresses of servers: a server is identified by its id.
package consensus
