package server

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func TestUsedImageIsNotDeleted(t *testing.T) {
	c := newCluster(t)
	c.work("box", idle)
	op := c.as(core.RoleOperator)
	first := c.push("hello:1")
	c.create(op, workload("web", imageOf("hello:1")))
	image, err := op.GetImage(c.ctx, &v1.GetImageRequest{Name: "hello:1"})
	must(t, err)
	st := image.GetStatus()
	if st.GetPhase() != imageReady || len(st.GetUsedBy()) != 1 || st.GetUsedBy()[0] != "default/web" || st.GetPushTime().AsTime().IsZero() || st.GetSize() == 0 {
		t.Errorf("the image is shown as %v", st)
	}
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "hello:1"})
	wantCode(t, err, codes.FailedPrecondition, "image hello:1 is used by default/web", "--force")
	// Other clients are refused, too, with a message that they show.
	response, body := c.request(nil, http.MethodDelete, "/v2/hello/manifests/"+first, "", "Authorization", "Bearer "+op.token)
	if response.StatusCode < 400 || !strings.Contains(body, `"code":"DENIED"`) || !strings.Contains(body, "used by default/web") {
		t.Errorf("answered with %d: %s", response.StatusCode, body)
	}
	// They cannot delete the layers either.
	_, body = c.request(nil, http.MethodGet, "/v2/hello/manifests/"+first, "", "Authorization", "Bearer "+op.token)
	layers := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindAllString(body, -1)
	if len(layers) == 0 {
		t.Fatalf("the manifest is %s", body)
	}
	for _, layer := range layers {
		response, body := c.request(nil, http.MethodDelete, "/v2/hello/blobs/"+layer, "", "Authorization", "Bearer "+op.token)
		if response.StatusCode < 400 || !strings.Contains(body, `"code":"DENIED"`) {
			t.Errorf("answered with %d: %s", response.StatusCode, body)
		}
	}

	gone, err := op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "hello:1", Force: true})
	must(t, err)
	if gone.GetStatus().GetPhase() != imageDeleted || gone.GetStatus().GetExpireTime() == nil {
		t.Errorf("the deleted image is shown as %v", gone)
	}
	listed := func(deleted bool) (names []string) {
		t.Helper()
		answer, err := op.ListImages(c.ctx, &v1.ListImagesRequest{Deleted: deleted})
		must(t, err)
		for _, i := range answer.GetItems() {
			names = append(names, i.GetMetadata().GetName()+" "+i.GetStatus().GetPhase())
		}
		return names
	}
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "hello:1", Now: true})
	wantCode(t, err, codes.FailedPrecondition, "is used by default/web")
	if got := listed(false); len(got) != 0 {
		t.Errorf("the list still has %v", got)
	}
	if got := listed(true); len(got) != 1 || got[0] != "hello:1 deleted" {
		t.Errorf("with the deleted ones, the list has %v", got)
	}
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("other", imageOf("hello:1"))})
	wantCode(t, err, codes.FailedPrecondition, "was deleted", "cloudless image restore hello:1")
	_, err = op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "hello:1"})
	must(t, err)
	_, err = op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "hello:1"})
	wantCode(t, err, codes.FailedPrecondition, "is not deleted")
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "nothing:1"})
	wantCode(t, err, codes.NotFound)
}

// An image whose tag has moved stays while a workload still runs it.
func TestPruneDeletesUnusedImages(t *testing.T) {
	c := newCluster(t)
	c.work("box", idle)
	op := c.as(core.RoleOperator)
	used := c.push("hello:1")
	c.create(op, workload("web", imageOf("hello:1")))
	c.push("lone:1")
	dry, err := op.PruneImages(c.ctx, &v1.PruneImagesRequest{DryRun: true, Now: true})
	must(t, err)
	if len(dry.GetItems()) != 1 || dry.GetItems()[0].GetMetadata().GetName() != "lone:1" || dry.GetFreedBytes() == 0 {
		t.Errorf("would prune %v", dry)
	}
	done, err := op.PruneImages(c.ctx, &v1.PruneImagesRequest{Now: true})
	must(t, err)
	if done.GetFreedBytes() != dry.GetFreedBytes() || len(done.GetItems()) != 1 {
		t.Errorf("pruned %v, announced %v", done, dry)
	}
	if _, err := op.GetImage(c.ctx, &v1.GetImageRequest{Name: "hello@" + used}); err != nil {
		t.Errorf("what is used is gone: %v", err)
	}
	_, err = op.GetImage(c.ctx, &v1.GetImageRequest{Name: "lone:1"})
	wantCode(t, err, codes.NotFound)
}

