package buckets

import (
	"cmp"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// wantedCopies is how many nodes should have each piece of a bucket that does not say it.
const wantedCopies = 3

// lostKey stands for the key of a bucket that has lost it: what is put there is refused, and never stored in plain.
const lostKey = "lost"

// Of is a stored bucket as the object store needs it, without its keys. Texts that cannot be read limit nothing: they were refused when the
// bucket was written, unless another release wrote it.
func Of(snap *state.Snapshot, b *v1.Bucket) object.Bucket {
	m, s := b.GetMetadata(), b.GetSpec()
	of := object.Bucket{
		UID: m.GetUid(), Name: m.GetName(), Namespace: m.GetNamespace(),
		NamespaceUID: NamespaceUID(m.GetNamespace()),
		Replicas:     int(s.GetReplicas()), Versioning: s.GetVersioning(),
	}
	if s.GetEncrypted() {
		of.Encryption = cmp.Or(snap.BucketKey(m.GetUid()).GetId(), lostKey)
	}
	of.Quota, _ = spec.ParseBytes(s.GetQuota())
	if most := snap.NamespaceByName(m.GetNamespace()).GetSpec().GetQuota().GetStorage(); most != "" {
		n, _ := spec.ParseBytes(most)
		of.NamespaceQuota = max(n, 1) // 0 is without limit for the store, and none at all for a namespace
	}
	of.UploadTTL, _ = spec.ParseDuration(s.GetUploadTtl())
	for _, rule := range s.GetExpiry() {
		if after, err := spec.ParseDuration(rule.GetAfter()); err == nil && after > 0 {
			of.Expiry = append(of.Expiry, object.ExpiryRule{Prefix: rule.GetPrefix(), After: after})
		}
	}
	return of
}

// NamespaceUID identifies a namespace for the object store: by its name, because it may exist without an object. The name can
// only be used again after its buckets are gone.
func NamespaceUID(name string) string { return name }

// IsDeleting reports whether the deletion of a bucket has begun: nothing is in it for anybody any more.
func IsDeleting(b *v1.Bucket) bool { return b.GetMetadata().GetDeleteTime() != nil }

// Present is a bucket as the API shows it, without what it holds.
func Present(b *v1.Bucket, nodes int) *v1.Bucket {
	status := &v1.BucketStatus{Phase: spec.BucketReady, Copies: min(cmp.Or(b.GetSpec().GetReplicas(), wantedCopies), int32(nodes))}
	if IsDeleting(b) {
		status.Phase = spec.BucketDeleting
	}
	return &v1.Bucket{ApiVersion: b.GetApiVersion(), Kind: b.GetKind(), Metadata: b.GetMetadata(), Spec: b.GetSpec(), Status: status}
}
