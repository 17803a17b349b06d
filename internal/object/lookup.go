package object

import (
	"context"
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// lookup returns a version, or the current one if versionID is empty. With ErrDeleteMarker it returns the marker.
func lookup(view *names.View, b Bucket, key, versionID string) (*objectv1.Version, error) {
	id, err := versionBytes(versionID)
	if err != nil {
		return nil, err
	}
	var v *objectv1.Version
	missing := ErrNoVersion
	if len(id) == 0 {
		v, err = view.Current(b.UID, key)
		missing = ErrNoKey
	} else {
		v, err = view.Version(b.UID, key, id)
	}
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		return nil, missing
	case v.GetDeleteMarker():
		return v, ErrDeleteMarker
	}
	return v, nil
}

// Head returns a version, or the current one if versionID is empty. With ErrDeleteMarker it returns the marker.
func (s *Store) Head(ctx context.Context, b Bucket, key, versionID string) (Object, error) {
	view, err := s.view(ctx)
	if err != nil {
		return Object{}, err
	}
	defer view.Close()
	v, err := lookup(view, b, key, versionID)
	if err != nil {
		err = aboutKey(b, key, err)
	}
	if v == nil {
		return Object{}, err
	}
	return objectOf(key, v), err
}

// Open is Head, and a reader of the content. The caller closes the reader.
func (s *Store) Open(ctx context.Context, b Bucket, key, versionID string) (Object, *Reader, error) {
	view, err := s.view(ctx)
	if err != nil {
		return Object{}, nil, err
	}
	v, err := lookup(view, b, key, versionID)
	var r *Reader
	if err == nil {
		r, err = s.opened(ctx, view, b, v)
	}
	if err != nil {
		view.Close()
		err = aboutKey(b, key, err)
		if v == nil {
			return Object{}, nil, err
		}
		return objectOf(key, v), nil, err
	}
	return objectOf(key, v), r, nil
}

// opened takes over the view, unless there is an error.
func (s *Store) opened(ctx context.Context, view *names.View, b Bucket, v *objectv1.Version) (*Reader, error) {
	key, err := b.key(ctx, v.GetEncryption())
	if err != nil {
		return nil, err
	}
	return s.reader(view, v, key)
}

// List returns a page of a bucket.
func (s *Store) List(ctx context.Context, b Bucket, r names.ListRequest) (names.Listing, error) {
	view, err := s.view(ctx)
	if err != nil {
		return names.Listing{}, err
	}
	defer view.Close()
	listing, err := view.List(b.UID, r)
	if err != nil {
		return names.Listing{}, aboutBucket(b, err)
	}
	return listing, nil
}

// Usage returns what a bucket holds.
func (s *Store) Usage(ctx context.Context, b Bucket) (*objectv1.BucketUsage, error) {
	all, err := s.Usages(ctx, []Bucket{b})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Usages returns what each bucket holds, all at the same moment.
func (s *Store) Usages(ctx context.Context, all []Bucket) ([]*objectv1.BucketUsage, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	usages := make([]*objectv1.BucketUsage, len(all))
	for i, b := range all {
		if usages[i], err = view.Usage(b.UID); err != nil {
			return nil, aboutBucket(b, err)
		}
	}
	return usages, nil
}

// NamespaceUsages returns the bytes that count against the quota of each namespace, all at the same moment.
func (s *Store) NamespaceUsages(ctx context.Context, uids []string) ([]int64, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	usages := make([]int64, len(uids))
	for i, uid := range uids {
		if usages[i], err = view.NamespaceUsage(uid); err != nil {
			return nil, fmt.Errorf("namespace %s: %w", uid, err)
		}
	}
	return usages, nil
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
	view, err := s.view(ctx)
	if err != nil {
		return nil, false, err
	}
	defer view.Close()
	v, err := lookup(view, b, key, versionID)
	if err != nil {
		return nil, false, aboutKey(b, key, err)
	}
	if offset < 0 || offset > v.GetSize() {
		return nil, false, aboutKey(b, key, ErrBadRange)
	}
	for placed, err := range view.Blocks(v, offset) {
		if err != nil {
			return nil, false, aboutKey(b, key, err)
		}
		if len(pieces) == limit {
			return pieces, true, nil
		}
		found, err := s.pieceOf(view, placed)
		if err != nil {
			return nil, false, aboutKey(b, key, err)
		}
		pieces = append(pieces, found)
	}
	return pieces, false, nil
}

func (s *Store) pieceOf(view *names.View, placed names.Placed) (Piece, error) {
	p := Piece{Offset: placed.Offset, Size: placed.Block.GetSize(), Hash: Hash(placed.Block.GetHash())}
	chunk, err := view.Chunk(p.Hash)
	if err != nil {
		return p, err
	}
	p.Copies = int(chunk.GetCopies())
	p.Nodes, err = s.numbers.uids(view, chunk.GetNodes())
	return p, err
}