// foreignRegistry is a registry outside the cluster that requires a password and counts requests.
type foreignRegistry struct {
	host  string
	asked atomic.Int64
	away  atomic.Bool
}

func newAbroad(t *testing.T) *foreignRegistry {
	t.Helper()
	a := &foreignRegistry{}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked.Add(1)
		if user, password, _ := r.BasicAuth(); user != "ann" || password != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="abroad"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	a.host = strings.TrimPrefix(server.URL, "http://")
	return a
}

func (a *foreignRegistry) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.away.Load() {
		return nil, errors.New("no route to host")
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (a *foreignRegistry) push(t *testing.T, ref string) string {
	t.Helper()
	img, err := random.Image(64, 1)
	must(t, err)
	tag, err := name.NewTag(a.host + "/" + ref)
	must(t, err)
	must(t, remote.Write(tag, img, remote.WithAuth(&authn.Basic{Username: "ann", Password: "s3cret"})))
	digest, err := img.Digest()
	must(t, err)
	return digest.String()
}

func TestForeignImageIsPinnedWithTheLogin(t *testing.T) {
	a := newAbroad(t)
	c := newCluster(t, func(o *Options) { o.Foreign = a })
	op, admin := c.as(core.RoleOperator), c.as(core.RoleAdmin)
	digest := a.push(t, "app:1")
	create := func(name, tag string) (*v1.Revision, error) {
		w, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(name, imageOf(a.host+"/app:"+tag))})
		return c.Store.Snapshot().Revision(w.GetStatus().GetRevisionUid()), err
	}
	_, err := create("web", "1")
	wantCode(t, err, codes.FailedPrecondition, "may not be pulled or does not exist", "cloudless image login "+a.host+" --username USER")
	_, err = admin.SetLogin(c.ctx, &v1.SetLoginRequest{Host: a.host, Username: "ann", Password: "wrong-pass"})
	must(t, err)
	_, err = create("web", "1")
	wantCode(t, err, codes.FailedPrecondition, "refuses it to ann", "log in again")
	_, err = admin.SetLogin(c.ctx, &v1.SetLoginRequest{Host: a.host, Username: "ann", Password: "s3cret"})
	must(t, err)
	revision, err := create("web", "1")
	must(t, err)
	if want := a.host + "/app@" + digest; revision.GetSpec().GetImage() != want {
		t.Errorf("pinned to %s, want %s", revision.GetSpec().GetImage(), want)
	}
	_, err = create("other", "2")
	wantCode(t, err, codes.FailedPrecondition, "does not exist in the registry")

	// An unreachable registry is no reason to refuse, nor to run another image.
	a.away.Store(true)
	a.push(t, "app:1")
	revision, err = create("later", "3")
	must(t, err)
	if got := revision.GetSpec().GetImage(); got != a.host+"/app:3" {
		t.Errorf("without the registry it is %s", got)
	}
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "later"})
	must(t, err)
	if !strings.Contains(events.String(), "not pinned to a digest") {
		t.Errorf("the events do not say that it is not pinned: %v", events)
	}
	answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", imageOf(a.host+"/app:1"), replicasOf(2))})
	must(t, err)
	if answer.GetWorkload().GetStatus().GetRevision() != 1 {
		t.Errorf("the change of scale made revision %d", answer.GetWorkload().GetStatus().GetRevision())
	}
}

