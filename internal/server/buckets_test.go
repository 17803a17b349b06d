package server

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	objects "github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

func (u *user) buckets() v1.BucketServiceClient { return v1.NewBucketServiceClient(u.conn) }

// withObjects is a cluster whose objects are in memory.
func withObjects(t *testing.T) (*cluster, *objects.Store) {
	t.Helper()
	store, err := objects.New(objects.Options{
		Names: objecttest.NewNames(t), Disks: objecttest.NewDisks("n1", "n2", "n3"), Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(store.Close)
	return newCluster(t, func(o *Options) { o.Contents = store }), store
}

func bucketNamed(name string, s *v1.BucketSpec) *v1.Bucket {
	return &v1.Bucket{Metadata: &v1.Metadata{Name: name}, Spec: s}
}

func (c *cluster) put(store *objects.Store, bucket, key, content string) error {
	c.t.Helper()
	b, err := c.Directory().Bucket(c.ctx, "default", bucket)
	if err != nil {
		return err
	}
	_, err = store.Put(c.ctx, b, objects.PutRequest{Key: key, Body: strings.NewReader(content), Size: int64(len(content))})
	return err
}

func TestBucketIsMadeChangedAndDeleted(t *testing.T) {
	c, store := withObjects(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	request := &v1.CreateBucketRequest{Bucket: bucketNamed("photos", &v1.BucketSpec{Replicas: 3, Quota: "1024Mi"}), IdempotencyKey: "once"}
	made, err := op.buckets().CreateBucket(c.ctx, request)
	must(t, err)
	if made.GetMetadata().GetNamespace() != "default" || made.GetSpec().GetQuota() != "1Gi" || made.GetStatus().GetPhase() != spec.BucketReady {
		t.Errorf("it is %v", made)
	}
	again, err := op.buckets().CreateBucket(c.ctx, request)
	if err != nil || again.GetMetadata().GetUid() != made.GetMetadata().GetUid() {
		t.Errorf("a repeated call made %v, %v", again, err)
	}
	_, err = op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("photos", nil)})
	wantCode(t, err, codes.AlreadyExists, "bucket photos exists already in namespace default")
	_, err = op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("ab", nil)})
	wantCode(t, err, codes.InvalidArgument, "3 to 63 characters")
	_, err = viewer.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("mine", nil)})
	wantCode(t, err, codes.PermissionDenied, "create on bucket")

	applied, err := op.buckets().ApplyBucket(c.ctx, &v1.ApplyBucketRequest{Bucket: bucketNamed("photos", &v1.BucketSpec{Versioning: "enabled"})})
	if err != nil || applied.GetResult() != "updated" || applied.GetBucket().GetSpec().GetReplicas() != 0 {
		t.Errorf("applied: %v, %v", applied, err)
	}
	_, err = op.buckets().UpdateBucket(c.ctx, &v1.UpdateBucketRequest{Bucket: made})
	wantCode(t, err, codes.Aborted, "")

	must(t, c.put(store, "photos", "cat.jpg", "meow"))
	must(t, c.put(store, "photos", "cat.jpg", "meow meow"))
	got, err := viewer.buckets().GetBucket(c.ctx, &v1.GetBucketRequest{Name: "photos"})
	if st := got.GetStatus(); err != nil || st.GetObjects() != 1 || st.GetVersions() != 2 || st.GetBytes() != 13 || st.GetProblem() != "" {
		t.Errorf("with an object in two versions it is %v, %v", got, err)
	}
	_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "photos"})
	wantCode(t, err, codes.FailedPrecondition, "bucket photos is not empty: it has 2 versions of objects; delete them first, or with it by: cloudless bucket rm photos --force")
	_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "photo"})
	wantCode(t, err, codes.NotFound, "did you mean photos?")
	must(t, c.put(store, "photos", "after", "a refusal changes nothing"))

	_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "photos", Force: true})
	must(t, err)
	if err := c.put(store, "photos", "late", "x"); err == nil || !strings.Contains(err.Error(), "bucket photos does not exist in namespace default") {
		t.Errorf("a put into a deleted bucket: %v", err)
	}
	_, err = op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("photos", nil)})
	must(t, err)
	listed, err := viewer.buckets().ListBuckets(c.ctx, &v1.ListBucketsRequest{})
	if err != nil || len(listed.GetItems()) != 1 || listed.GetItems()[0].GetStatus().GetVersions() != 0 {
		t.Errorf("a new bucket of the same name: %v, %v", listed, err)
	}
	events, err := viewer.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	for _, want := range []string{"Created", "Updated", "Deleting", "Deleted"} {
		if !slices.ContainsFunc(events.GetItems(), func(e *v1.Event) bool {
			return e.GetSpec().GetReason() == want && e.GetSpec().GetObjectName() == "photos"
		}) {
			t.Errorf("there is no event %s", want)
		}
	}
}

