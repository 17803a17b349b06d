package names

import (
	"encoding/binary"
	"iter"
	"math"

	"github.com/cockroachdb/pebble/v2"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// View is the state after one entry. Its methods may be called at once.
type View struct {
	names    *Names
	database *database
	snapshot *pebble.Snapshot
	meta     meta
	// err is why nothing can be read; every method returns it.
	err error
}

// View returns the current state. It does not change, and must be closed. After Close every query of it fails.
func (n *Names) View() *View {
	v := &View{names: n}
	if v.database, v.err = n.acquire(); v.err != nil {
		return v
	}
	v.snapshot = v.database.NewSnapshot()
	v.meta, v.err = readMeta(v.snapshot)
	return v
}

// Close gives up the view.
func (v *View) Close() {
	if v.database == nil {
		return
	}
	v.names.warn("close a view", v.snapshot.Close())
	v.names.releaseOrLog(v.database)
	v.database, v.err = nil, ErrClosed
}

// Index is that of the newest entry in the view.
func (v *View) Index() uint64 { return v.meta.applied }

// Epoch is the current one of the collection of garbage, from 1.
func (v *View) Epoch() uint64 { return v.meta.epoch }

// Totals are counted while entries are applied. Bytes are those of versions and of parts of uploads, ChunkBytes those of
// all chunks that something refers to, once each.
type Totals struct{ Objects, Versions, Bytes, Chunks, ChunkBytes, Short, Dead int64 }

// Totals returns the totals of all buckets.
func (v *View) Totals() (Totals, error) { return v.meta.totals, v.err }

// Current returns the current version of a key, which may be a delete marker, or nil.
func (v *View) Current(bucket, key string) (*objectv1.Version, error) {
	if v.err != nil {
		return nil, v.err
	}
	s, err := readCurrent(v.snapshot, bucket, key)
	return s.version(), err
}

// version is the version in a row that may be missing.
func (s *stored) version() *objectv1.Version {
	if s == nil {
		return nil
	}
	return s.Version
}

// Version returns a version by its id of 16 bytes, or by "null", or nil.
func (v *View) Version(bucket, key string, id []byte) (*objectv1.Version, error) {
	if v.err != nil {
		return nil, v.err
	}
	current, err := readCurrent(v.snapshot, bucket, key)
	if err != nil || current == nil || current.is(string(id)) {
		return current.version(), err
	}
	if !current.older {
		return nil, nil
	}
	s, err := readOlder(v.snapshot, bucket, key, string(id))
	return s.version(), err
}

// Placed is a block at its offset.
type Placed struct {
	Offset int64
	Block  *objectv1.Block
}

// Blocks returns the blocks of a version in order, from the one that has the byte at an offset. It yields the offset of
// each block in the object.
func (v *View) Blocks(version *objectv1.Version, offset int64) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		if v.err != nil {
			yield(Placed{}, v.err)
			return
		}
		w := walk{from: offset, yield: yield}
		if !w.blocks(version.GetBlocks()) {
			return
		}
		for _, segment := range version.GetSegments() {
			if w.at+segment.GetSize() <= offset {
				w.at += segment.GetSize()
				continue
			}
			if !w.segment(v.snapshot, segment) {
				return
			}
		}
	}
}

// walk goes through the blocks of a version. Its methods return false when it is over.
type walk struct {
	at, from int64
	yield    func(Placed, error) bool
}

func (w *walk) blocks(blocks []*objectv1.Block) bool {
	for _, block := range blocks {
		begin := w.at
		w.at += int64(block.GetSize())
		if w.at > w.from && !w.yield(Placed{Offset: begin, Block: block}, nil) {
			return false
		}
	}
	return true
}

func (w *walk) segment(r pebble.Reader, segment *objectv1.Segment) bool {
	for number := range segment.GetLists() {
		var blocks []*objectv1.Block
		found, err := read(r, listKey(segment.GetList(), number), func(row []byte) error {
			size, _, err := cutListBytes(row)
			if err != nil {
				return err
			}
			if w.at+size <= w.from {
				w.at += size
				return nil
			}
			list, err := decodeList(row)
			blocks = list.GetBlocks()
			return err
		})
		if err == nil && !found {
			err = errDamagedRow
		}
		if err != nil {
			w.yield(Placed{}, err)
			return false
		}
		if !w.blocks(blocks) {
			return false
		}
	}
	return true
}

// Chunk returns what is known of a chunk, or nil.
func (v *View) Chunk(hash Hash) (*objectv1.Chunk, error) {
	if v.err != nil {
		return nil, v.err
	}
	return readMessage[objectv1.Chunk](v.snapshot, hashKey(tableChunk, hash))
}

