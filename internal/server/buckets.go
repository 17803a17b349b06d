package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	objects "github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/server/buckets"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/server/storage"
	"github.com/cloudless/cloudless/internal/server/website"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// bucketService is the BucketService.
//
// A bucket is stored here, and what is in it by the names of the object store. A deletion therefore has two steps: first the
// names close the bucket, so that nothing can be put into it any more, then the state forgets it. A call that ends between
// them leaves an empty bucket, which the next call deletes.
type bucketService struct {
	v1.UnsafeBucketServiceServer
	*collection[*v1.Bucket]
	keys *collection[*v1.AccessKey]
}

func newBuckets(s *Server) *collection[*v1.Bucket] {
	c := newCollection[*v1.Bucket](s, state.KindBucket)
	c.normalize, c.summary = spec.NormalizeBucket, bucketSummary
	c.present = func(_ *state.Snapshot, b *v1.Bucket) *v1.Bucket { return buckets.Present(b, len(s.disks.Nodes())) }
	c.prepare = func(ctx context.Context, given *v1.Bucket, p *preparation) (builder[*v1.Bucket], error) {
		plain, err := c.preparePlain(ctx, given, p)
		return bucketBuilder{builder: plain, sealer: s.sealer}, err
	}
	c.remove = func(ctx context.Context, tx *transaction, old *v1.Bucket) *v1.Bucket {
		if key := tx.base.BucketKey(old.GetMetadata().GetUid()); key != nil {
			tx.batch.Delete(state.KindBucketKey, key.GetMetadata().GetUid())
		}
		return c.removePlain(ctx, tx, old)
	}
	c.frozen = func(b *v1.Bucket) error {
		if buckets.IsDeleting(b) {
			return beingDeleted(b)
		}
		return nil
	}
	c.exists = func(old *v1.Bucket) error {
		if buckets.IsDeleting(old) {
			return beingDeleted(old)
		}
		return c.existsAlready(old)
	}
	// A plan is one transaction, and cannot see to it that a bucket is empty.
	c.prunable = func(*state.Snapshot, *v1.Bucket, *v1.PlanChange) bool { return false }
	return c
}

// bucketBuilder also makes the key of a bucket that is encrypted for the first time. A bucket that is not encrypted any
// more keeps the key, which opens what was put before.
type bucketBuilder struct {
	builder[*v1.Bucket]
	sealer buckets.Sealer
}

func (b bucketBuilder) create(ctx context.Context, tx *transaction) (*v1.Bucket, error) {
	made, err := b.builder.create(ctx, tx)
	if err != nil {
		return nil, err
	}
	return made, b.withKey(tx, made)
}

func (b bucketBuilder) update(ctx context.Context, tx *transaction, old *v1.Bucket) (*v1.Bucket, error) {
	now, err := b.builder.update(ctx, tx, old)
	if err != nil || now == old {
		return now, err
	}
	return now, b.withKey(tx, now)
}

func (b bucketBuilder) withKey(tx *transaction, now *v1.Bucket) error {
	uid := now.GetMetadata().GetUid()
	if !now.GetSpec().GetEncrypted() || tx.base.BucketKey(uid) != nil {
		return nil
	}
	key, err := buckets.NewBucketKey(b.sealer, uid)
	if err != nil {
		return fmt.Errorf("make the key of bucket %s: %w", now.GetMetadata().GetName(), err)
	}
	tx.batch.Create(key)
	return nil
}

// newDirectory makes what front ends of the object store ask. What they change for the bearers of access keys, this server
// calls itself for, so that such calls are checked and relayed like all others.
func (s *Server) newDirectory() (*buckets.Directory, error) {
	conn, err := s.inner.Dial()
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.stopping, func() { _ = conn.Close() })
	return buckets.New(buckets.Options{Core: s.Core, Auth: s.auth, Unseal: s.sealer.Unseal, CatchUp: s.router.CatchUp, Calls: v1.NewBucketServiceClient(conn)}), nil
}

