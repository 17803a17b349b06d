// Package names stores the names of objects: which versions a key has, of which chunks each consists, and which nodes
// have each chunk. It is the state machine of a Raft group and keeps its data on disk, because ten million objects do
// not belong into memory.
//
// Applying an entry is deterministic: it reads no clock and makes no random numbers. The package must not know Raft,
// nodes or buckets beyond their ids, nor how chunks are reached.
package names
