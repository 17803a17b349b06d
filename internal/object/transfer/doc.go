// Package transfer is how chunks travel between servers and nodes, and from node to node: the name of the protocol, the
// settings of its gRPC connections, the frames of chunks, and how failures are told apart at the other end.
//
// It guarantees that the bytes of a chunk are copied once on each side: from the caller's memory into a frame, and from
// gRPC's buffers to where they are wanted. A chunk that arrives damaged is not its business: the store of the node and
// the reader of the chunk check the digest.
//
// The package must not know disks, objects, nodes or the state of the cluster.
package transfer

// Protocol is the name in ALPN of the connections that nodes open to servers. The node is the gRPC server on them.
const Protocol = "cloudless-chunks"

// ChunkSize is the size of the largest chunk: 4 MiB of content, and room for what encryption adds to it.
const ChunkSize = 4<<20 + 64<<10

// PieceSize is how much of a chunk one message has at most.
const PieceSize = 256 << 10

// Hash names a chunk by the BLAKE3 digest of its bytes.
type Hash = [32]byte
