// Package consensus makes several servers agree on one sequence of transactions, by Raft, and keeps it on disk.
//
// It guarantees that
//   - a proposal that was acknowledged is on the disks of a majority and survives kill -9 and power loss;
//   - [Consensus.Read] sees every proposal that was acknowledged before it began;
//   - [Consensus.Lead] runs its function on one server at a time, from a state that includes all that leaders
//     before it did, as far as Raft can tell: what the function proposes after it lost leadership is refused;
//   - damage of the log or the snapshots is found when they are opened and refused with a message; only the end of
//     the log that was never acknowledged, because a crash interrupted its writing, is dropped;
//   - an entry that this release does not understand stops the server instead of letting its state diverge.
//
// The package must not know what the transactions mean; it hands them to a [state.Store]. Addresses of servers are
// the business of the transport: a server is known by its id.
package consensus
