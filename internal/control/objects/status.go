package objects

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/internal/object"
)

// Status is how the object store is.
type Status struct {
	// Leading is whether this server runs the loops. Otherwise it knows only totals and nodes.
	Leading bool
	// Objects are current objects, Versions all versions, and Bytes their bytes.
	Objects, Versions, Bytes int64
	// Chunks are those that something refers to, once each; Garbage those that are deleted after a while.
	Chunks, ChunkBytes, Garbage int64
	Epoch                       uint64
	// UnderReplicated have fewer copies on nodes that answer than they should and could have. Unreachable have none.
	UnderReplicated, Unreachable int64
	// Reasons say why, a sentence each.
	Reasons []string
	// RepairRate is in bytes a second, now; RepairBytesLeft is what is still to be copied, and RepairEnd when that will
	// be done. It is zero while nothing is copied.
	RepairRate, RepairBytesLeft int64
	RepairEnd                   time.Time
	Nodes                       []NodeStatus
	Classes                     []ClassStatus
}

// The states of nodes.
const (
	Online   = "online"
	Offline  = "offline"
	Full     = "full"
	Draining = "draining"
	// None is a node that keeps no data.
	None = "none"
)

// NodeStatus is the disk of a node.
type NodeStatus struct {
	object.Node
	State string
	// Scrubbing is whether its chunks are being checked now.
	Scrubbing bool
}

// ClassStatus are all disks of a class.
type ClassStatus struct {
	Class                string
	Nodes                int
	Capacity, Used, Free int64
}

// Progress is how far a scrub or a repair is. Done and Total are in bytes.
type Progress struct {
	// Node is the UID of the node that is scrubbed; it is empty for repairs.
	Node                 string
	Done, Total, Damaged int64
	Finished             bool
	// Message is a sentence, such as why a node was not scrubbed.
	Message string
}

// Status returns how the object store is. It asks no node.
func (l *Loops) Status(ctx context.Context) (Status, error) { return Status{}, ErrNotLeading }

// RepairNow copies what has too few copies, without the delay, and returns when that is done as far as it can be. It is
// ErrNotLeading on other servers. progress may be nil.
func (l *Loops) RepairNow(ctx context.Context, progress func(Progress)) error { return ErrNotLeading }

// Scrub has nodes check all of their chunks, by their UIDs; all connected nodes if there are none. A rate of 0 is the
// usual one. It may be called on any server, which needs a connection to the nodes.
func (l *Loops) Scrub(ctx context.Context, nodes []string, rate int64, progress func(Progress)) error {
	return ErrNotLeading
}

// Left returns how many chunks have a copy on a node according to the names. A node that is draining can be removed
// without loss when there are none. It may be called on any server.
func (l *Loops) Left(ctx context.Context, node string) (int64, error) { return 0, ErrNotLeading }
