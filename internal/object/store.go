package object

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// Options configures a store.
type Options struct {
	Names  Names
	Disks  Disks
	Logger *slog.Logger
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Memory is how many bytes of content all requests together may have in memory; 64 MiB if 0.
	Memory int64
}

// Store puts and gets objects. All methods may be called at once.
type Store struct{}

// New returns a store. Close ends what it does in the background.
func New(Options) (*Store, error) { return nil, errors.ErrUnsupported }

// Close ends all work in the background and waits for it. Requests must have ended before.
func (s *Store) Close() {}

// Put stores an object. The body must fail when its client stalls: the store cannot interrupt a Read.
func (s *Store) Put(ctx context.Context, b Bucket, r PutRequest) (Object, error) {
	return Object{}, errors.ErrUnsupported
}

// Head returns a version, or the current one if versionID is empty. With ErrDeleteMarker it returns the marker.
func (s *Store) Head(ctx context.Context, b Bucket, key, versionID string) (Object, error) {
	return Object{}, errors.ErrUnsupported
}

// Open is Head, and a reader of the content. The caller closes the reader.
func (s *Store) Open(ctx context.Context, b Bucket, key, versionID string) (Object, *Reader, error) {
	return Object{}, nil, errors.ErrUnsupported
}

// Reader reads the content of one version, even while it is overwritten or deleted.
type Reader struct{}

// ReadRange reads length bytes from an offset; up to the end if length is negative. The result is an io.WriterTo as
// well, which copies less. Several ranges may be read one after the other, or at once.
func (r *Reader) ReadRange(ctx context.Context, offset, length int64) io.ReadCloser { return nil }

// Close gives up the reader. Ranges must have been closed before.
func (r *Reader) Close() {}

// Source is an object, or a part of it, to copy from.
type Source struct {
	Bucket         Bucket
	Key, VersionID string
	// ETag is what the source must have, if not empty; otherwise the copy fails with ErrPrecondition.
	ETag string
	// Offset and Length select bytes; a Length of 0 is up to the end.
	Offset, Length int64
}

// Copy puts an object with the content of another one, without moving the content where that is possible. Body, Size,
// MD5 and Checksum of the request are ignored. Headers and Tags that are nil are those of the source.
func (s *Store) Copy(ctx context.Context, b Bucket, r PutRequest, from Source) (Object, error) {
	return Object{}, errors.ErrUnsupported
}

// Delete deletes a version, or the current one if versionID is empty, which with versioning only adds a delete marker.
// It returns what was deleted or the marker that was made. An object that is not there is ErrNoKey or ErrNoVersion.
func (s *Store) Delete(ctx context.Context, b Bucket, key, versionID string, c Condition) (Object, error) {
	return Object{}, errors.ErrUnsupported
}

// Removal is one of the objects to delete at once.
type Removal struct {
	Key, VersionID string
	Condition      Condition
}

// Removed is what became of one of the objects to delete at once.
type Removed struct {
	Object Object
	Err    error
}

// DeleteAll deletes many objects. Each one may fail alone; the answers are in the order of the removals.
func (s *Store) DeleteAll(ctx context.Context, b Bucket, removals []Removal) ([]Removed, error) {
	return nil, errors.ErrUnsupported
}

// List returns a page of a bucket.
func (s *Store) List(ctx context.Context, b Bucket, r names.ListRequest) (names.Listing, error) {
	return names.Listing{}, errors.ErrUnsupported
}

// SetTags replaces the tags of a version. Head returns them.
func (s *Store) SetTags(ctx context.Context, b Bucket, key, versionID string, tags map[string]string) error {
	return errors.ErrUnsupported
}

// Piece is a part of an object and where it is.
type Piece struct {
	Offset int64
	Size   uint32
	Hash   Hash
	// Nodes are the UIDs of the nodes that have it, and Copies how many should.
	Nodes  []string
	Copies int
}

// Locate returns the pieces of a version from an offset on, and whether there are more.
func (s *Store) Locate(ctx context.Context, b Bucket, key, versionID string, offset int64, limit int) (pieces []Piece, more bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Usage returns what a bucket holds.
func (s *Store) Usage(ctx context.Context, b Bucket) (*objectv1.BucketUsage, error) {
	return nil, errors.ErrUnsupported
}

// CloseBucket makes sure that an empty bucket stays empty: nothing can be put into it again. It is ErrNotEmpty if the
// bucket holds versions or uploads.
func (s *Store) CloseBucket(ctx context.Context, b Bucket) error { return errors.ErrUnsupported }

// UploadRequest begins an upload in parts.
type UploadRequest struct {
	Key     string
	Headers *objectv1.Headers
	Tags    map[string]string
	// Checksum is the algorithm and type that the client asked for; it may be nil.
	Checksum *objectv1.Checksum
	// Author is the SPIFFE id or access key of the caller.
	Author string
}

// CreateUpload begins an upload. Its id is UploadID of the result.
func (s *Store) CreateUpload(ctx context.Context, b Bucket, r UploadRequest) (*objectv1.Upload, error) {
	return nil, errors.ErrUnsupported
}

// UploadID is the id of an upload as S3 writes it: 32 hexadecimal digits.
func UploadID(u *objectv1.Upload) string { return "" }

// VersionID is the id of a version as S3 writes it: "null" or 32 hexadecimal digits.
func VersionID(v *objectv1.Version) string { return "" }

// PutPart stores a part, in place of an earlier one with its number.
func (s *Store) PutPart(ctx context.Context, b Bucket, p Part) (*objectv1.Part, error) {
	return nil, errors.ErrUnsupported
}

// CopyPart is PutPart with content of an object. Body, Size, MD5 and Checksum of the part are ignored.
func (s *Store) CopyPart(ctx context.Context, b Bucket, p Part, from Source) (*objectv1.Part, error) {
	return nil, errors.ErrUnsupported
}

// CompleteRequest makes an object of the parts of an upload.
type CompleteRequest struct {
	Key, Upload string
	// Parts are numbers and etags in ascending order.
	Parts     []*objectv1.CompletedPart
	Condition Condition
	// Checksum is that of the object, if the client gave one.
	Checksum *objectv1.Checksum
	// Size is what the client says that the object has; -1 if it does not.
	Size int64
}

// CompleteUpload makes an object of parts, which are at least 5 MiB but for the last one. Completing an upload again
// gives the same answer while the object is there.
func (s *Store) CompleteUpload(ctx context.Context, b Bucket, r CompleteRequest) (Object, error) {
	return Object{}, errors.ErrUnsupported
}

// AbortUpload gives up an upload and its parts.
func (s *Store) AbortUpload(ctx context.Context, b Bucket, key, upload string) error {
	return errors.ErrUnsupported
}

// Uploads returns a page of a bucket's unfinished uploads that follow a key and, for that key, an upload.
func (s *Store) Uploads(ctx context.Context, b Bucket, prefix, afterKey, afterUpload string, limit int) (uploads []*objectv1.Upload, more bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Parts returns an upload and a page of its parts with numbers above after.
func (s *Store) Parts(ctx context.Context, b Bucket, key, upload string, after, limit int) (u *objectv1.Upload, parts []*objectv1.Part, more bool, err error) {
	return nil, nil, false, errors.ErrUnsupported
}