// openStorage opens the object store, if this server keeps names of objects.
func (s *Server) openStorage() (err error) {
	s.refusals = buckets.NewRefusals(s.Core, s.peers)
	if s.directory, err = s.newDirectory(); err != nil || s.names == nil {
		return err
	}
	if s.storage, err = storage.New(storage.Options{
		ID: s.UID, Names: s.names, Disks: s.disks, State: s.Store, Logger: s.Logger, Scrape: s.scrape, Conn: s.peers.Ready, OverQuota: s.refusals.Refused, News: s.storageNews,
	}); err != nil {
		return err
	}
	if s.contents == nil {
		s.contents = s.storage.Store
	}
	return nil
}

// withS3 also answers S3 clients.
func (s *Server) withS3(others http.Handler) http.Handler {
	if s.storage == nil {
		return others
	}
	return s.storage.Handler(others)
}

// newSites makes what answers for routes to buckets.
func (s *Server) newSites() *website.Server {
	o := website.Options{
		State: s.Store, CatchUp: s.router.CatchUp, Logger: s.Logger,
		Bucket: func(ctx context.Context, namespace, name string) (objects.Bucket, error) {
			found, _, err := s.directory.FindBucket(ctx, namespace, name)
			return found, err
		},
		KeyNamespace: func(ctx context.Context, id string) (string, error) {
			key, _, err := s.directory.AccessKey(ctx, id)
			return key.GetMetadata().GetNamespace(), err
		},
	}
	if s.storage != nil {
		o.Objects = s.storage.Store
		o.S3, o.Claims = s.storage.S3()
	}
	return website.New(s.stopping, o)
}

func (s *Server) runStorage(ctx context.Context) error {
	if s.storage == nil {
		return nil
	}
	return s.storage.Run(ctx)
}

// storageProblems says what is wrong with the servers' part of the object store.
func (s *Server) storageProblems(ctx context.Context, servers []*v1.ServerStatus) []string {
	if s.storage == nil {
		return nil
	}
	return s.storage.Problems(ctx, servers)
}

// Directory returns the buckets and access keys of the cluster, for front ends of the object store.
func (s *Server) Directory() *buckets.Directory { return s.directory }

func beingDeleted(b *v1.Bucket) error {
	m := b.GetMetadata()
	return core.Refuse(codes.FailedPrecondition, "bucket %s is being deleted; finish that with: %s",
		m.GetName(), spec.Hint(m.GetNamespace(), "cloudless bucket rm "+m.GetName()+" --force"))
}

// bucketSummary is what an event says of a written bucket, such as "3 copies, at most 100Gi".
func bucketSummary(b *v1.Bucket) string {
	s, parts := b.GetSpec(), []string(nil)
	if n := s.GetReplicas(); n > 0 {
		parts = append(parts, strings.Replace(spec.Count(int(n), "copy"), "copys", "copies", 1))
	}
	if s.GetQuota() != "" {
		parts = append(parts, "at most "+s.GetQuota())
	}
	if s.GetVersioning() != "" {
		parts = append(parts, "versioning "+s.GetVersioning())
	}
	if n := len(s.GetExpiry()); n > 0 {
		parts = append(parts, spec.Count(n, "expiry rule"))
	}
	if s.GetEncrypted() {
		parts = append(parts, "encrypted")
	}
	return strings.Join(parts, ", ")
}

func (s *bucketService) CreateBucket(ctx context.Context, request *v1.CreateBucketRequest) (*v1.Bucket, error) {
	return s.create(ctx, request, request.GetBucket())
}

func (s *bucketService) ApplyBucket(ctx context.Context, request *v1.ApplyBucketRequest) (*v1.ApplyBucketResponse, error) {
	made, result, err := s.apply(ctx, request, request.GetBucket())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyBucketResponse{Bucket: made, Result: result}, nil
}

func (s *bucketService) UpdateBucket(ctx context.Context, request *v1.UpdateBucketRequest) (*v1.Bucket, error) {
	return s.update(ctx, request.GetBucket())
}

