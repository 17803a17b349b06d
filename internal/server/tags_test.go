package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	mirroring "github.com/cloudless/cloudless/internal/control/images"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Tags that an older release kept only in its registry are imported once, with the deleted ones; one that was deleted
// since does not come back.
func TestTagsOfOlderReleasesAreImported(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	_, err := c.Propose(c.ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Delete(state.KindTag, state.TagUID("", "")) // as founded by an older release
		return nil
	})
	must(t, err)
	old := httptest.NewServer(c.registry.Handler())
	defer old.Close()
	digests := map[string]string{}
	write := func(ref string) {
		t.Helper()
		img, err := random.Image(64, 1)
		must(t, err)
		tag, err := name.NewTag(strings.TrimPrefix(old.URL, "http://") + "/" + ref)
		must(t, err)
		must(t, remote.Write(tag, img))
		digest, err := img.Digest()
		must(t, err)
		digests[ref] = digest.String()
	}
	write("old:1")
	write("old:2")
	write("buried:1")
	_, err = c.registry.Delete(c.ctx, "buried", "1", false)
	must(t, err)

	got, err := op.GetImage(c.ctx, &v1.GetImageRequest{Name: "old:1"})
	must(t, err)
	if st := got.GetStatus(); st.GetDigest() != digests["old:1"] || st.GetPhase() != imageReady || time.Since(st.GetPushTime().AsTime()) > time.Hour {
		t.Errorf("the tag was taken over as %v", st)
	}
	back, err := op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "buried:1"})
	must(t, err)
	if back.GetStatus().GetDigest() != digests["buried:1"] {
		t.Errorf("restored: %v", back.GetStatus())
	}
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "old:2", Now: true})
	must(t, err)
	write("old:2") // past the state, as on a server that was away
	_, err = op.GetImage(c.ctx, &v1.GetImageRequest{Name: "old:2"})
	wantCode(t, err, codes.NotFound)
	listed, body := c.request(nil, http.MethodGet, "/v2/old/tags/list", "", "Authorization", "Bearer "+op.token)
	if listed.StatusCode != http.StatusOK || !strings.Contains(body, `"tags":["1"]`) {
		t.Errorf("the tags are %s", body)
	}
}

// Clients of the registry read, move and delete tags as the state has them.
func TestRegistryClientsSeeTheTagsOfTheState(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	ask := func(method, path string) (*http.Response, string) {
		t.Helper()
		return c.request(nil, method, path, "", "Authorization", "Bearer "+op.token)
	}
	first := c.push("web:latest")
	second := c.push("web:latest")
	answer, _ := ask(http.MethodHead, "/v2/web/manifests/latest")
	if got := answer.Header.Get("Docker-Content-Digest"); got != second {
		t.Errorf("the tag stands for %s, pushed last was %s", got, second)
	}
	if answer, body := ask(http.MethodGet, "/v2/web/manifests/"+first); answer.StatusCode != http.StatusOK {
		t.Errorf("the image pushed before is answered with %d: %s", answer.StatusCode, body)
	}
	// A tag that only the registry's folder knows is ignored.
	must(t, c.registry.SetTag(c.ctx, "web", "latest", first))
	answer, _ = ask(http.MethodGet, "/v2/web/manifests/latest")
	if got := answer.Header.Get("Docker-Content-Digest"); got != second {
		t.Errorf("the registry has overruled the state: %s", got)
	}
	if answer, body := ask(http.MethodDelete, "/v2/web/manifests/latest"); answer.StatusCode != http.StatusAccepted {
		t.Errorf("the deletion is answered with %d: %s", answer.StatusCode, body)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if answer, body := ask(method, "/v2/web/manifests/latest"); answer.StatusCode != http.StatusNotFound || !strings.Contains(body, "MANIFEST_UNKNOWN") {
			t.Errorf("after that, %s is answered with %d: %s", method, answer.StatusCode, body)
		}
	}
	back, err := op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "web"})
	must(t, err)
	if back.GetStatus().GetDigest() != second {
		t.Errorf("restored: %v", back.GetStatus())
	}
	if answer, body := ask(http.MethodDelete, "/v2/web/manifests/"+second); answer.StatusCode != http.StatusAccepted {
		t.Errorf("the deletion by digest is answered with %d: %s", answer.StatusCode, body)
	}
	_, err = op.GetImage(c.ctx, &v1.GetImageRequest{Name: "web"})
	wantCode(t, err, codes.NotFound)
}

// Restoring an image leaves its tag to a newer image.
func TestRestoreDoesNotTakeATagFromANewerImage(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	first := c.push("web:1")
	_, err := op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1"})
	must(t, err)
	newer := c.push("web:1")
	_, err = op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "web:1"})
	wantCode(t, err, codes.FailedPrecondition, "pushed again", "cloudless image rm web:1")
	got, err := op.GetImage(c.ctx, &v1.GetImageRequest{Name: "web:1"})
	must(t, err)
	if got.GetStatus().GetDigest() != newer {
		t.Errorf("the tag stands for %s", got.GetStatus().GetDigest())
	}
	// Both can be restored, each by its digest.
	_, err = op.DeleteImage(c.ctx, &v1.DeleteImageRequest{Name: "web:1"})
	must(t, err)
	back, err := op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "web@" + first})
	must(t, err)
	if st := back.GetStatus(); st.GetDigest() != first || st.GetTag() != "1" {
		t.Errorf("restored: %v", st)
	}
	_, err = op.RestoreImage(c.ctx, &v1.RestoreImageRequest{Name: "nothing:1"})
	wantCode(t, err, codes.NotFound)
}

