// Package state is what a cluster knows: the API's own messages in tables, changed by transactions, read from
// snapshots, watched through a feed of changes.
//
// It guarantees that
//   - a transaction happens as a whole or not at all, but for parts that its proposer lets be left out, each as a
//     whole, and has the same outcome on every server, because ids and times come with it;
//   - an object has the uid, the name (unique within its namespace for the kinds that are known by name) and the
//     version it says it has: the version is the index of the transaction that wrote it last;
//   - a [Snapshot] never changes, costs nothing to take and may be read by any number of goroutines;
//   - a [Fork] costs nothing to make either, and what is applied to it is nowhere else;
//   - a [Subscription] delivers every change after its snapshot once and in order, or says that it lost some;
//   - a saved snapshot is restored exactly or refused, never in part.
//
// What is stored is immutable: whoever wants to change an object clones it first. The package must not know of
// Raft, of clocks, of the network, nor of what the objects mean: it enforces no rule about a spec or a status.
package state
