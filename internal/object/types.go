package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// ChunkSize is the most bytes of a chunk. Chunks are smaller at the end of an object, and when memory is short.
const ChunkSize = 4 << 20

// Hash is the BLAKE3 digest of a chunk as nodes store it.
type Hash = names.Hash

// Names is the group of servers that keeps the names. It has the same answers on every server.
type Names interface {
	// Propose has the operations of an entry applied, and returns a result for each.
	Propose(ctx context.Context, entry *objectv1.Entry) (*objectv1.Results, error)
	// View returns the names with everything that was acknowledged before, on any server. The caller closes it.
	View(ctx context.Context) (*names.View, error)
}

// Node is a node with its disk, as this server knows it.
type Node struct {
	UID, Name, Zone, Class string
	// Capacity, Used and Free are in bytes; Free leaves out what the machine keeps for itself.
	Capacity, Used, Free, Chunks int64
	// Address answers other nodes inside of the mesh; it is empty if the node does not.
	Address string
	// Problem is why nothing can be stored there now; it is empty if it can.
	Problem string
	// Connected is false for a node that this server cannot ask now.
	Connected bool
	// Draining nodes get no chunks.
	Draining bool
	// Local is whether it is the node of this server's machine.
	Local bool
	// Idle is whether the machine has time for work that nobody waits for.
	Idle bool
	// Scrubbed is when all of its chunks were last checked, zero if never, and Damaged how many were found damaged so far.
	Scrubbed time.Time
	Damaged  int64
}

// Disks reaches the chunks of the nodes. Errors are one of the Err values below, or those of the connection.
type Disks interface {
	// Nodes are all nodes of the cluster that may have chunks, the connected ones and the others.
	Nodes() []Node
	// Changed is closed when what Nodes returns has changed noticeably.
	Changed() <-chan struct{}
	// Put returns when the chunk is on the node's disk.
	Put(ctx context.Context, node string, hash Hash, data []byte, epoch uint64) error
	// Get appends a part of a chunk to buf; a length of 0 is up to its end.
	Get(ctx context.Context, node string, hash Hash, offset, length uint32, buf []byte) ([]byte, error)
	// Fetch has a node get chunks from others. It calls done for each, in any order.
	Fetch(ctx context.Context, node string, chunks []Fetch, epoch uint64, done func(Hash, error)) error
	// Delete returns the chunks that the node does not have any more. It keeps those that were written after the epoch.
	Delete(ctx context.Context, node string, hashes []Hash, epoch uint64) ([]Hash, error)
	// List returns a page of what the node has, in ascending order.
	List(ctx context.Context, node string, after Hash, limit int) (page []Held, last bool, err error)
	// Scrub has a node check all of its chunks.
	Scrub(ctx context.Context, node string, rate int64, progress func(checked, total, damaged int64)) error
	// OnDamage calls f for chunks that a node found damaged or missing.
	OnDamage(f func(node string, hashes []Hash))
}

// Fetch is a chunk that a node should get, and the nodes that have it, the best first.
type Fetch struct {
	Hash  Hash
	Size  uint32
	Nodes []string
}

// Held is a chunk on a node, and the epoch in which it was last written.
type Held struct {
	Hash  Hash
	Epoch uint64
}

// What a node says of a chunk.
var (
	ErrChunkMissing = errors.New("the node does not have the chunk")
	ErrChunkDamaged = errors.New("the chunk is damaged")
	ErrDiskFull     = errors.New("the disk is full")
)

// Bucket is what the store must know of a bucket for an operation.
type Bucket struct {
	UID, Name, Namespace, NamespaceUID string
	// Replicas is 0 for as many as there are nodes, up to three.
	Replicas int
	// Quota and NamespaceQuota are in bytes; 0 is without limit.
	Quota, NamespaceQuota int64
	// Versioning is "", "enabled" or "suspended".
	Versioning string
	Expiry     []ExpiryRule
	// UploadTTL is how long an upload may stay unfinished; 0 is a week.
	UploadTTL time.Duration
	// Encryption is the id of the key that encrypts what is put; empty if nothing is encrypted.
	Encryption string
	// Keys returns a key of the bucket by its id, or [ErrKeyLost]; nil if there is none.
	Keys func(ctx context.Context, id string) (*Key, error)
}

// ExpiryRule deletes objects some time after they were put.
type ExpiryRule struct {
	Prefix string
	After  time.Duration
}

// Condition is what must hold of the current version.
type Condition struct {
	// IfMatch is its ETag, or "*".
	IfMatch string
	// IfNoneMatch "*" means that there must be none.
	IfNoneMatch string
}

// PutRequest is an object to put.
type PutRequest struct {
	Key  string
	Body io.Reader
	// Size is -1 if it is not known. A body of another size is an error.
	Size      int64
	Headers   *objectv1.Headers
	Tags      map[string]string
	Condition Condition
	// MD5 is what the content must have, if not nil.
	MD5 []byte
	// Checksum is what the S3 edge has computed when the body ended; it may be nil.
	Checksum func() *objectv1.Checksum
}

// Object is a version of an object.
type Object struct {
	Key     string
	Version *objectv1.Version
	// VersionID is the version's id as S3 writes it: "null" or 32 hexadecimal digits.
	VersionID string
}

// Part is a part of an upload to put.
type Part struct {
	Key, Upload string
	Number      int
	Body        io.Reader
	Size        int64
	MD5         []byte
	Checksum    func() *objectv1.Checksum
}

// Errors that callers handle. They are wrapped with what they are about.
var (
	ErrNoBucket     = errors.New("there is no such bucket")
	ErrNoKey        = errors.New("there is no such object")
	ErrNoVersion    = errors.New("there is no such version")
	ErrDeleteMarker = errors.New("the object was deleted")
	ErrNoUpload     = errors.New("there is no such upload")
	ErrPrecondition = errors.New("the object is not as the caller expects")
	ErrBadPart      = errors.New("the part is not as it was uploaded")
	ErrSmallPart    = errors.New("the part is too small")
	ErrNotEmpty     = errors.New("the bucket is not empty")
	ErrBadDigest    = errors.New("the content does not have the MD5 that the caller sent")
	ErrIncomplete   = errors.New("the content is shorter or longer than announced")
	ErrBadKey       = errors.New("an object's key is 1 to 1,024 bytes of UTF-8")
	ErrBadRange     = errors.New("the object does not have these bytes")
	// ErrNoQuorum says that too few nodes can store chunks now.
	ErrNoQuorum = errors.New("too few nodes can store data now")
	// ErrNoStorage says that no node will be able to store chunks without somebody's help. It is an ErrNoQuorum, too.
	ErrNoStorage error = noStorage{}
	// ErrUnreachable says that no node that answers has a chunk.
	ErrUnreachable = errors.New("no node that answers has the data")
)

type noStorage struct{}

func (noStorage) Error() string        { return "no node stores data" }
func (noStorage) Is(target error) bool { return target == ErrNoQuorum }

// QuotaError refuses what would exceed a quota.
type QuotaError struct {
	// Scope is "bucket photos" or "namespace shop".
	Scope             string
	Used, Wanted, Max int64
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("%s would have %d bytes and may have %d: delete objects or raise its quota", e.Scope, e.Used+e.Wanted, e.Max)
}