// A server may end between the steps of a deletion.
func TestDeletionThatEndedEarlyIsFinishedByAnotherCall(t *testing.T) {
	c, store := withObjects(t)
	op := c.as(core.RoleOperator)
	for _, name := range []string{"closed", "begun"} {
		_, err := op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed(name, nil)})
		must(t, err)
	}
	must(t, c.put(store, "begun", "a", "content"))
	closed, err := c.Directory().Bucket(c.ctx, "default", "closed")
	must(t, err)
	must(t, store.CloseBucket(c.ctx, closed))
	got, err := op.buckets().GetBucket(c.ctx, &v1.GetBucketRequest{Name: "closed"})
	if err != nil || got.GetStatus().GetPhase() != spec.BucketDeleting {
		t.Errorf("a closed bucket is %v, %v", got, err)
	}
	service := &bucketService{collection: newBuckets(c.Server), keys: newAccessKeys(c.Server)}
	must(t, service.beginDeletion(c.ctx, &v1.DeleteBucketRequest{Name: "begun"}))
	_, err = op.buckets().ApplyBucket(c.ctx, &v1.ApplyBucketRequest{Bucket: bucketNamed("begun", &v1.BucketSpec{Quota: "1Gi"})})
	wantCode(t, err, codes.FailedPrecondition, "bucket begun is being deleted; finish that with: cloudless bucket rm begun --force")
	if err := c.put(store, "begun", "b", "x"); err == nil {
		t.Error("something was put into a bucket that is being deleted")
	}
	for _, name := range []string{"closed", "begun"} {
		_, err := op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: name, Force: true})
		must(t, err)
	}
	if n := len(slices.Collect(c.Store.Snapshot().Buckets("", ""))); n != 0 {
		t.Errorf("%d buckets are left", n)
	}
}

func TestQuotasReachTheStore(t *testing.T) {
	c, store := withObjects(t)
	admin := c.as(core.RoleAdmin)
	_, err := admin.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("small", &v1.BucketSpec{Quota: "10"})})
	must(t, err)
	must(t, c.put(store, "small", "a", "12345678"))
	var full *objects.QuotaError
	if err := c.put(store, "small", "b", "12345678"); !errors.As(err, &full) {
		t.Errorf("above the quota of the bucket: %v", err)
	}
	_, err = admin.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("other", nil)})
	must(t, err)
	_, err = admin.namespaces().ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: &v1.Namespace{
		Metadata: &v1.Metadata{Name: "default"}, Spec: &v1.NamespaceSpec{Quota: &v1.Quota{Storage: "12"}},
	}})
	must(t, err)
	if err := c.put(store, "other", "b", "12345678"); !errors.As(err, &full) {
		t.Errorf("above the quota of the namespace: %v", err)
	}
	must(t, c.put(store, "other", "b", "1234"))
}

func TestNamespaceWithBucketsIsNotDeleted(t *testing.T) {
	c, _ := withObjects(t)
	admin := c.as(core.RoleAdmin)
	b := bucketNamed("photos", nil)
	b.Metadata.Namespace = "shop"
	_, err := admin.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: b})
	must(t, err)
	_, err = admin.buckets().CreateAccessKey(c.ctx, &v1.CreateAccessKeyRequest{Namespace: "shop", Spec: &v1.AccessKeySpec{Role: "viewer"}})
	must(t, err)
	_, err = admin.namespaces().DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop"})
	wantCode(t, err, codes.FailedPrecondition, "namespace shop has 1 accesskey and 1 bucket; delete them first (cloudless get accesskeys -n shop, cloudless get buckets -n shop)")
}

