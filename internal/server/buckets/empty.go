package buckets

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
)

// Objects are what buckets hold. [object.Store] implements it.
type Objects interface {
	// Usages returns what each bucket holds.
	Usages(ctx context.Context, all []object.Bucket) ([]*objectv1.BucketUsage, error)
	// NamespaceUsages returns the bytes in all buckets of each namespace, by the NamespaceUID of buckets.
	NamespaceUsages(ctx context.Context, uids []string) ([]int64, error)
	List(ctx context.Context, b object.Bucket, r names.ListRequest) (names.Listing, error)
	DeleteAll(ctx context.Context, b object.Bucket, removals []object.Removal) ([]object.Removed, error)
	Uploads(ctx context.Context, b object.Bucket, prefix, afterKey, afterUpload string, limit int) ([]*objectv1.Upload, bool, error)
	AbortUpload(ctx context.Context, b object.Bucket, key, upload string) error
	CloseBucket(ctx context.Context, b object.Bucket) error
}

const (
	// batch is how many objects one proposal deletes.
	batch = 500
	// rounds is how often a bucket is emptied again because of what was put meanwhile.
	rounds = 5
)

// Close makes sure that an empty bucket stays empty. It is [object.ErrNotEmpty] for one that is not.
func Close(ctx context.Context, all Objects, b object.Bucket) error {
	err := all.CloseBucket(ctx, b)
	if errors.Is(err, object.ErrNoBucket) { // by a call that has ended early
		return nil
	}
	return err
}

// Empty deletes everything in a bucket and closes it. If it ends early, what it deleted is gone, and another call goes on.
func Empty(ctx context.Context, all Objects, b object.Bucket) error {
	for range rounds {
		if err := deleteVersions(ctx, all, b); err != nil {
			return err
		}
		if err := abortUploads(ctx, all, b); err != nil {
			return err
		}
		if err := Close(ctx, all, b); !errors.Is(err, object.ErrNotEmpty) {
			return err
		}
	}
	return fmt.Errorf("bucket %s: clients keep putting objects: %w", b.Name, object.ErrNotEmpty)
}

func deleteVersions(ctx context.Context, all Objects, b object.Bucket) error {
	request := names.ListRequest{Versions: true, Limit: batch}
	for {
		page, err := all.List(ctx, b, request)
		if err != nil {
			return err
		}
		removals := make([]object.Removal, 0, len(page.Items))
		for _, item := range page.Items {
			removals = append(removals, object.Removal{Key: item.Key, VersionID: versionID(item.Version)})
		}
		removed, err := all.DeleteAll(ctx, b, removals)
		if err != nil {
			return err
		}
		for _, one := range removed {
			if err := one.Err; err != nil && !errors.Is(err, object.ErrNoKey) && !errors.Is(err, object.ErrNoVersion) {
				return err
			}
		}
		if !page.More {
			return nil
		}
		request.After, request.AfterVersion = page.Last, page.LastVersion
	}
}

func versionID(v *objectv1.Version) string {
	if v.GetNull() {
		return "null"
	}
	return hex.EncodeToString(v.GetId())
}

func abortUploads(ctx context.Context, all Objects, b object.Bucket) error {
	for {
		page, more, err := all.Uploads(ctx, b, "", "", "", batch)
		if err != nil {
			return err
		}
		for _, u := range page {
			if err := all.AbortUpload(ctx, b, u.GetKey(), hex.EncodeToString(u.GetId())); err != nil && !errors.Is(err, object.ErrNoUpload) {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}