// Usage returns what a bucket holds, never nil.
func (v *View) Usage(bucket string) (*objectv1.BucketUsage, error) {
	if v.err != nil {
		return nil, v.err
	}
	usage, err := readMessage[objectv1.BucketUsage](v.snapshot, key(tableBucket, bucket))
	if usage == nil {
		usage = &objectv1.BucketUsage{}
	}
	return usage, err
}

// NamespaceUsage returns the bytes of all buckets of a namespace.
func (v *View) NamespaceUsage(namespace string) (int64, error) {
	if v.err != nil {
		return 0, v.err
	}
	return readNamespace(v.snapshot, namespace)
}

// Upload returns an upload, or nil.
func (v *View) Upload(bucket, key string, id []byte) (*objectv1.Upload, error) {
	if v.err != nil {
		return nil, v.err
	}
	return readMessage[objectv1.Upload](v.snapshot, uploadKey(bucket, key, id))
}

// Uploads returns a page of the uploads of a bucket, in the order of their keys and, for a key, of their ids. It begins
// behind an upload, or behind all uploads of a key if no id is given.
func (v *View) Uploads(bucket, prefix, afterKey string, afterID []byte, limit int) (uploads []*objectv1.Upload, more bool, err error) {
	if v.err != nil || limit <= 0 {
		return nil, false, v.err
	}
	all := objectPrefix(tableUpload, bucket, prefix)
	from := all
	if afterKey != "" {
		passed := uploadKey(bucket, afterKey, afterID)
		if from = maxKeyOf(from, append(passed, 0)); len(afterID) == 0 {
			from = maxKeyOf(all, after(passed))
		}
	}
	err = scan(v.snapshot, from, after(all), func(_, row []byte) (bool, error) {
		if len(uploads) == limit {
			more = true
			return false, nil
		}
		upload := new(objectv1.Upload)
		uploads = append(uploads, upload)
		return true, decodeMessage(row, upload)
	})
	return uploads, more, err
}

// Parts returns a page of the parts of an upload, in the order of their numbers.
func (v *View) Parts(upload []byte, after uint32, limit int) (parts []*objectv1.Part, more bool, err error) {
	if v.err != nil || limit <= 0 || after == math.MaxUint32 {
		return nil, false, v.err
	}
	return scanParts(v.snapshot, upload, after+1, limit)
}

// Nodes returns the numbers of the nodes by their uids.
func (v *View) Nodes() (map[string]uint32, error) {
	if v.err != nil {
		return nil, v.err
	}
	return loadNodes(v.snapshot)
}

// Expired is something whose time is over: the operation that removes it.
type Expired struct{ Operation *objectv1.Operation }

// Expired returns operations, without their times, that remove versions, uploads and staged lists whose time is over.
func (v *View) Expired(now int64, limit int) ([]Expired, error) {
	if v.err != nil || limit <= 0 || now < 0 {
		return nil, v.err
	}
	var expired []Expired
	end := binary.BigEndian.AppendUint64([]byte{byte(tableExpiry)}, uint64(now)+1)
	err := scan(v.snapshot, key(tableExpiry), end, func(k, _ []byte) (bool, error) {
		operation, err := removal(k)
		expired = append(expired, Expired{Operation: operation})
		return len(expired) < limit, err
	})
	if err != nil {
		return nil, err
	}
	return expired, nil
}

// removal is the operation that removes what an expiry row names.
func removal(k []byte) (*objectv1.Operation, error) {
	if len(k) < 10 {
		return nil, errDamagedRow
	}
	kind, rest := k[9], append([]byte(nil), k[10:]...)
	if kind == expiresList {
		return &objectv1.Operation{What: &objectv1.Operation_Release{Release: &objectv1.Release{
			Lists: []*objectv1.ReleasedList{{List: rest}},
		}}}, nil
	}
	bucket, rest, bucketOK := cutString(rest)
	object, id, objectOK := cutString(rest)
	target := &objectv1.Target{Bucket: bucket}
	switch {
	case !bucketOK || !objectOK:
		return nil, errDamagedRow
	case kind == expiresVersion:
		return &objectv1.Operation{What: &objectv1.Operation_Delete{Delete: &objectv1.Delete{
			Target: target, Key: object, Version: id, Expired: true,
		}}}, nil
	default:
		return &objectv1.Operation{What: &objectv1.Operation_AbortUpload{AbortUpload: &objectv1.AbortUpload{
			Target: target, Key: object, Upload: id, Expired: true,
		}}}, nil
	}
}
