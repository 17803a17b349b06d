// Package s3 serves the API of Amazon S3 over the object store, for every client that speaks it. The gateway of versitygw
// checks signatures, parses requests and encodes answers; this package gives it access keys, permissions, buckets and
// objects. Requests are those of the server's API port: nothing listens here.
package s3

import (
	"context"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// Directory knows access keys and buckets. Messages that it returns are not changed by anybody.
//
// Errors of package object and those with a gRPC status (NotFound, AlreadyExists, PermissionDenied, InvalidArgument,
// ResourceExhausted, FailedPrecondition, Unavailable) become the errors of S3 that clients expect.
type Directory interface {
	// AccessKey returns a key and its secret, or nil if there is none or it has expired. The signature of the request is
	// not checked yet, so the answer must be cheap and is not a use of the key.
	AccessKey(ctx context.Context, id string) (key *v1.AccessKey, secret string, err error)
	// Allowed is whether the role of a key grants a verb (get, create, update, delete) on a kind ("bucket" or "object") in
	// the key's namespace, and the key may use the bucket. An empty bucket is about no bucket in particular. It is only
	// called for requests with a correct signature, so that this is a use of the key.
	Allowed(ctx context.Context, key *v1.AccessKey, verb, kind, bucket string) bool
	// FindBucket returns a bucket as the store needs it, with quotas, and as the API shows it; or object.ErrNoBucket.
	FindBucket(ctx context.Context, namespace, name string) (object.Bucket, *v1.Bucket, error)
	// ListBuckets returns the buckets of a namespace by name. Their status is not needed.
	ListBuckets(ctx context.Context, namespace string) ([]*v1.Bucket, error)
	// CreateBucket stores a new bucket in the namespace of the key, in the name of the key.
	CreateBucket(ctx context.Context, key *v1.AccessKey, bucket *v1.Bucket) error
	// UpdateBucket applies a change to a copy of the newest spec and stores it. The change may be called more than once.
	UpdateBucket(ctx context.Context, key *v1.AccessKey, name string, change func(*v1.BucketSpec)) error
	// DeleteBucket removes a bucket without objects, or returns object.ErrNotEmpty.
	DeleteBucket(ctx context.Context, key *v1.AccessKey, name string) error
}

// Verifier is a directory that wants to know which requests have proved who sends them.
type Verifier interface {
	// Verified is called with the context of a request whose signature is correct, before its body is read.
	Verified(ctx context.Context)
}
