package object

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

const (
	// minPart is the size of every part but the last one, at least.
	minPart = 5 << 20
	// maxParts is the greatest number of a part.
	maxParts = 10_000
)

// UploadRequest begins an upload in parts.
type UploadRequest struct {
	Key     string
	Headers *objectv1.Headers
	Tags    map[string]string
	// Checksum is the algorithm and type that the client asked for; it may be nil.
	Checksum *objectv1.Checksum
	// Author is the SPIFFE id or access key of the caller.
	Author string
	// Resume identifies the content, if not empty: an unfinished upload of the same author with the same goes on.
	Resume string
}

// CreateUpload begins an upload. Its id is UploadID of the result.
func (s *Store) CreateUpload(ctx context.Context, b Bucket, r UploadRequest) (*objectv1.Upload, error) {
	if err := check(b, r.Key); err != nil {
		return nil, err
	}
	if found, err := s.begun(ctx, b, r); found != nil || err != nil {
		return found, err
	}
	id, err := newID()
	if err != nil {
		return nil, err
	}
	ttl := b.UploadTTL
	if ttl == 0 {
		ttl = defaultUploadTTL
	}
	now := s.now()
	u := &objectv1.Upload{
		Id: id, Key: r.Key, Time: now.UnixNano(), ExpireTime: now.Add(ttl).UnixNano(), Headers: r.Headers, Tags: r.Tags,
		Checksum: r.Checksum, Author: r.Author, Resume: r.Resume, Encryption: b.encryption(),
	}
	op := &objectv1.Operation{What: &objectv1.Operation_CreateUpload{
		CreateUpload: &objectv1.CreateUpload{Target: b.target(), Upload: u},
	}}
	result, err := s.proposeOnce(ctx, op, func(view *names.View) (*objectv1.Result, error) {
		found, err := view.Upload(b.UID, r.Key, id)
		if found == nil || err != nil {
			return nil, err
		}
		return &objectv1.Result{}, nil
	})
	if err == nil {
		err = refusal(result, 0)
	}
	if err != nil {
		return nil, aboutKey(b, r.Key, err)
	}
	return u, nil
}

// begun finds an upload that goes on; nil if there is none.
func (s *Store) begun(ctx context.Context, b Bucket, r UploadRequest) (*objectv1.Upload, error) {
	if r.Resume == "" {
		return nil, nil
	}
	for after := ""; ; {
		page, more, err := s.Uploads(ctx, b, r.Key, keyBefore(r.Key, after), after, 100)
		if err != nil {
			return nil, err
		}
		for _, u := range page {
			switch {
			case u.GetKey() != r.Key: // a longer one
				return nil, nil
			case u.GetResume() == r.Resume && u.GetAuthor() == r.Author && u.GetEncryption().GetKey() == b.Encryption:
				return u, nil
			}
			after = UploadID(u)
		}
		if !more {
			return nil, nil
		}
	}
}

// keyBefore is the key after which a page of uploads begins: none for the first page.
func keyBefore(key, upload string) string {
	if upload == "" {
		return ""
	}
	return key
}

// PutPart stores a part, in place of an earlier one with its number.
func (s *Store) PutPart(ctx context.Context, b Bucket, p Part) (*objectv1.Part, error) {
	in, ctx, err := s.openUpload(ctx, b, p)
	if err != nil {
		return nil, aboutUpload(b, p.Key, p.Upload, err)
	}
	defer in.end()
	sum, err := in.body(ctx, p.Body, p.Size)
	if err == nil && p.MD5 != nil && !bytes.Equal(sum, p.MD5) {
		err = ErrBadDigest
	}
	if err != nil {
		return nil, aboutUpload(b, p.Key, p.Upload, fmt.Errorf("part %d: %w", p.Number, err))
	}
	part := &objectv1.Part{Etag: hex.EncodeToString(sum)}
	if p.Checksum != nil {
		part.Checksum = p.Checksum()
	}
	return s.putPart(ctx, b, p, in, part)
}

// CopyPart is PutPart with content of an object. Body, Size, MD5 and Checksum of the part are ignored.
func (s *Store) CopyPart(ctx context.Context, b Bucket, p Part, from Source) (*objectv1.Part, error) {
	in, ctx, err := s.openUpload(ctx, b, p)
	if err != nil {
		return nil, aboutUpload(b, p.Key, p.Upload, err)
	}
	defer in.end()
	c, err := s.copyInto(ctx, in, from)
	if err != nil {
		return nil, aboutKey(from.Bucket, from.Key, err)
	}
	return s.putPart(ctx, b, p, in, &objectv1.Part{Etag: c.tag(in)})
}

// openUpload begins with the content of a part. It refuses one that cannot be stored, before its body is read.
func (s *Store) openUpload(ctx context.Context, b Bucket, p Part) (*intake, context.Context, error) {
	u, err := s.admitPart(ctx, b, p)
	if err != nil {
		return nil, nil, err
	}
	return s.intake(ctx, b, u.GetEncryption()) // whatever the bucket does meanwhile: an object has one key
}

