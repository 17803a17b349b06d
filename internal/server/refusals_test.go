package server

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	objects "github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// refusals are the events of quotas that have refused something.
func (c *cluster) quotaEvents(bucket string) (all []*v1.Event) {
	c.t.Helper()
	events, err := c.as(core.RoleViewer).ListEvents(c.ctx, &v1.ListEventsRequest{ObjectKind: "bucket", Object: bucket})
	must(c.t, err)
	for _, e := range events.GetItems() {
		if e.GetSpec().GetReason() == "OverQuota" {
			all = append(all, e)
		}
	}
	return all
}

// A client that is refused tries again and again. That is one event in a while for each bucket, whichever server refuses.
func TestRefusalsOfAQuotaAreEventsOnceInAWhile(t *testing.T) {
	clock := &shiftedClock{}
	c := newCluster(t, func(o *Options) { o.Clock = clock.now })
	op := c.as(core.RoleOperator)
	uids := map[string]string{}
	for _, name := range []string{"photos", "films"} {
		made, err := op.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed(name, &v1.BucketSpec{Quota: "1Ki"})})
		must(t, err)
		uids[name] = made.GetMetadata().GetUid()
	}
	why := &objects.QuotaError{Scope: "bucket photos", Used: 1000, Wanted: 100, Max: 1024}
	feed := c.Store.Follow()
	for range 50 {
		c.refusals.Refused(objects.Bucket{UID: uids["photos"], Name: "photos"}, why)
	}
	for len(c.quotaEvents("photos")) == 0 {
		_, err := feed.Next(c.ctx)
		must(t, err)
	}
	e := c.quotaEvents("photos")[0].GetSpec()
	if e.GetSeverity() != state.SeverityWarning || !strings.Contains(e.GetMessage(), "a put was refused: bucket photos would have 1100 bytes and may have 1024") {
		t.Errorf("the event is %v", e)
	}

	// Other servers report their refusals.
	report := func(bucket string) {
		t.Helper()
		_, err := c.refusals.ReportOverQuota(c.ctx, &v1.ReportOverQuotaRequest{BucketUid: uids[bucket], Message: why.Error()})
		must(t, err)
	}
	report("photos")
	report("films")
	report("films")
	clock.move(9 * time.Minute)
	report("photos")
	if photos, films := len(c.quotaEvents("photos")), len(c.quotaEvents("films")); photos != 1 || films != 1 {
		t.Errorf("there are %d and %d events, want one of each bucket", photos, films)
	}
	clock.move(2 * time.Minute)
	report("photos")
	if photos := len(c.quotaEvents("photos")); photos != 2 {
		t.Errorf("later there are %d events, want 2", photos)
	}
	_, err := c.refusals.ReportOverQuota(c.ctx, &v1.ReportOverQuotaRequest{BucketUid: "of a deleted bucket", Message: why.Error()})
	must(t, err)
}

// A namespace shows what its buckets hold, beside its quota.
func TestANamespaceShowsWhatItsBucketsHold(t *testing.T) {
	c, store := withObjects(t)
	admin := c.as(core.RoleAdmin)
	_, err := admin.buckets().CreateBucket(c.ctx, &v1.CreateBucketRequest{Bucket: bucketNamed("photos", nil)})
	must(t, err)
	must(t, c.put(store, "photos", "cat", strings.Repeat("meow", 512)))
	namespaces := v1.NewNamespaceServiceClient(admin.conn)
	got, err := namespaces.GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "default"})
	must(t, err)
	if st := got.GetStatus(); st.GetStorage() != "2Ki" || len(st.GetOver()) > 0 {
		t.Errorf("it is %v", st)
	}
	_, err = namespaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: &v1.Namespace{
		Metadata: &v1.Metadata{Name: "default"}, Spec: &v1.NamespaceSpec{Quota: &v1.Quota{Storage: "1Ki"}},
	}})
	must(t, err)
	listed, err := namespaces.ListNamespaces(c.ctx, &v1.ListNamespacesRequest{})
	must(t, err)
	if len(listed.GetItems()) != 1 {
		t.Fatalf("the namespaces are %v", listed)
	}
	if over := listed.GetItems()[0].GetStatus().GetOver(); len(over) != 1 || over[0] != "2Ki storage of 1Ki" {
		t.Errorf("with a lower quota it exceeds %q", over)
	}
}