// DeleteBucket deletes an empty bucket, or one with everything that is in it.
func (s *bucketService) DeleteBucket(ctx context.Context, request *v1.DeleteBucketRequest) (*v1.Bucket, error) {
	if s.contents == nil {
		return nil, core.Refuse(codes.Unavailable, "this cluster has no object store, which knows what is in the bucket")
	}
	old, err := s.deletable(ctx, request)
	if err != nil {
		return nil, err
	}
	if !request.GetForce() {
		err = buckets.Close(ctx, s.contents, old)
	} else if err = s.beginDeletion(ctx, request); err == nil {
		err = buckets.Empty(ctx, s.contents, old)
	}
	if errors.Is(err, objects.ErrNotEmpty) && !request.GetForce() {
		return nil, s.notEmpty(ctx, old)
	}
	if err != nil {
		return nil, fmt.Errorf("delete bucket %s: %w", old.Name, err)
	}
	return s.deleteClosed(ctx, old)
}

// deletable refuses a deletion before it does anything, such as one that a policy forbids.
func (s *bucketService) deletable(ctx context.Context, request *v1.DeleteBucketRequest) (of objects.Bucket, err error) {
	namespace := orDefault(request.GetNamespace())
	if request.GetForce() {
		if err := s.Require(ctx, api.VerbDelete, "object", namespace, "delete the objects of bucket "+request.GetName()); err != nil {
			return of, err
		}
	}
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return of, err
	}
	tx := &transaction{base: snap, batch: &state.Batch{}, caller: core.Caller(ctx)}
	old, err := s.deleteIn(ctx, tx, namespace, request.GetName(), request.GetVersion())
	if err != nil {
		return of, err
	}
	if r := routes.Serving(snap, namespace, request.GetName()); r != nil {
		return of, core.Refuse(codes.FailedPrecondition, "bucket %s is served by route %s; remove the route first with: %s",
			request.GetName(), r.GetMetadata().GetName(), spec.Hint(namespace, "cloudless route rm "+r.GetMetadata().GetName()))
	}
	return buckets.Of(snap, old), policies.Judge(ctx, s.Core, snap, tx.batch).Refusal()
}

// beginDeletion keeps clients out of a bucket that is emptied.
func (s *bucketService) beginDeletion(ctx context.Context, request *v1.DeleteBucketRequest) error {
	_, err := s.change(ctx, func(tx *transaction) (*v1.Bucket, error) {
		namespace, name := orDefault(request.GetNamespace()), request.GetName()
		old := s.find(tx.base, namespace, name)
		if old == nil {
			return nil, s.missing(tx.base, namespace, name)
		}
		if buckets.IsDeleting(old) {
			return old, nil
		}
		if err := s.sameVersion(old, request.GetVersion()); err != nil {
			return nil, err
		}
		now := proto.CloneOf(old)
		now.Metadata.DeleteTime = timestamppb.New(s.Now())
		tx.batch.Update(now, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, now, "Deleting", "everything in it is deleted first"))
		return now, nil
	})
	return err
}

// deleteClosed forgets a bucket that nothing can be put into any more, and the keys that are for nothing else.
func (s *bucketService) deleteClosed(ctx context.Context, b objects.Bucket) (*v1.Bucket, error) {
	return s.change(ctx, func(tx *transaction) (*v1.Bucket, error) {
		old := tx.base.Bucket(b.UID)
		if old == nil { // by a call at the same time
			return nil, s.missing(tx.base, b.Namespace, b.Name)
		}
		for key := range tx.base.AccessKeys(b.Namespace, "") {
			if slices.Equal(key.GetSpec().GetBuckets(), []string{b.Name}) {
				s.keys.remove(ctx, tx, key)
			}
		}
		return s.remove(ctx, tx, old), nil
	})
}

// notEmpty refuses to delete a bucket with objects.
func (s *bucketService) notEmpty(ctx context.Context, b objects.Bucket) error {
	content := "objects"
	if usage, err := s.contents.Usages(ctx, []objects.Bucket{b}); err == nil {
		var parts []string
		if n := usage[0].GetVersions(); n > usage[0].GetObjects() {
			parts = append(parts, spec.Count(int(n), "version")+" of objects")
		} else if n > 0 {
			parts = append(parts, spec.Count(int(n), "object"))
		}
		if n := usage[0].GetUploads(); n > 0 {
			parts = append(parts, spec.Count(int(n), "unfinished upload"))
		}
		content = strings.Join(parts, " and ")
	}
	return core.WithReasons(codes.FailedPrecondition, fmt.Sprintf("bucket %s is not empty: it has %s; delete them first, or with it by: %s",
		b.Name, content, spec.Hint(b.Namespace, "cloudless bucket rm "+b.Name+" --force")), core.ReasonNotEmpty)
}