// A login reaches only the nodes that pull from its registry.
func TestLoginIsSealedAndGoesToTheNode(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	m := c.join("box")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	_, err := c.as(core.RoleOperator).SetLogin(c.ctx, &v1.SetLoginRequest{Host: "example.com", Username: "ann", Password: "s3cret"})
	wantCode(t, err, codes.PermissionDenied)
	for _, bad := range []string{"https://example.com", "example.com/x", "EXAMPLE", "registry.cloudless.internal"} {
		_, err := admin.SetLogin(c.ctx, &v1.SetLoginRequest{Host: bad, Username: "ann", Password: "s3cret"})
		wantCode(t, err, codes.InvalidArgument)
	}
	hub, err := admin.SetLogin(c.ctx, &v1.SetLoginRequest{Host: "https://index.docker.io/v1/", Username: "ann", Password: "s3cret"})
	must(t, err)
	if hub.GetSpec().GetHost() != "docker.io" {
		t.Errorf("the login is for %s", hub.GetSpec().GetHost())
	}
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	next := func() *v1.Assignment {
		t.Helper()
		for {
			for _, a := range assignments(t, stream).GetAssign() {
				if a.GetReplica().GetSpec().GetWorkloadUid() == made.GetMetadata().GetUid() {
					return a
				}
			}
		}
	}
	if a := next(); a.GetLogin() != nil {
		t.Error("a login of another registry was sent")
	}
	for range 2 { // a new one, and one that replaces it
		_, err = admin.SetLogin(c.ctx, &v1.SetLoginRequest{Host: "example.com", Username: "ann", Password: "s3cret"})
		must(t, err)
		if l := next().GetLogin(); l.GetHost() != "example.com" || l.GetUsername() != "ann" || l.GetPassword() != "s3cret" {
			t.Errorf("the node got the login of %s at %s", l.GetUsername(), l.GetHost())
		}
	}
	logins, err := admin.ListLogins(c.ctx, &v1.ListLoginsRequest{})
	must(t, err)
	stored := c.Store.Snapshot().Password(c.Store.Snapshot().LoginByName("example.com").GetMetadata().GetUid())
	if len(logins.GetItems()) != 2 || strings.Contains(logins.String(), "s3cret") || strings.Contains(string(stored.GetSealed()), "s3cret") {
		t.Error("the password can be read, or a login is missing")
	}
	_, err = admin.DeleteLogin(c.ctx, &v1.DeleteLoginRequest{Name: "example.com"})
	must(t, err)
	if next().GetLogin() != nil {
		t.Error("the node still gets a login")
	}
	_, err = admin.DeleteLogin(c.ctx, &v1.DeleteLoginRequest{Name: "example.com"})
	wantCode(t, err, codes.NotFound, "no login to example.com")
	if strings.Contains(c.log.String(), "s3cret") {
		t.Error("the password was logged")
	}
}

// The progress of a pull is shown and watched, and never stored.
func TestPullProgressIsShownAndNotStored(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	m := c.join("box")
	ctx, leave := context.WithCancel(c.ctx)
	stream := m.connect(ctx)
	assignments(t, stream)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	uid := assignments(t, stream).GetAssign()[0].GetReplica().GetMetadata().GetUid()
	must(t, report(stream, uid, &v1.ReplicaStatus{Phase: spec.PhasePreparing}))
	c.until(func(snap *state.Snapshot) bool {
		return snap.Replica(uid).GetStatus().GetPhase() == spec.PhasePreparing
	})
	watch, err := op.WatchReplicas(c.ctx, &v1.WatchReplicasRequest{})
	must(t, err)
	see := func(wanted func(*v1.ReplicaChange) bool) *v1.ReplicaChange {
		t.Helper()
		for {
			change, err := watch.Recv()
			must(t, err)
			if wanted(change) {
				return change
			}
		}
	}
	see(func(r *v1.ReplicaChange) bool { return r.GetChange() == changeSynced })
	before := c.Store.Snapshot().Replica(uid).GetMetadata().GetVersion()
	for _, done := range []int64{100, 200} {
		must(t, report(stream, uid, &v1.ReplicaStatus{Phase: spec.PhasePreparing, Progress: &v1.Progress{What: "pulling app", DoneBytes: done, TotalBytes: 300}}))
		see(func(r *v1.ReplicaChange) bool { return r.GetReplica().GetStatus().GetProgress().GetDoneBytes() == done })
	}
	list, err := op.ListReplicas(c.ctx, &v1.ListReplicasRequest{Workload: "web"})
	must(t, err)
	if p := list.GetItems()[0].GetStatus().GetProgress(); p.GetTotalBytes() != 300 {
		t.Errorf("the list shows %v", p)
	}
	if after := c.Store.Snapshot().Replica(uid).GetMetadata().GetVersion(); after != before || c.Store.Snapshot().Replica(uid).GetStatus().GetProgress() != nil {
		t.Errorf("progress was written: from %d to %d", before, after)
	}
	leave() // what a disconnected node said is not shown
	see(func(r *v1.ReplicaChange) bool {
		return r.GetReplica() != nil && r.GetReplica().GetStatus().GetProgress() == nil
	})
}
