// Package storage keeps the disk of a node from filling up, because the records of the agent, and the log of a server on
// the same machine, need room on it.
//
// The decisions are pure: which images nobody needs (images.go), and which replica must go because it has written more
// than it may, or because the disk is nearly full (replicas.go). A loop around them (watch.go) measures, removes images
// first, and evicts one replica at a time.
//
// The package must not know of records, sessions, drivers or servers: its user measures, and carries out what it decides.
package storage