func (s *bucketService) GetBucket(ctx context.Context, request *v1.GetBucketRequest) (*v1.Bucket, error) {
	b, err := s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
	if err != nil {
		return nil, err
	}
	s.count(ctx, b)
	return b, nil
}

func (s *bucketService) ListBuckets(ctx context.Context, request *v1.ListBucketsRequest) (*v1.ListBucketsResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Bucket]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	s.count(ctx, items...)
	return &v1.ListBucketsResponse{Items: items, Next: next}, nil
}

func (s *bucketService) WatchBuckets(request *v1.WatchBucketsRequest, stream grpc.ServerStreamingServer[v1.BucketChange]) error {
	return s.watch(stream.Context(), selection[*v1.Bucket]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	}, func(change string, b *v1.Bucket) error {
		return stream.Send(&v1.BucketChange{Change: change, Bucket: b})
	})
}

// countPatience is how long a list of buckets waits for what they hold.
const countPatience = 2 * time.Second

// count adds to shown buckets what they hold, or why that is not known.
func (s *bucketService) count(ctx context.Context, all ...*v1.Bucket) {
	if len(all) == 0 {
		return
	}
	err := errors.New("this cluster has no object store")
	if s.contents != nil {
		ctx, cancel := context.WithTimeout(ctx, countPatience)
		defer cancel()
		err = s.countIn(ctx, all)
	}
	if err == nil {
		return
	}
	for _, b := range all {
		b.Status.Problem = "what it holds is not known now: " + err.Error()
	}
}

func (s *bucketService) countIn(ctx context.Context, all []*v1.Bucket) error {
	of := make([]objects.Bucket, len(all))
	for i, b := range all {
		of[i] = objects.Bucket{UID: b.GetMetadata().GetUid(), Name: b.GetMetadata().GetName()}
	}
	usages, err := s.contents.Usages(ctx, of)
	if err != nil {
		return err
	}
	for i, b := range all {
		u, st := usages[i], b.GetStatus()
		st.Objects, st.Versions, st.Uploads, st.Bytes = u.GetObjects(), u.GetVersions(), u.GetUploads(), u.GetBytes()+u.GetUploadBytes()
		if most, err := spec.ParseBytes(b.GetSpec().GetQuota()); err == nil && most > 0 && st.GetBytes() >= most {
			st.Problem = "it is full: delete objects, or raise its quota"
		}
		if u.GetClosed() {
			st.Phase, st.Problem = spec.BucketDeleting, "its deletion has ended early: delete it once more"
		}
	}
	return nil
}

func newAccessKeys(s *Server) *collection[*v1.AccessKey] {
	c := newCollection[*v1.AccessKey](s, state.KindAccessKey)
	c.remove = func(ctx context.Context, tx *transaction, old *v1.AccessKey) *v1.AccessKey {
		tx.batch.Delete(state.KindAccessKeySecret, old.GetMetadata().GetUid())
		tx.batch.Delete(state.KindAccessKey, old.GetMetadata().GetUid()) // whatever its version: each use changes it
		tx.batch.Create(s.Event(ctx, old, "Deleted", "it can be used no longer"))
		return old
	}
	c.missing = func(_ *state.Snapshot, namespace, name string) error {
		return core.Refuse(codes.NotFound, "access key %s does not exist in namespace %s; see: %s", name, namespace, spec.Hint(namespace, "cloudless bucket key ls"))
	}
	return c
}

