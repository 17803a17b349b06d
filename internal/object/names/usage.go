package names

import (
	"math"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// bucket is a bucket that operations of a change use. All of its counters change here.
type bucket struct {
	uid   string
	usage *objectv1.BucketUsage
	// namespace are the bytes of all buckets of the bucket's namespace.
	namespace *int64
	totals    *Totals
	changed   bool
}

// open returns the bucket of an operation, unless it was closed. A bucket is there from its first operation on.
func (c *change) open(target *objectv1.Target) (*bucket, error) {
	b, err := c.bucket(target)
	if err == nil && b.usage.GetClosed() {
		return nil, refuse(RefusedNoBucket, "%s", b.uid)
	}
	return b, err
}

func (c *change) bucket(target *objectv1.Target) (*bucket, error) {
	uid := target.GetBucket()
	if b := c.buckets[uid]; b != nil {
		return b, nil
	}
	usage, err := readMessage[objectv1.BucketUsage](c, key(tableBucket, uid))
	if err != nil {
		return nil, err
	}
	b := &bucket{uid: uid, usage: usage, totals: &c.meta.totals}
	if usage == nil { // its namespace stays, whatever later operations say
		b.usage, b.changed = &objectv1.BucketUsage{Namespace: target.GetNamespace()}, true
	}
	if b.namespace, err = c.namespace(b.usage.GetNamespace()); err != nil {
		return nil, err
	}
	c.buckets[uid] = b
	return b, nil
}

func (c *change) namespace(uid string) (*int64, error) {
	if size := c.namespaces[uid]; size != nil {
		return size, nil
	}
	size, err := readNamespace(c, uid)
	if err != nil {
		return nil, err
	}
	c.namespaces[uid] = &size
	return &size, nil
}

// admit refuses what would make a bucket or its namespace exceed their quotas.
func (b *bucket) admit(target *objectv1.Target, more int64) error {
	if more <= 0 {
		return nil
	}
	if err := admit("bucket", b.usage.GetBytes()+b.usage.GetUploadBytes(), more, target.GetQuota()); err != nil {
		return err
	}
	return admit("namespace", *b.namespace, more, target.GetNamespaceQuota())
}

func admit(scope string, used, more, limit int64) error {
	if limit == 0 || used <= math.MaxInt64-more && used+more <= limit {
		return nil
	}
	return &refusal{reason: RefusedQuota, about: scope, used: used, limit: limit}
}

// count adds versions and their bytes, or takes them away.
func (b *bucket) count(versions, bytes int64) {
	b.changed = true
	b.usage.Versions += versions
	b.totals.Versions += versions
	b.usage.Bytes += bytes
	b.countBytes(bytes)
}

// countObjects counts current versions that are no delete markers.
func (b *bucket) countObjects(from, to *stored) {
	change := objects(to) - objects(from)
	b.changed = true
	b.usage.Objects += change
	b.totals.Objects += change
}

func objects(current *stored) int64 {
	if current == nil || current.GetDeleteMarker() {
		return 0
	}
	return 1
}

func (b *bucket) countUploads(uploads, bytes int64) {
	b.changed = true
	b.usage.Uploads += uploads
	b.usage.UploadBytes += bytes
	b.countBytes(bytes)
}

func (b *bucket) countBytes(bytes int64) {
	*b.namespace += bytes
	b.totals.Bytes += bytes
}

// closeBucket refuses everything that is put into the bucket from now on.
func (c *change) closeBucket(op *objectv1.CloseBucket) (*objectv1.Result, error) {
	b, err := c.bucket(op.GetTarget())
	if err != nil {
		return nil, err
	}
	if b.usage.GetVersions() > 0 || b.usage.GetUploads() > 0 {
		return nil, refuse(RefusedNotEmpty, "%s", b.uid)
	}
	b.usage.Closed, b.changed = true, true
	return &objectv1.Result{}, nil
}