func TestAccessKeyOpensWhatItsRolePermits(t *testing.T) {
	c, _ := withObjects(t)
	op, d := c.as(core.RoleOperator), c.Directory()
	for _, name := range []string{"photos", "films"} {
		_, err := op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed(name, nil)})
		must(t, err)
	}
	reader, err := op.buckets().CreateAccessKey(c.ctx, &v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewer", Buckets: []string{"photos"}}})
	must(t, err)
	writer, err := op.buckets().CreateAccessKey(c.ctx, &v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "operator"}})
	must(t, err)
	if len(reader.GetSecret()) != 40 || reader.GetRegion() != "us-east-1" || len(reader.GetEndpoints()) == 0 || reader.GetAccessKey().GetStatus().GetAuthor() == "" {
		t.Errorf("the answer is %v", reader)
	}
	key, secret, err := d.AccessKey(c.ctx, reader.GetAccessKey().GetMetadata().GetName())
	if err != nil || secret != reader.GetSecret() || key.GetMetadata().GetNamespace() != "default" {
		t.Fatalf("the key is %v, %v", key, err)
	}
	for _, want := range []struct {
		key                *v1.AccessKey
		verb, kind, bucket string
		allowed            bool
	}{
		{key, "get", "object", "photos", true},
		{key, "get", "bucket", "", true},
		{key, "get", "object", "films", false},
		{key, "update", "object", "photos", false},
		{key, "delete", "bucket", "photos", false},
		{writer.GetAccessKey(), "update", "object", "films", true},
		{writer.GetAccessKey(), "create", "bucket", "new", true},
	} {
		if got := d.Allowed(c.ctx, want.key, want.verb, want.kind, want.bucket); got != want.allowed {
			t.Errorf("role %s may %s %s in bucket %q: %t", want.key.GetSpec().GetRole(), want.verb, want.kind, want.bucket, got)
		}
	}

	// A key changes buckets by its role, through the same checks as every other caller.
	wantCode(t, d.CreateBucket(c.ctx, reader.GetAccessKey(), bucketNamed("new", nil)), codes.PermissionDenied, "")
	must(t, d.CreateBucket(c.ctx, writer.GetAccessKey(), bucketNamed("new", nil)))
	wantCode(t, d.CreateBucket(c.ctx, writer.GetAccessKey(), bucketNamed("new", nil)), codes.AlreadyExists, "")
	must(t, d.UpdateBucket(c.ctx, writer.GetAccessKey(), "new", func(s *v1.BucketSpec) { s.Versioning = "enabled" }))
	if b, _, err := d.FindBucket(c.ctx, "default", "new"); err != nil || b.Versioning != "enabled" {
		t.Errorf("after a change it is %v, %v", b, err)
	}
	must(t, d.DeleteBucket(c.ctx, writer.GetAccessKey(), "new"))
	if err := d.DeleteBucket(c.ctx, writer.GetAccessKey(), "new"); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("a second deletion: %v", err)
	}
	if all, err := d.ListBuckets(c.ctx, "default"); err != nil || len(all) != 2 {
		t.Errorf("the buckets are %v, %v", all, err)
	}

	// The last use reaches the state with those of tokens.
	must(t, c.tokenUses.Report(c.ctx))
	got, err := op.buckets().GetAccessKey(c.ctx, &v1.GetAccessKeyRequest{Name: key.GetMetadata().GetName()})
	if err != nil || got.GetStatus().GetLastUsed() == nil {
		t.Errorf("after its use the key is %v, %v", got, err)
	}

	// Its secret is in no answer, no log and not readable in the state.
	listed, err := op.buckets().ListAccessKeys(c.ctx, &v1.ListAccessKeysRequest{})
	must(t, err)
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	var stored bytes.Buffer
	must(t, c.Store.Snapshot().Save(&stored))
	if all := prototext.Format(listed) + prototext.Format(events) + c.log.String() + stored.String(); strings.Contains(all, secret) {
		t.Error("the secret can be read")
	}

	// Keys for a bucket alone end with it.
	_, err = op.buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "photos"})
	must(t, err)
	if key, _, err := d.AccessKey(c.ctx, key.GetMetadata().GetName()); key != nil || err != nil {
		t.Errorf("the key of a deleted bucket is %v, %v", key, err)
	}
	_, err = op.buckets().DeleteAccessKey(c.ctx, &v1.DeleteAccessKeyRequest{Name: writer.GetAccessKey().GetMetadata().GetName()})
	must(t, err)
	if d.Allowed(c.ctx, writer.GetAccessKey(), "get", "object", "films") {
		t.Error("a deleted key is allowed")
	}
	if n := len(slices.Collect(c.Store.Snapshot().AccessKeySecrets())); n != 0 {
		t.Errorf("%d secrets are left", n)
	}
}

func TestAccessKeyGivesNoMoreThanItsAuthorHas(t *testing.T) {
	c, _ := withObjects(t)
	op := c.as(core.RoleOperator)
	make := func(request *v1.CreateAccessKeyRequest) error {
		_, err := op.buckets().CreateAccessKey(c.ctx, request)
		return err
	}
	wantCode(t, make(&v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "admin"}}), codes.PermissionDenied, "nobody can give away more than they have")
	wantCode(t, make(&v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewr"}}), codes.InvalidArgument, "did you mean viewer?")
	wantCode(t, make(&v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewer", Buckets: []string{"none"}}}), codes.InvalidArgument, "names bucket none, which namespace default does not have")
	wantCode(t, make(&v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewer"}, Ttl: "0s"}), codes.InvalidArgument, "must be more than 0")
	viewer := c.as(core.RoleViewer)
	_, err := viewer.buckets().CreateAccessKey(c.ctx, &v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewer"}})
	wantCode(t, err, codes.PermissionDenied, "create on accesskey")
	short, err := op.buckets().CreateAccessKey(c.ctx, &v1.CreateAccessKeyRequest{Spec: &v1.AccessKeySpec{Role: "viewer"}, Ttl: "1ms"})
	must(t, err)
	for end := short.GetAccessKey().GetSpec().GetExpireTime().AsTime(); time.Now().Before(end); {
	}
	if key, _, err := c.Directory().AccessKey(c.ctx, short.GetAccessKey().GetMetadata().GetName()); key != nil || err != nil {
		t.Errorf("an expired key is %v, %v", key, err)
	}
	for _, id := range []string{"", "AKIAIOSFODNN7EXAMPLE", "clabcdefghijklmnopqr"} {
		if key, _, err := c.Directory().AccessKey(c.ctx, id); key != nil || err != nil {
			t.Errorf("key %q is %v, %v", id, key, err)
		}
	}
}