// admitPart returns the upload of a part that can be stored.
func (s *Store) admitPart(ctx context.Context, b Bucket, p Part) (*objectv1.Upload, error) {
	if p.Number < 1 || p.Number > maxParts {
		return nil, fmt.Errorf("%w: numbers of parts are 1 to %d", ErrBadPart, maxParts)
	}
	id, err := uploadBytes(p.Upload)
	if err != nil {
		return nil, err
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	u, err := view.Upload(b.UID, p.Key, id)
	if err != nil {
		return nil, err
	}
	if u == nil {
		return nil, ErrNoUpload
	}
	var replaced int64
	before, _, err := view.Parts(id, uint32(p.Number-1), 1)
	if err != nil {
		return nil, err
	}
	if len(before) == 1 && before[0].GetNumber() == uint32(p.Number) {
		replaced = before[0].GetSize()
	}
	return u, s.overQuota(b, roomFor(view, b, max(p.Size, 0)-replaced))
}

// putPart gives an upload the content that was taken in.
func (s *Store) putPart(ctx context.Context, b Bucket, p Part, in *intake, part *objectv1.Part) (*objectv1.Part, error) {
	if err := s.commitPart(ctx, b, p, in, part); err != nil {
		return nil, aboutUpload(b, p.Key, p.Upload, fmt.Errorf("part %d: %w", p.Number, s.overQuota(b, err)))
	}
	return part, nil
}

func (s *Store) commitPart(ctx context.Context, b Bucket, p Part, in *intake, part *objectv1.Part) error {
	id, err := uploadBytes(p.Upload)
	if err != nil {
		return err
	}
	blocks, segments, err := in.content(ctx)
	if err != nil {
		return err
	}
	part.Number, part.Size, part.Time, part.Blocks = uint32(p.Number), in.size, s.now().UnixNano(), blocks
	if len(segments) > 0 {
		part.Segment = segments[0]
		part.Segment.Part, part.Segment.Checksum = part.GetNumber(), part.GetChecksum()
	}
	put := &objectv1.PutPart{Target: in.target, Key: p.Key, Upload: id, Part: part}
	_, err = in.commit(ctx, func() *objectv1.Operation {
		put.Chunks, put.Epoch = in.chunks(), in.epoch
		return &objectv1.Operation{What: &objectv1.Operation_PutPart{PutPart: put}}
	}, func(op *objectv1.Operation) (*objectv1.Result, error) {
		return s.proposeOnce(ctx, op, func(view *names.View) (*objectv1.Result, error) {
			stored, _, err := view.Parts(id, part.GetNumber()-1, 1)
			if err != nil || len(stored) == 0 || stored[0].GetTime() != part.GetTime() || stored[0].GetEtag() != part.GetEtag() {
				return nil, err
			}
			return &objectv1.Result{}, nil
		})
	})
	return err
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
	object, err := s.complete(ctx, b, r)
	if err != nil {
		return Object{}, aboutUpload(b, r.Key, r.Upload, s.overQuota(b, err))
	}
	return object, nil
}

func (s *Store) complete(ctx context.Context, b Bucket, r CompleteRequest) (Object, error) {
	id, err := uploadBytes(r.Upload)
	if err != nil {
		return Object{}, err
	}
	v, err := s.joined(ctx, b, r, id)
	if err != nil {
		return Object{}, err
	}
	if v.GetIndex() > 0 {
		return objectOf(r.Key, v), nil // it was completed before
	}
	op := &objectv1.Operation{What: &objectv1.Operation_CompleteUpload{CompleteUpload: &objectv1.CompleteUpload{
		Target: b.target(), Key: r.Key, Upload: id, Parts: r.Parts, Version: v, Condition: condition(r.Condition), Least: minPart,
	}}}
	result, err := s.proposeOnce(ctx, op, madeVersion(b, r.Key, v.GetId()))
	if err == nil {
		err = refusal(result, v.GetSize())
	}
	if err != nil {
		return Object{}, err
	}
	return objectOf(r.Key, result.GetVersion()), nil
}

// joined is the version that the parts make. It has an index if the upload was completed before.
func (s *Store) joined(ctx context.Context, b Bucket, r CompleteRequest, id []byte) (*objectv1.Version, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	version := completedID(id)
	u, err := view.Upload(b.UID, r.Key, id)
	if err != nil {
		return nil, err
	}
	if u == nil {
		v, err := view.Version(b.UID, r.Key, version)
		if v == nil && err == nil {
			err = ErrNoUpload
		}
		return v, err
	}
	size, etag, err := join(view, id, r.Parts)
	if err != nil {
		return nil, err
	}
	if r.Size >= 0 && r.Size != size {
		return nil, fmt.Errorf("%w: the parts have %d bytes instead of %d", ErrIncomplete, size, r.Size)
	}
	now := s.now()
	return &objectv1.Version{
		Id: version, Size: size, Charged: size, Etag: etag, Time: now.UnixNano(), ExpireTime: b.expiry(r.Key, now),
		Headers: u.GetHeaders(), Tags: u.GetTags(), Checksum: r.Checksum, Encryption: u.GetEncryption(),
	}, nil
}

// completedID is the id of the version that an upload becomes. It depends on the upload alone, so that completing it
// again finds what was made the first time.
func completedID(upload []byte) []byte {
	sum := sha256.Sum256(append([]byte("completed upload "), upload...))
	return sum[:16]
}

// join compares parts with those that were stored, and returns the size and the ETag of the object.
func join(view *names.View, upload []byte, parts []*objectv1.CompletedPart) (size int64, etag string, err error) {
	if len(parts) == 0 {
		return 0, "", fmt.Errorf("%w: there is none", ErrBadPart)
	}
	ascending := func(a, b *objectv1.CompletedPart) int { return int(a.GetNumber()) - int(b.GetNumber()) }
	if !slices.IsSortedFunc(parts, ascending) {
		return 0, "", fmt.Errorf("%w: parts are given in ascending order", ErrBadPart)
	}
	stored, err := partsOf(view, upload)
	if err != nil {
		return 0, "", err
	}
	digest := md5.New()
	for i, p := range parts {
		found := stored[p.GetNumber()]
		if found == nil || found.GetEtag() != p.GetEtag() || i > 0 && parts[i-1].GetNumber() == p.GetNumber() {
			return 0, "", fmt.Errorf("part %d: %w", p.GetNumber(), ErrBadPart)
		}
		if i < len(parts)-1 && found.GetSize() < minPart {
			return 0, "", fmt.Errorf("part %d has %d bytes, and only the last one may have less than %d: %w",
				p.GetNumber(), found.GetSize(), minPart, ErrSmallPart)
		}
		sum, err := hex.DecodeString(found.GetEtag())
		if err != nil {
			return 0, "", fmt.Errorf("part %d has an ETag that is no digest: %w", p.GetNumber(), err)
		}
		digest.Write(sum)
		size += found.GetSize()
	}
	return size, fmt.Sprintf("%x-%d", digest.Sum(nil), len(parts)), nil
}

func partsOf(view *names.View, upload []byte) (map[uint32]*objectv1.Part, error) {
	stored := map[uint32]*objectv1.Part{}
	for after, more := uint32(0), true; more; {
		var page []*objectv1.Part
		var err error
		if page, more, err = view.Parts(upload, after, 1000); err != nil {
			return nil, err
		}
		for _, p := range page {
			stored[p.GetNumber()] = p
			after = p.GetNumber()
		}
	}
	return stored, nil
}

// AbortUpload gives up an upload and its parts.
func (s *Store) AbortUpload(ctx context.Context, b Bucket, key, upload string) error {
	id, err := uploadBytes(upload)
	if err != nil {
		return aboutUpload(b, key, upload, err)
	}
	op := &objectv1.Operation{What: &objectv1.Operation_AbortUpload{
		AbortUpload: &objectv1.AbortUpload{Target: b.target(), Key: key, Upload: id},
	}}
	result, err := s.proposeOnce(ctx, op, func(view *names.View) (*objectv1.Result, error) {
		left, err := view.Upload(b.UID, key, id)
		if left != nil || err != nil {
			return nil, err
		}
		return &objectv1.Result{}, nil
	})
	if err == nil {
		err = refusal(result, 0)
	}
	if err != nil {
		return aboutUpload(b, key, upload, err)
	}
	return nil
}

// Uploads returns a page of a bucket's unfinished uploads that follow a key and, for that key, an upload.
func (s *Store) Uploads(ctx context.Context, b Bucket, prefix, afterKey, afterUpload string, limit int) (uploads []*objectv1.Upload, more bool, err error) {
	var after []byte
	if afterUpload != "" {
		if after, err = uploadBytes(afterUpload); err != nil {
			return nil, false, aboutBucket(b, err)
		}
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, false, err
	}
	defer view.Close()
	uploads, more, err = view.Uploads(b.UID, prefix, afterKey, after, limit)
	if err != nil {
		return nil, false, aboutBucket(b, err)
	}
	return uploads, more, nil
}

// Parts returns an upload and a page of its parts with numbers above after.
func (s *Store) Parts(ctx context.Context, b Bucket, key, upload string, after, limit int) (u *objectv1.Upload, parts []*objectv1.Part, more bool, err error) {
	id, err := uploadBytes(upload)
	if err != nil {
		return nil, nil, false, aboutUpload(b, key, upload, err)
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	defer view.Close()
	if u, err = view.Upload(b.UID, key, id); err == nil && u == nil {
		err = ErrNoUpload
	}
	if err == nil {
		parts, more, err = view.Parts(id, uint32(max(after, 0)), limit)
	}
	if err != nil {
		return nil, nil, false, aboutUpload(b, key, upload, err)
	}
	return u, parts, more, nil
}
