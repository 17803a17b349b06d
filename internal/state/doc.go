// Package state holds the cluster's replicated state: the API's own messages in tables. Transactions change it,
// snapshots read it, and a feed reports changes.
//
// It guarantees that
//   - a transaction is applied as a whole or not at all, except for parts that its proposer allows to be left out, and
//     has the same outcome on every server, because ids and times come with it;
//   - uids are unique, and so are the names of named kinds within a namespace;
//   - the version of an object is the index of the transaction that wrote it last;
//   - a [Snapshot] never changes, is free to take and may be read by any number of goroutines;
//   - a [Fork] is free to create, and changes to it are visible nowhere else;
//   - a [Subscription] delivers every change after its snapshot once and in order, or reports that it lost some;
//   - a saved snapshot is restored exactly or refused, never in part.
//
// Stored objects are immutable: clone an object before changing it. The package must not know about Raft, clocks, the
// network or the meaning of the objects: it enforces no rule about a spec or a status.
package state
