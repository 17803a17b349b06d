// Package pressure decides which replica to evict when the machine runs short of memory, so that the kernel does not kill
// a random process.
//
// The decisions are pure: whether memory is short (shortage.go), which replica goes (victim.go), and how eagerly the
// kernel may kill the programs of a replica if it comes to that (score.go). A loop around them (watch.go) reads, decides,
// evicts one replica and waits for the effect.
//
// The package must not know of records, sessions, drivers or servers: its user says how much memory there is and what
// the replicas use, and carries out the eviction.
package pressure
