package object

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// checkBefore is the size from which a put is checked before its body is read, as far as that is possible. A smaller
// body is there sooner than the answer.
const checkBefore = inlineBlocks * ChunkSize

// Put stores an object. The body must fail when its client stalls: the store cannot interrupt a Read.
func (s *Store) Put(ctx context.Context, b Bucket, r PutRequest) (Object, error) {
	if err := check(b, r.Key); err != nil {
		return Object{}, err
	}
	if r.Size < 0 || r.Size >= checkBefore {
		if err := s.admit(ctx, b, r); err != nil {
			return Object{}, aboutKey(b, r.Key, err)
		}
	}
	in, ctx, err := s.intake(ctx, b, b.encryption())
	if err != nil {
		return Object{}, aboutKey(b, r.Key, err)
	}
	defer in.end()
	sum, err := in.body(ctx, r.Body, r.Size)
	if err == nil && r.MD5 != nil && !bytes.Equal(sum, r.MD5) {
		err = ErrBadDigest
	}
	if err != nil {
		return Object{}, aboutKey(b, r.Key, err)
	}
	v := &objectv1.Version{Etag: hex.EncodeToString(sum), Headers: r.Headers, Tags: r.Tags}
	if r.Checksum != nil {
		v.Checksum = r.Checksum()
	}
	object, err := s.putVersion(ctx, b, r, in, v)
	if err != nil {
		return Object{}, aboutKey(b, r.Key, err)
	}
	return object, nil
}

// admit refuses early what will be refused anyway.
func (s *Store) admit(ctx context.Context, b Bucket, r PutRequest) error {
	view, err := s.view(ctx)
	if err != nil {
		return err
	}
	defer view.Close()
	if err := met(view, b, r.Key, r.Condition); err != nil {
		return err
	}
	var replaced *objectv1.Version
	if b.Versioning != "enabled" {
		if replaced, err = view.Version(b.UID, r.Key, []byte(nullVersion)); err != nil {
			return err
		}
	}
	return s.overQuota(b, roomFor(view, b, max(r.Size, 0)-replaced.GetCharged()))
}

// met is whether a condition holds now.
func met(view *names.View, b Bucket, key string, c Condition) error {
	if c == (Condition{}) {
		return nil
	}
	v, err := view.Current(b.UID, key)
	if err != nil {
		return err
	}
	there := v != nil && !v.GetDeleteMarker()
	switch {
	case c.IfNoneMatch != "" && there:
		return ErrPrecondition
	case c.IfMatch != "" && !there:
		return ErrNoKey
	case c.IfMatch != "" && c.IfMatch != "*" && c.IfMatch != v.GetEtag():
		return ErrPrecondition
	}
	return nil
}

// roomFor is whether quotas leave room for so many bytes more.
func roomFor(view *names.View, b Bucket, size int64) error {
	if b.Quota > 0 {
		usage, err := view.Usage(b.UID)
		if err != nil {
			return err
		}
		if used := usage.GetBytes() + usage.GetUploadBytes(); used+size > b.Quota {
			return &QuotaError{Scope: "bucket " + b.Name, Used: used, Wanted: size, Max: b.Quota}
		}
	}
	if b.NamespaceQuota > 0 {
		used, err := view.NamespaceUsage(b.NamespaceUID)
		if err != nil {
			return err
		}
		if used+size > b.NamespaceQuota {
			return &QuotaError{Scope: "namespace " + b.Namespace, Used: used, Wanted: size, Max: b.NamespaceQuota}
		}
	}
	return nil
}

// putVersion gives a key the content that was taken in.
func (s *Store) putVersion(ctx context.Context, b Bucket, r PutRequest, in *intake, v *objectv1.Version) (Object, error) {
	var err error
	if v.Id, err = newID(); err != nil {
		return Object{}, err
	}
	if v.Blocks, v.Segments, err = in.content(ctx); err != nil {
		return Object{}, err
	}
	v.Encryption = in.key.encryption()
	now := s.now()
	v.Size, v.Charged, v.Time, v.ExpireTime = in.size, in.size, now.UnixNano(), b.expiry(r.Key, now)
	put := &objectv1.Put{Target: in.target, Key: r.Key, Version: v, Condition: condition(r.Condition)}
	result, err := in.commit(ctx, func() *objectv1.Operation {
		put.Chunks, put.Epoch = in.chunks(), in.epoch
		return &objectv1.Operation{What: &objectv1.Operation_Put{Put: put}}
	}, func(op *objectv1.Operation) (*objectv1.Result, error) {
		return s.proposeOnce(ctx, op, madeVersion(b, r.Key, v.Id))
	})
	if err != nil {
		return Object{}, s.overQuota(b, err)
	}
	return objectOf(r.Key, result.GetVersion()), nil
}

// madeVersion looks for a version that an operation makes.
func madeVersion(b Bucket, key string, id []byte) func(*names.View) (*objectv1.Result, error) {
	return func(view *names.View) (*objectv1.Result, error) {
		v, err := view.Version(b.UID, key, id)
		if v == nil || err != nil {
			return nil, err
		}
		return &objectv1.Result{Version: v}, nil
	}
}

func condition(c Condition) *objectv1.Condition {
	if c == (Condition{}) {
		return nil
	}
	return &objectv1.Condition{IfMatch: c.IfMatch, IfNoneMatch: c.IfNoneMatch}
}

// overQuota makes the scope of a quota readable, because the names know only ids, and tells of the refusal. Other errors
// stay as they are.
func (s *Store) overQuota(b Bucket, err error) error {
	var quota *QuotaError
	if !errors.As(err, &quota) {
		return err
	}
	defer func() { s.told(b, quota) }()
	switch quota.Scope {
	case "bucket":
		quota.Scope = fmt.Sprintf("bucket %s", b.Name)
	case "namespace":
		quota.Scope = fmt.Sprintf("namespace %s", b.Namespace)
	}
	return err
}

func objectOf(key string, v *objectv1.Version) Object {
	return Object{Key: key, Version: v, VersionID: VersionID(v)}
}
