// Package objects is the ObjectService and the StorageService: objects by the API of the cluster, and the disks below
// them. Every server answers for itself.
//
// It guarantees that a caller that stalls gives its memory back, and that every refusal says what helps. It must not know
// where buckets come from, nor how content gets to disks.
package objects

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// Directory finds buckets.
type Directory interface {
	// FindBucket returns a bucket as the store needs it and as the API shows it; or object.ErrNoBucket.
	FindBucket(ctx context.Context, namespace, name string) (object.Bucket, *v1.Bucket, error)
}

// Options is what a Service is made of.
type Options struct {
	Store     *object.Store
	Directory Directory
	Disks     object.Disks
	Logger    *slog.Logger
	// Patience is how long a caller may neither send nor take anything; a minute if 0.
	Patience time.Duration
}

// Service is the ObjectService.
type Service struct {
	v1.UnsafeObjectServiceServer
	store     *object.Store
	directory Directory
	disks     object.Disks
	logger    *slog.Logger
	patience  time.Duration
}

// New returns the service.
func New(o Options) (*Service, error) {
	if o.Store == nil || o.Directory == nil || o.Disks == nil || o.Logger == nil {
		return nil, errors.New("the object service needs a store, a directory, disks and a logger")
	}
	return &Service{
		store: o.Store, directory: o.Directory, disks: o.Disks, logger: o.Logger, patience: cmp.Or(o.Patience, time.Minute),
	}, nil
}

// address is a field of every request: the bucket that it is about.
type address interface {
	GetNamespace() string
	GetBucket() string
}

func (s *Service) bucket(ctx context.Context, a address) (object.Bucket, error) {
	return s.find(ctx, cmp.Or(a.GetNamespace(), spec.DefaultNamespace), a.GetBucket())
}

func (s *Service) find(ctx context.Context, namespace, name string) (object.Bucket, error) {
	b, _, err := s.directory.FindBucket(ctx, namespace, name)
	if errors.Is(err, object.ErrNoBucket) {
		err = core.Refuse(codes.NotFound, "bucket %s does not exist in namespace %s; see: %s, or create it with: %s", name, namespace,
			spec.Hint(namespace, "cloudless bucket ls"), spec.Hint(namespace, "cloudless bucket create "+name))
	}
	return b, err
}

// present is a version as the API shows it.
func present(b object.Bucket, o object.Object) *v1.Object {
	v := o.Version
	shown := &v1.Object{
		Bucket: b.Name, Namespace: b.Namespace, Key: o.Key, Size: v.GetSize(), Etag: v.GetEtag(), Version: o.VersionID,
		Time: timeOf(v.GetTime()), ContentType: v.GetHeaders().GetContentType(), Metadata: v.GetHeaders().GetUser(),
		Tags: v.GetTags(), DeleteMarker: v.GetDeleteMarker(), ExpireTime: timeOf(v.GetExpireTime()),
		Encrypted: v.GetEncryption().GetKey() != "",
	}
	return shown
}

// timeOf is not set for 0.
func timeOf(nanoseconds int64) *timestamppb.Timestamp {
	if nanoseconds == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanoseconds))
}

// headers is what a header sets beside the content.
func headers(h *v1.PutObjectHeader) *objectv1.Headers {
	return &objectv1.Headers{ContentType: h.GetContentType(), User: h.GetMetadata()}
}

// conditional is a request with conditions.
type conditional interface {
	GetIfMatch() string
	GetIfAbsent() bool
}

func condition(c conditional) object.Condition {
	condition := object.Condition{IfMatch: c.GetIfMatch()}
	if c.GetIfAbsent() {
		condition.IfNoneMatch = "*"
	}
	return condition
}

// HeadObject returns an object without its content.
func (s *Service) HeadObject(ctx context.Context, request *v1.HeadObjectRequest) (*v1.Object, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	o, err := s.store.Head(ctx, b, request.GetKey(), request.GetVersion())
	if err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	return present(b, o), nil
}

// DeleteObject deletes an object or a version of it.
func (s *Service) DeleteObject(ctx context.Context, request *v1.DeleteObjectRequest) (*v1.DeleteObjectResponse, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	o, err := s.store.Delete(ctx, b, request.GetKey(), request.GetVersion(), object.Condition{})
	if err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	return &v1.DeleteObjectResponse{Version: o.VersionID, DeleteMarker: o.Version.GetDeleteMarker()}, nil
}

// CopyObject copies an object to another key or bucket of its namespace.
func (s *Service) CopyObject(ctx context.Context, request *v1.CopyObjectRequest) (*v1.Object, error) {
	namespace := cmp.Or(request.GetNamespace(), spec.DefaultNamespace)
	if !core.Caller(ctx).Sees("object", namespace) {
		return nil, core.NewForbidden("%s may not read objects in namespace %s, so it cannot copy one: it needs a role that permits get on object", core.Caller(ctx).Name(), namespace)
	}
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	source, err := s.find(ctx, namespace, request.GetSourceBucket())
	if err != nil {
		return nil, err
	}
	o, err := s.store.Copy(ctx, b, object.PutRequest{Key: request.GetKey(), Size: -1}, object.Source{
		Bucket: source, Key: request.GetSourceKey(), VersionID: request.GetSourceVersion(),
	})
	if err != nil {
		return nil, refuse(source, request.GetSourceKey(), err)
	}
	return present(b, o), nil
}

// maxPieces is how many pieces one answer has at most.
const maxPieces = 5000

// LocateObject says on which nodes the pieces of an object are.
func (s *Service) LocateObject(ctx context.Context, request *v1.LocateObjectRequest) (*v1.LocateObjectResponse, error) {
	b, err := s.bucket(ctx, request)
	if err != nil {
		return nil, err
	}
	o, err := s.store.Head(ctx, b, request.GetKey(), request.GetVersion())
	if err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	pieces, more, err := s.store.Locate(ctx, b, request.GetKey(), o.VersionID, request.GetOffset(), maxPieces)
	if err != nil {
		return nil, refuse(b, request.GetKey(), err)
	}
	answer := &v1.LocateObjectResponse{Object: present(b, o)}
	names := nodeNames(s.disks)
	for _, p := range pieces {
		shown := &v1.ObjectPiece{Offset: p.Offset, Size: int64(p.Size), Hash: hex.EncodeToString(p.Hash[:]), Copies: int32(min(p.Copies, max(len(names), 1)))}
		for _, uid := range p.Nodes {
			shown.Nodes = append(shown.Nodes, cmp.Or(names[uid], uid))
		}
		answer.Pieces = append(answer.Pieces, shown)
	}
	if more {
		last := pieces[len(pieces)-1]
		answer.NextOffset = last.Offset + int64(last.Size)
	}
	return answer, nil
}

// nodeNames are the names of nodes by their uids.
func nodeNames(disks object.Disks) map[string]string {
	names := map[string]string{}
	for _, n := range disks.Nodes() {
		names[n.UID] = n.Name
	}
	return names
}