// only is the registry of one server, without the others.
type only struct{ http.Handler }

func (o only) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	o.ServeHTTP(answer, r)
	return answer.Result(), nil
}

// A follower may have layers that the leader lacks: the follower led when the push began, or the leader has collected
// them. The leader stores the image, so its answer counts.
func TestPushSeesTheLayersOfTheLeader(t *testing.T) {
	leader, follower := pair(t)
	img, err := random.Image(64, 1)
	must(t, err)
	to, err := image.ParseName("hello:1")
	must(t, err)
	_, err = image.Push(leader.ctx, img, to, image.PushOptions{Transport: only{follower.registry.Handler()}})
	must(t, err)
	operator := pusher{follower.web(nil), leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})}
	if _, err := image.Push(leader.ctx, img, to, image.PushOptions{Transport: operator}); err != nil {
		t.Errorf("by the follower that has its layers: %v", err)
	}
}

// A follower answers for what it has itself, just as the leader would.
func TestFollowerServesItsImagesLikeTheLeader(t *testing.T) {
	leader, follower := pair(t)
	digest := leader.push("web:1")
	must(t, follower.images.CopyFrom(follower.ctx, leader.UID, &v1.ImageCopy{Repository: "web", Digest: digest}))
	token := "Bearer " + leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		want, body := leader.request(nil, method, "/v2/web/manifests/"+digest, "", "Authorization", token)
		got, text := follower.request(nil, method, "/v2/web/manifests/"+digest, "", "Authorization", token)
		if got.StatusCode != http.StatusOK || text != body {
			t.Errorf("%s is answered with %d: %s", method, got.StatusCode, text)
		}
		for _, header := range []string{"Content-Type", "Content-Length", "Docker-Content-Digest", "Etag", telemetry.RequestIDHeader} {
			if g, w := got.Header.Get(header), want.Header.Get(header); g == "" || g != w && header != telemetry.RequestIDHeader {
				t.Errorf("%s has the header %s: %q, the leader's %q", method, header, g, w)
			}
		}
	}
}

// A leader that hangs does not block pushes through another server once a new leader is elected.
func TestHangingLeaderDoesNotBlockPushes(t *testing.T) {
	leader, follower := pair(t)
	token := "Bearer " + leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	votes(t, leader, follower)
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	follower.peers.Address = func(string) string { return silent.Addr().String() }
	var push sync.WaitGroup
	defer push.Wait()
	push.Go(func() {
		answer, body := follower.request(nil, http.MethodPost, "/v2/web/blobs/uploads/", "", "Authorization", token)
		if answer.StatusCode != http.StatusBadGateway || answer.Header.Get("x-cloudless-reason") != core.ReasonNoLeader {
			t.Errorf("the push is answered with %d: %s", answer.StatusCode, body)
		}
	})
	passedOn, err := silent.Accept()
	must(t, err)
	defer passedOn.Close()
	must(t, leader.Consensus.Transfer(leader.ctx, "s-2"))
	push.Wait()
}

// A server that hangs does not block the copy of an image for ever.
func TestHangingServerDoesNotBlockCopies(t *testing.T) {
	leader, follower := pair(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // that it can be reached is known before
	must(t, err)
	defer silent.Close()
	_, err = leader.membership.Progress(leader.ctx, follower.UID)
	must(t, err)
	leader.images.Transport(follower.UID).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, silent.Addr().String())
	}
	leader.images.Patience = time.Millisecond
	digest := "sha256:" + strings.Repeat("0", 64)
	if err := leader.images.Have(leader.ctx, "web", digest); status.Code(core.StatusOf(err)) != codes.Unavailable {
		t.Errorf("an image that only a server has that hangs is answered with %v", err)
	}
}

// An image that is deleted for good under one name stays on every server if it has another name, even one that a server
// does not know yet.
func TestDeletedImageStaysIfAnotherTagNamesIt(t *testing.T) {
	leader, follower := pair(t)
	admin := leader.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin}))
	digest := leader.push("web:1")
	(&mirroring.Loop{Store: leader.Store, Consensus: leader.Consensus, Images: leader.images, Logger: leader.Logger}).Round(leader.ctx)
	must(t, leader.images.SetTag(leader.ctx, "web", "2", digest))
	_, err := admin.DeleteImage(leader.ctx, &v1.DeleteImageRequest{Name: "web:1", Now: true})
	must(t, err)
	leader.images.Close()
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	for _, one := range []*cluster{leader, follower} {
		_, err := one.registry.Collect(one.ctx, registry.CollectOptions{Keep: one.images.Keep(one.Store.Snapshot())})
		must(t, err)
		if _, err := one.registry.Digest(one.ctx, "web", digest); err != nil {
			t.Errorf("server %s has lost it: %v", one.UID, err)
		}
	}
}
