package names

import (
	"errors"
	"iter"
	"log/slog"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// Hash is the BLAKE3 digest of a chunk.
type Hash [32]byte

// Options configures the store.
type Options struct {
	// Dir is created if it does not exist. Only one process at a time may use it.
	Dir    string
	Logger *slog.Logger
	// Cache is how many bytes of the data are kept in memory; 32 MiB if 0.
	Cache int64
}

// Entry is a committed log entry.
type Entry struct {
	Index uint64
	// Data is an encoded objectv1.Entry.
	Data []byte
}

// Names is the store. It is the machine of a group of package consensus.
type Names struct{}

// Open opens or creates the store.
func Open(Options) (*Names, error) { return nil, errors.ErrUnsupported }

// Close writes what is in memory and closes all files.
func (*Names) Close() error { return errors.ErrUnsupported }

// Apply applies committed entries, one after the other, and returns the results of each. It skips those that it has
// applied before a restart. An error means that an entry is not understood: nothing may be applied after it.
func (*Names) Apply([]Entry) ([]*objectv1.Results, error) { return nil, errors.ErrUnsupported }

// Applied is the index of the newest entry that was applied. After a restart it may be smaller than before: the log
// has those that are missing.
func (*Names) Applied() uint64 { return 0 }

// Checkpoint makes everything durable, and a complete copy in a new folder, by hard links. It returns the index of the
// newest entry in the copy.
func (*Names) Checkpoint(string) (uint64, error) { return 0, errors.ErrUnsupported }

// Restore replaces everything with a copy that Checkpoint has made, perhaps on another server. The folder is gone
// afterwards. Views that are open stay valid.
func (*Names) Restore(string) error { return errors.ErrUnsupported }

// View returns the current state. It does not change, and must be closed.
func (*Names) View() *View { return nil }

// View is the state after one entry.
type View struct{}

// Close gives up the view.
func (*View) Close() {}

// Index is that of the newest entry in the view.
func (*View) Index() uint64 { return 0 }

// Epoch is the current one of the collection of garbage, from 1.
func (*View) Epoch() uint64 { return 0 }

// Current returns the current version of a key, which may be a delete marker, or nil.
func (*View) Current(bucket, key string) (*objectv1.Version, error) {
	return nil, errors.ErrUnsupported
}

// Version returns a version by its id of 16 bytes, or by "null", or nil.
func (*View) Version(bucket, key string, id []byte) (*objectv1.Version, error) {
	return nil, errors.ErrUnsupported
}

// Blocks returns the blocks of a version in order, from the one that has the byte at an offset. It yields the offset of
// each block in the object.
func (*View) Blocks(version *objectv1.Version, offset int64) iter.Seq2[Placed, error] { return nil }

// Placed is a block at its offset.
type Placed struct {
	Offset int64
	Block  *objectv1.Block
}

// Chunk returns what is known of a chunk, or nil.
func (*View) Chunk(Hash) (*objectv1.Chunk, error) { return nil, errors.ErrUnsupported }

// ListRequest selects a page of a bucket's keys, in the order of their bytes.
type ListRequest struct {
	Prefix, Delimiter string
	// After is the last key or common prefix of the page before; AfterVersion the last version of that key.
	After        string
	AfterVersion []byte
	// Versions lists all versions and delete markers, the newest of a key first; otherwise only current versions.
	Versions bool
	Limit    int
}

// Listing is a page.
type Listing struct {
	Items []Listed
	// More is whether another page follows. It begins after Last and LastVersion.
	More        bool
	Last        string
	LastVersion []byte
}

// Listed is a version or a common prefix.
type Listed struct {
	// Key is the common prefix if Version is nil.
	Key     string
	Version *objectv1.Version
	// Latest is whether it is the current version.
	Latest bool
}

// List returns a page of a bucket.
func (*View) List(bucket string, request ListRequest) (Listing, error) {
	return Listing{}, errors.ErrUnsupported
}

// Usage returns what a bucket holds, never nil; NamespaceUsage the bytes of a namespace.
func (*View) Usage(bucket string) (*objectv1.BucketUsage, error) { return nil, errors.ErrUnsupported }

// NamespaceUsage returns the bytes of all buckets of a namespace.
func (*View) NamespaceUsage(namespace string) (int64, error) { return 0, errors.ErrUnsupported }

// Upload returns an upload, or nil.
func (*View) Upload(bucket, key string, id []byte) (*objectv1.Upload, error) {
	return nil, errors.ErrUnsupported
}

// Uploads returns a page of the uploads of a bucket, in the order of their keys and, for a key, of their ids.
func (*View) Uploads(bucket, prefix, afterKey string, afterID []byte, limit int) (uploads []*objectv1.Upload, more bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Parts returns a page of the parts of an upload, in the order of their numbers.
func (*View) Parts(upload []byte, after uint32, limit int) (parts []*objectv1.Part, more bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Nodes returns the numbers of the nodes by their uids.
func (*View) Nodes() (map[string]uint32, error) { return nil, errors.ErrUnsupported }

// Found is a chunk that a query has found.
type Found struct {
	Hash  Hash
	Chunk *objectv1.Chunk
}

// Short returns chunks that fewer nodes have than should, in ascending order.
func (*View) Short(after Hash, limit int) ([]Found, error) { return nil, errors.ErrUnsupported }

// ChunksOn returns chunks that a node should have, in ascending order.
func (*View) ChunksOn(node uint32, after Hash, limit int) ([]Found, error) {
	return nil, errors.ErrUnsupported
}

// FoundDead is a chunk that nothing refers to.
type FoundDead struct {
	Hash Hash
	Dead *objectv1.DeadChunk
}

// Dead returns chunks that nothing has referred to since an epoch or before, in ascending order.
func (*View) Dead(epoch uint64, after Hash, limit int) ([]FoundDead, error) {
	return nil, errors.ErrUnsupported
}

// Unreferenced returns block lists that Release has to be proposed for.
func (*View) Unreferenced(limit int) ([]*objectv1.ReleasedList, error) {
	return nil, errors.ErrUnsupported
}

// Expired is something whose time is over: the operation that removes it.
type Expired struct{ Operation *objectv1.Operation }

// Expired returns operations, without their times, that remove versions, uploads and staged lists whose time is over.
func (*View) Expired(now int64, limit int) ([]Expired, error) { return nil, errors.ErrUnsupported }

// Totals are counted while entries are applied.
type Totals struct{ Objects, Versions, Bytes, Chunks, ChunkBytes, Short, Dead int64 }

// Totals returns the totals of all buckets.
func (*View) Totals() (Totals, error) { return Totals{}, errors.ErrUnsupported }
