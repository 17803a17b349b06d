// Package s3test has what tests of the S3 API need: a directory of buckets and access keys in memory. Only tests use it.
package s3test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// Directory implements s3.Directory.
type Directory struct {
	store *object.Store

	mu      sync.Mutex
	keys    map[string]held
	buckets map[address]*v1.Bucket
	quotas  map[address]int64
	made    int
	lookups int
}

type held struct {
	key    *v1.AccessKey
	secret string
}

type address struct{ namespace, name string }

// NewDirectory returns a directory without buckets and keys.
func NewDirectory(store *object.Store) *Directory {
	return &Directory{store: store, keys: map[string]held{}, buckets: map[address]*v1.Bucket{}, quotas: map[address]int64{}}
}

// AddKey adds an access key. The role viewer reads, none may do nothing, creator only creates buckets, and any other one may do everything.
func (d *Directory) AddKey(id, secret, namespace, role string, buckets ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys[id] = held{secret: secret, key: &v1.AccessKey{
		Metadata: &v1.Metadata{Namespace: namespace, Name: id}, Spec: &v1.AccessKeySpec{Role: role, Buckets: buckets},
	}}
}

// RemoveKey removes an access key.
func (d *Directory) RemoveKey(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.keys, id)
}

// SetQuota limits a bucket, in bytes.
func (d *Directory) SetQuota(namespace, name string, quota int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quotas[address{namespace, name}] = quota
}

// Lookups returns how often buckets were looked for.
func (d *Directory) Lookups() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookups
}

// AccessKey implements s3.Directory.
func (d *Directory) AccessKey(_ context.Context, id string) (*v1.AccessKey, string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.keys[id]
	return h.key, h.secret, nil
}

// Allowed implements s3.Directory.
func (d *Directory) Allowed(_ context.Context, key *v1.AccessKey, verb, _, bucket string) bool {
	spec := key.GetSpec()
	if len(spec.GetBuckets()) > 0 && bucket != "" && !slices.Contains(spec.GetBuckets(), bucket) {
		return false
	}
	switch spec.GetRole() {
	case "none":
		return false
	case "creator":
		return verb == "create"
	case "viewer":
		return verb == "get"
	}
	return true
}

// FindBucket implements s3.Directory.
func (d *Directory) FindBucket(_ context.Context, namespace, name string) (object.Bucket, *v1.Bucket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lookups++
	at := address{namespace, name}
	b := d.buckets[at]
	if b == nil {
		return object.Bucket{}, nil, fmt.Errorf("bucket %s of namespace %s: %w", name, namespace, object.ErrNoBucket)
	}
	of := object.Bucket{
		UID: b.GetMetadata().GetUid(), Name: name, Namespace: namespace, NamespaceUID: "uid-" + namespace,
		Quota: d.quotas[at], Versioning: b.GetSpec().GetVersioning(), Keys: keyNamed,
	}
	if b.GetSpec().GetEncrypted() {
		of.Encryption = "key-" + of.UID
	}
	return of, b, nil
}

// keyNamed is a key that depends on its id alone.
func keyNamed(_ context.Context, id string) (*object.Key, error) {
	secret := sha256.Sum256([]byte(id))
	return object.NewKey(id, secret[:])
}

// ListBuckets implements s3.Directory.
func (d *Directory) ListBuckets(_ context.Context, namespace string) ([]*v1.Bucket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*v1.Bucket
	for _, at := range slices.SortedFunc(maps.Keys(d.buckets), func(a, b address) int { return strings.Compare(a.name, b.name) }) {
		if at.namespace == namespace {
			all = append(all, d.buckets[at])
		}
	}
	return all, nil
}

// CreateBucket implements s3.Directory.
func (d *Directory) CreateBucket(_ context.Context, _ *v1.AccessKey, bucket *v1.Bucket) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := address{bucket.GetMetadata().GetNamespace(), bucket.GetMetadata().GetName()}
	if d.buckets[at] != nil {
		return status.Errorf(codes.AlreadyExists, "bucket %s exists", at.name)
	}
	d.made++
	stored := proto.CloneOf(bucket)
	stored.Metadata.Uid = fmt.Sprintf("bucket-%d", d.made)
	stored.Metadata.CreateTime = timestamppb.Now()
	d.buckets[at] = stored
	return nil
}

// UpdateBucket implements s3.Directory.
func (d *Directory) UpdateBucket(_ context.Context, key *v1.AccessKey, name string, change func(*v1.BucketSpec)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := address{key.GetMetadata().GetNamespace(), name}
	if d.buckets[at] == nil {
		return fmt.Errorf("bucket %s: %w", name, object.ErrNoBucket)
	}
	changed := proto.CloneOf(d.buckets[at])
	if changed.Spec == nil {
		changed.Spec = &v1.BucketSpec{}
	}
	change(changed.GetSpec())
	d.buckets[at] = changed
	return nil
}

// DeleteBucket implements s3.Directory.
func (d *Directory) DeleteBucket(ctx context.Context, key *v1.AccessKey, name string) error {
	b, _, err := d.FindBucket(ctx, key.GetMetadata().GetNamespace(), name)
	if err != nil {
		return err
	}
	if err := d.store.CloseBucket(ctx, b); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.buckets, address{b.Namespace, name})
	return nil
}
