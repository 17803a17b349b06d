package buckets

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// Options are what a directory needs.
type Options struct {
	Core *core.Core
	Auth *auth.Authenticator
	// Unseal opens the secrets of access keys, and the keys of buckets.
	Unseal func(sealed []byte, context string) ([]byte, error)
	// CatchUp waits until this server has applied what the leader had committed when it was called.
	CatchUp func(context.Context) error
	// Calls are calls to this server itself. They pass its guard, and find the leader.
	Calls v1.BucketServiceClient
}

// Directory knows the buckets and access keys of the cluster, on any server.
type Directory struct {
	core   *core.Core
	auth   *auth.Authenticator
	unseal func([]byte, string) ([]byte, error)
	calls  v1.BucketServiceClient
	// catchUp may be nil on a server that leads.
	catchUp func(context.Context) error

	mu      sync.Mutex
	secrets map[string]opened      // by the uid of the key
	keys    map[string]*object.Key // of buckets, by the context under which they are sealed
}

// opened is a secret in memory, and what it was opened from.
type opened struct {
	sealed []byte
	secret string
}

// maxOpened bounds the secrets in memory, and the keys of buckets.
const maxOpened = 4096

// New returns a directory.
func New(o Options) *Directory {
	return &Directory{
		core: o.Core, auth: o.Auth, unseal: o.Unseal, calls: o.Calls, catchUp: o.CatchUp,
		secrets: map[string]opened{}, keys: map[string]*object.Key{},
	}
}

// AccessKey returns a key and its secret, or nil if there is none or it has expired. The signature of the request is not
// checked yet, so this is cheap and no use of the key.
func (d *Directory) AccessKey(ctx context.Context, id string) (*v1.AccessKey, string, error) {
	if !IsKeyID(id) {
		return nil, "", nil
	}
	key, err := d.auth.AccessKey(ctx, id)
	if key == nil || err != nil {
		return nil, "", core.StatusOf(err)
	}
	secret, err := d.secretOf(key)
	return key, secret, core.StatusOf(err)
}

func (d *Directory) secretOf(key *v1.AccessKey) (string, error) {
	uid := key.GetMetadata().GetUid()
	stored := d.core.Store.Snapshot().AccessKeySecret(uid)
	if stored == nil {
		return "", core.Refuse(codes.NotFound, "access key %s was deleted", key.GetMetadata().GetName())
	}
	d.mu.Lock()
	known := d.secrets[uid]
	d.mu.Unlock()
	if bytes.Equal(known.sealed, stored.GetSealed()) {
		return known.secret, nil
	}
	plain, err := d.unseal(stored.GetSealed(), state.AccessKeyContext(uid))
	if err != nil {
		d.core.Logger.Error("the secret of an access key cannot be opened, and the key cannot be used",
			"key", key.GetMetadata().GetName(), "namespace", key.GetMetadata().GetNamespace(), "error", err)
		return "", core.Refuse(codes.Unavailable, "the secret of access key %s cannot be opened on this server: make another key", key.GetMetadata().GetName())
	}
	defer clear(plain)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.secrets) >= maxOpened {
		clear(d.secrets)
	}
	d.secrets[uid] = opened{sealed: stored.GetSealed(), secret: string(plain)}
	return string(plain), nil
}

// Allowed is whether the role of a key grants a verb on a kind, "bucket" or "object", in the key's namespace, and the key may
// use the bucket. An empty bucket is about no bucket in particular. It is only called for requests with a correct signature,
// so this is a use of the key.
func (d *Directory) Allowed(_ context.Context, key *v1.AccessKey, verb, kind, bucket string) bool {
	p, err := d.auth.OfKey(key)
	if err != nil || d.core.Store.Snapshot().AccessKey(p.TokenUID) == nil {
		return false
	}
	d.auth.KeyUsed(key)
	return p.Can(verb, kind, key.GetMetadata().GetNamespace()) && mayUse(key, bucket)
}

// mayUse is whether a key is for a bucket.
func mayUse(key *v1.AccessKey, bucket string) bool {
	only := key.GetSpec().GetBuckets()
	return bucket == "" || len(only) == 0 || slices.Contains(only, bucket)
}

// FindBucket returns a bucket as the store needs it and as the API shows it; or [object.ErrNoBucket].
func (d *Directory) FindBucket(ctx context.Context, namespace, name string) (object.Bucket, *v1.Bucket, error) {
	snap := d.core.Store.Snapshot()
	found := snap.BucketByName(namespace, name)
	if found == nil { // this server may be behind the others
		var err error
		if snap, err = d.newest(ctx); err != nil {
			return object.Bucket{}, nil, core.StatusOf(err)
		}
		found = snap.BucketByName(namespace, name)
	}
	if found == nil || IsDeleting(found) {
		return object.Bucket{}, nil, object.ErrNoBucket
	}
	of := Of(snap, found)
	of.Keys = func(ctx context.Context, id string) (*object.Key, error) { return d.keyOf(ctx, of, id) }
	return of, found, nil
}