// CreateAccessKey makes a key. Its secret is in this answer and in no other one.
func (s *bucketService) CreateAccessKey(ctx context.Context, request *v1.CreateAccessKeyRequest) (*v1.CreateAccessKeyResponse, error) {
	key, err := s.newKey(ctx, request)
	if err != nil {
		return nil, err
	}
	text, stored, err := buckets.NewSecret(s.sealer, key)
	if err != nil {
		return nil, err
	}
	made, err := s.keys.change(ctx, func(tx *transaction) (*v1.AccessKey, error) {
		if err := mayHaveKey(ctx, tx.base, key); err != nil {
			return nil, err
		}
		tx.batch.Create(proto.CloneOf(key))
		tx.batch.Create(proto.CloneOf(stored))
		tx.batch.Create(s.Event(ctx, key, "Created", keySummary(key)))
		return key, nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.CreateAccessKeyResponse{AccessKey: made, Secret: text, Endpoints: s.endpoints(), Region: spec.Region}, nil
}

func (s *bucketService) newKey(ctx context.Context, request *v1.CreateAccessKeyRequest) (*v1.AccessKey, error) {
	key := &v1.AccessKey{
		ApiVersion: spec.APIVersion, Kind: spec.KindAccessKey,
		Metadata: &v1.Metadata{Uid: state.NewUID(), Name: buckets.NewKeyID(), Namespace: orDefault(request.GetNamespace())},
		Spec:     spec.NormalAccessKey(request.GetSpec()),
		Status:   &v1.AccessKeyStatus{Author: core.Caller(ctx).ID.String()},
	}
	if request.GetTtl() != "" {
		ttl, err := spec.ParseDuration(request.GetTtl())
		if err != nil {
			return nil, invalid("ttl", err.Error())
		}
		if ttl <= 0 {
			return nil, invalid("ttl", "must be more than 0: a key that has ended is of no use; leave it out for a key that stays")
		}
		key.Spec.ExpireTime = timestamppb.New(s.Now().Add(ttl))
	}
	if end := key.GetSpec().GetExpireTime(); end != nil && !s.Now().Before(end.AsTime()) {
		return nil, invalid("spec.expireTime", "must be in the future: a key that has ended is of no use")
	}
	return key, nil
}

// mayHaveKey refuses a key for a role or a bucket that does not exist, and one that would permit more than its author may do.
func mayHaveKey(ctx context.Context, snap *state.Snapshot, key *v1.AccessKey) error {
	s, namespace := key.GetSpec(), key.GetMetadata().GetNamespace()
	role := roles.Named(s.GetRole(), snap.RoleByName)
	if role == nil {
		return missingRole(snap, "spec.role", s.GetRole())
	}
	for i, name := range s.GetBuckets() {
		if b := snap.BucketByName(namespace, name); b == nil || buckets.IsDeleting(b) {
			return invalid(fmt.Sprintf("spec.buckets[%d]", i), fmt.Sprintf("names bucket %s, which namespace %s does not have; see: %s",
				name, namespace, spec.Hint(namespace, "cloudless bucket ls")))
		}
	}
	return mayGive(ctx, role.GetSpec(), namespace, "the access key")
}

func keySummary(key *v1.AccessKey) string {
	s := key.GetSpec()
	text := "with role " + s.GetRole() + " for every bucket of the namespace"
	if only := s.GetBuckets(); len(only) > 0 {
		text = "with role " + s.GetRole() + " for " + core.Listed(only)
	}
	if end := s.GetExpireTime(); end != nil {
		text += " until " + end.AsTime().Format("2006-01-02 15:04 UTC")
	}
	return text
}

// endpoints are the addresses at which S3 clients reach the cluster.
func (s *Server) endpoints() (all []string) {
	for server := range s.Store.Snapshot().Servers("") {
		if address := server.GetSpec().GetAddress(); address != "" {
			all = append(all, "https://"+address)
		}
	}
	if all == nil {
		return []string{"https://" + s.address}
	}
	return all
}

func (s *bucketService) DeleteAccessKey(ctx context.Context, request *v1.DeleteAccessKeyRequest) (*v1.AccessKey, error) {
	return s.keys.delete(ctx, orDefault(request.GetNamespace()), request.GetName(), 0)
}

func (s *bucketService) GetAccessKey(ctx context.Context, request *v1.GetAccessKeyRequest) (*v1.AccessKey, error) {
	return s.keys.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *bucketService) ListAccessKeys(ctx context.Context, request *v1.ListAccessKeysRequest) (*v1.ListAccessKeysResponse, error) {
	items, next, err := s.keys.list(ctx, request.GetPage(), selection[*v1.AccessKey]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListAccessKeysResponse{Items: items, Next: next}, nil
}
