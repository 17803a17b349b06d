// Package chunks stores chunks on the disk of a node: pieces of up to 4 MiB, named by the BLAKE3 digest of their bytes.
// A chunk that Put has acknowledged survives kill -9 and a power failure, and Get never returns other bytes than those
// that were put: it says that the chunk is damaged.
//
// The package must not know objects, nodes or networks.
package chunks