// keyOf returns a key of a bucket. It is opened when it is first needed, and stays in memory.
func (d *Directory) keyOf(ctx context.Context, b object.Bucket, id string) (*object.Key, error) {
	stored := d.core.Store.Snapshot().BucketKey(b.UID)
	if stored.GetId() != id { // this server may be behind the others
		snap, err := d.newest(ctx)
		if err != nil {
			return nil, core.StatusOf(err)
		}
		stored = snap.BucketKey(b.UID)
	}
	if stored.GetId() != id {
		return nil, object.ErrKeyLost
	}
	sealedFor := state.BucketKeyContext(b.UID, id)
	d.mu.Lock()
	known := d.keys[sealedFor]
	d.mu.Unlock()
	if known != nil {
		return known, nil
	}
	key, err := d.openKey(stored, sealedFor)
	if err != nil {
		d.core.Logger.Error("the key of a bucket cannot be opened, and what it has encrypted cannot be read here",
			"bucket", b.Name, "namespace", b.Namespace, "error", err)
		return nil, core.StatusOf(core.Refuse(codes.Unavailable, "the key of bucket %s cannot be opened on this server, which may not have the "+
			"key-encryption key yet: try again, or see: cloudless ca status", b.Name))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.keys) >= maxOpened {
		clear(d.keys)
	}
	d.keys[sealedFor] = key
	return key, nil
}

func (d *Directory) openKey(stored *statev1.BucketKey, sealedFor string) (*object.Key, error) {
	plain, err := d.unseal(stored.GetSealed(), sealedFor)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return object.NewKey(stored.GetId(), plain)
}

// Bucket returns a bucket as the store needs it, or an error for people.
func (d *Directory) Bucket(ctx context.Context, namespace, name string) (object.Bucket, error) {
	found, _, err := d.FindBucket(ctx, namespace, name)
	if !errors.Is(err, object.ErrNoBucket) {
		return found, err
	}
	near := suggest.To(name, notfound.Names(d.core.Store.Snapshot().Buckets(namespace, "")))
	return found, core.Refuse(codes.NotFound, "bucket %s does not exist in namespace %s%s", name, namespace,
		notfound.Hint(near, spec.Hint(namespace, "cloudless bucket ls")))
}

// newest is a state with everything that was acknowledged before, on any server.
func (d *Directory) newest(ctx context.Context) (*state.Snapshot, error) {
	if d.catchUp == nil {
		return d.core.Consensus.Read(ctx)
	}
	if err := d.catchUp(ctx); err != nil {
		return nil, core.Refuse(codes.Unavailable, "this server is behind the others and does not know the bucket: %s; try again", err)
	}
	return d.core.Store.Snapshot(), nil
}

// ListBuckets returns the buckets of a namespace by name.
func (d *Directory) ListBuckets(ctx context.Context, namespace string) (all []*v1.Bucket, err error) {
	snap, err := d.newest(ctx)
	if err != nil {
		return nil, core.StatusOf(err)
	}
	for b := range snap.Buckets(namespace, "") {
		if !IsDeleting(b) {
			all = append(all, b)
		}
	}
	return all, nil
}

// CreateBucket stores a new bucket in the namespace of the key, in the name of the key.
func (d *Directory) CreateBucket(ctx context.Context, key *v1.AccessKey, bucket *v1.Bucket) error {
	ctx, err := d.as(ctx, key, bucket.GetMetadata().GetName())
	if err != nil {
		return err
	}
	made := proto.CloneOf(bucket)
	if made.Metadata == nil {
		made.Metadata = &v1.Metadata{}
	}
	made.Metadata.Namespace = key.GetMetadata().GetNamespace()
	_, err = d.calls.CreateBucket(ctx, &v1.CreateBucketRequest{Bucket: made})
	return err
}

// changeAttempts is how often a change begins again because another one was faster.
const changeAttempts = 16

// UpdateBucket applies a change to a copy of the newest spec and stores it. The change may be called more than once.
func (d *Directory) UpdateBucket(ctx context.Context, key *v1.AccessKey, name string, change func(*v1.BucketSpec)) error {
	as, err := d.as(ctx, key, name)
	if err != nil {
		return err
	}
	for range changeAttempts {
		snap, read := d.newest(ctx)
		if read != nil {
			return core.StatusOf(read)
		}
		old := snap.BucketByName(key.GetMetadata().GetNamespace(), name)
		if old == nil || IsDeleting(old) {
			return object.ErrNoBucket
		}
		now := proto.CloneOf(old)
		if now.Spec == nil {
			now.Spec = &v1.BucketSpec{}
		}
		change(now.Spec)
		if proto.Equal(now, old) {
			return nil
		}
		if _, err = d.calls.UpdateBucket(as, &v1.UpdateBucketRequest{Bucket: now}); status.Code(err) != codes.Aborted {
			return err
		}
	}
	return err
}

// DeleteBucket removes a bucket without objects, or returns [object.ErrNotEmpty].
func (d *Directory) DeleteBucket(ctx context.Context, key *v1.AccessKey, name string) error {
	ctx, err := d.as(ctx, key, name)
	if err != nil {
		return err
	}
	_, err = d.calls.DeleteBucket(ctx, &v1.DeleteBucketRequest{Namespace: key.GetMetadata().GetNamespace(), Name: name})
	switch {
	case core.HasReason(err, core.ReasonNotEmpty):
		return errors.Join(object.ErrNotEmpty, err)
	case status.Code(err) == codes.NotFound:
		return errors.Join(object.ErrNoBucket, err)
	}
	return err
}

// as is the context of a call on behalf of a key, which must be for the bucket.
func (d *Directory) as(ctx context.Context, key *v1.AccessKey, bucket string) (context.Context, error) {
	p, err := d.auth.OfKey(key)
	if err != nil {
		return nil, core.StatusOf(err)
	}
	if !mayUse(key, bucket) {
		return nil, core.StatusOf(core.Refuse(codes.PermissionDenied, "access key %s is not for bucket %s", key.GetMetadata().GetName(), bucket))
	}
	return metadata.NewOutgoingContext(ctx, auth.MetadataOf(p)), nil
}
