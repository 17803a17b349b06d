package object

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// Source is an object, or a part of it, to copy from.
type Source struct {
	Bucket         Bucket
	Key, VersionID string
	// ETag is what the source must have, if not empty; otherwise the copy fails with ErrPrecondition.
	ETag string
	// Offset and Length select bytes; a Length of 0 is up to the end.
	Offset, Length int64
}

// Copy puts an object with the content of another one. The content is moved only if it is encrypted in another way. Body, Size,
// MD5 and Checksum of the request are ignored. Headers and Tags that are nil are those of the source.
func (s *Store) Copy(ctx context.Context, b Bucket, r PutRequest, from Source) (Object, error) {
	if err := check(b, r.Key); err != nil {
		return Object{}, err
	}
	in, ctx, err := s.intake(ctx, b, b.encryption())
	if err != nil {
		return Object{}, aboutKey(b, r.Key, err)
	}
	defer in.end()
	c, err := s.copyInto(ctx, in, from)
	if err != nil {
		return Object{}, aboutKey(from.Bucket, from.Key, err)
	}
	v := &objectv1.Version{Headers: r.Headers, Tags: r.Tags}
	if v.Headers == nil {
		v.Headers = c.source.GetHeaders()
	}
	if v.Tags == nil {
		v.Tags = c.source.GetTags()
	}
	if c.whole() {
		v.Etag, v.Checksum = c.source.GetEtag(), c.source.GetChecksum()
	} else {
		v.Etag = c.tag(in)
	}
	object, err := s.putVersion(ctx, b, r, in, v)
	if err != nil {
		return Object{}, aboutKey(b, r.Key, err)
	}
	return object, nil
}

// copied is a range of bytes of a version.
type copied struct {
	source        *objectv1.Version
	offset, limit int64
	// shares is whether the copy can have the same blocks: it has the same key, or none either.
	shares bool
	// key is that of the source.
	key *Key
}

func (c copied) whole() bool { return c.offset == 0 && c.limit == c.source.GetSize() }

// tag is the ETag of what was copied, as 32 hexadecimal digits. It is the MD5 of the bytes if that is known.
func (c copied) tag(in *intake) string {
	if etag := c.source.GetEtag(); c.whole() && !strings.Contains(etag, "-") {
		return etag
	}
	return hex.EncodeToString(in.tag())
}

// copyInto takes in bytes of another object: blocks that are wanted as a whole by reference if that is possible, the
// others by copying.
func (s *Store) copyInto(ctx context.Context, in *intake, from Source) (copied, error) {
	view, err := s.view(ctx)
	if err != nil {
		return copied{}, err
	}
	defer view.Close()
	c := copied{offset: from.Offset}
	if c.source, err = lookup(view, from.Bucket, from.Key, from.VersionID); err != nil {
		return c, err
	}
	if from.ETag != "" && from.ETag != c.source.GetEtag() {
		return c, ErrPrecondition
	}
	c.limit = c.source.GetSize()
	if from.Offset < 0 || from.Length < 0 || from.Offset > c.limit || from.Length > c.limit-from.Offset {
		return c, fmt.Errorf("%w: it has %d bytes", ErrBadRange, c.limit)
	}
	if from.Length > 0 {
		c.limit = from.Offset + from.Length
	}
	if c.key, err = from.Bucket.key(ctx, c.source.GetEncryption()); err != nil {
		return c, err
	}
	c.shares = in.shares(from.Bucket, c.key)
	for placed, err := range view.Blocks(c.source, c.offset) {
		if err != nil {
			return c, err
		}
		if placed.Offset >= c.limit {
			break
		}
		if err := s.copyBlock(ctx, in, view, placed, c); err != nil {
			return c, err
		}
	}
	if in.size != c.limit-c.offset {
		return c, fmt.Errorf("%w: %d bytes of %d were copied", ErrIncomplete, in.size, c.limit-c.offset)
	}
	return c, in.wait()
}

// shares is whether what a bucket has by a key can be referred to.
func (in *intake) shares(b Bucket, key *Key) bool {
	if in.key == nil || key == nil {
		return in.key == key
	}
	return in.key.id == key.id && in.target.GetBucket() == b.UID
}

func (s *Store) copyBlock(ctx context.Context, in *intake, view *names.View, placed names.Placed, c copied) error {
	begin := max(c.offset-placed.Offset, 0)
	end := min(c.limit-placed.Offset, int64(placed.Block.GetSize()))
	if c.shares && begin == 0 && end == int64(placed.Block.GetSize()) {
		return in.refer(ctx, placed.Block, view.Epoch())
	}
	found, err := s.pieceOf(view, placed)
	if err != nil {
		return err
	}
	sealed, err := sealingOf(placed.Block, c.key)
	if err != nil {
		return err
	}
	buf, err := s.fetch(ctx, piece{
		hash: found.Hash, size: found.Size, offset: uint32(begin), length: uint32(end - begin), nodes: found.Nodes, sealed: sealed,
	}, nil)
	if err != nil {
		return err
	}
	defer buf.drop()
	in.size += end - begin
	return in.write(ctx, buf)
}
