package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/must"
)

// TestImagesAreOnEveryServer: an image pushed to a follower is on a majority of the servers when the push returns, later
// on all of them, also on one that joins, and survives the loss of the leader.
func TestImagesAreOnEveryServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	leader := s.leader()
	var follower *testServer
	for name, o := range s.running {
		if name != leader {
			follower = o
		}
	}
	pushed, err := random.Image(10_000, 3)
	must.Succeed(t, err)
	digest, err := pushed.Digest()
	must.Succeed(t, err)
	to, err := image.ParseName("hello:1")
	must.Succeed(t, err)
	_, err = image.Push(s.ctx, pushed, to, image.PushOptions{Transport: s.at(follower).HTTPTransport()})
	must.Succeed(t, err)
	layers, err := pushed.Layers()
	must.Succeed(t, err)
	blobs := []string{digest.Hex}
	for _, layer := range layers {
		d, err := layer.Digest()
		must.Succeed(t, err)
		blobs = append(blobs, d.Hex)
	}
	has := func(o *testServer) bool {
		for _, blob := range blobs {
			if _, err := os.Stat(filepath.Join(o.path, "server/registry/docker/registry/v2/blobs/sha256", blob[:2], blob, "data")); err != nil {
				return false
			}
		}
		return true
	}
	holders := 0
	for _, o := range s.running {
		if has(o) {
			holders++
		}
	}
	if holders < 2 {
		t.Errorf("the push was answered with the image on %d of 3 servers", holders)
	}
	fourth := s.start("s4", t.TempDir(), freeAddress(t), s.token("server"))
	for _, o := range s.running {
		for !has(o) {
			select {
			case <-s.ctx.Done():
				t.Fatalf("server %s never has the image", o.name)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	s.stop(leader)
	for _, o := range []*testServer{follower, fourth} {
		got, err := s.at(o).Images().GetImage(s.ctx, &v1.GetImageRequest{Name: "hello:1"})
		must.Succeed(t, err)
		if got.GetStatus().GetDigest() != digest.String() {
			t.Errorf("asked at %s the image is %v", o.name, got)
		}
	}
	// A deletion reaches every server too.
	_, err = s.client.Images().DeleteImage(s.ctx, &v1.DeleteImageRequest{Name: "hello:1"})
	must.Succeed(t, err)
	for _, o := range s.running {
		tag := filepath.Join(o.path, "server/registry/docker/registry/v2/repositories/hello/_manifests/tags/1/current/link")
		if _, err := os.Stat(tag); err == nil {
			t.Errorf("server %s still has the deleted image", o.name)
		}
	}
}

// pushTo pushes a new image under a name and returns its digest.
func (s *testCluster) pushTo(name string) string {
	s.t.Helper()
	made, err := random.Image(2_000, 2)
	must.Succeed(s.t, err)
	to, err := image.ParseName(name)
	must.Succeed(s.t, err)
	digest, err := image.Push(s.ctx, made, to, image.PushOptions{Transport: s.client.HTTPTransport()})
	must.Succeed(s.t, err)
	return digest
}

// lead makes a server lead; one that was away must have caught up.
func (s *testCluster) lead(name string) {
	s.t.Helper()
	s.until(func(all map[string]*v1.ServerStatus) bool {
		if all[name].GetLeader() {
			return true
		}
		if all[name].GetHealthy() {
			_, _ = s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: name})
		}
		return false
	})
}

// pull reads a whole image by its tag from one server, and returns its digest.
func (s *testCluster) pull(o *testServer, ref string) string {
	s.t.Helper()
	from, err := name.ParseReference("registry.cloudless.internal/" + ref)
	must.Succeed(s.t, err)
	got, err := remote.Image(from, remote.WithTransport(s.at(o).HTTPTransport()), remote.WithContext(s.ctx))
	must.Succeed(s.t, err)
	must.Succeed(s.t, validate.Image(got))
	digest, err := got.Digest()
	must.Succeed(s.t, err)
	return digest.String()
}

// apart returns three servers, and functions that take s2 away and bring it back.
func apart(t *testing.T) (s *testCluster, leave, comeBack func()) {
	s = found(t)
	s.join("s2")
	s.join("s3")
	s.lead("s1")
	second := s.running["s2"]
	return s, func() { s.stop("s2") }, func() { s.start("s2", second.path, second.address, "") }
}

// TestAcknowledgedTagsSurviveLeaders: acknowledged tags and deletions hold even if the next leader was away then.
func TestAcknowledgedTagsSurviveLeaders(t *testing.T) {
	t.Parallel()
	s, leave, comeBack := apart(t)
	first := s.pushTo("web:latest")
	kept := s.pushTo("gone:1")
	leave()
	second := s.pushTo("web:latest")
	if first == second {
		t.Fatal("both pushes are of the same image")
	}
	_, err := s.client.Images().DeleteImage(s.ctx, &v1.DeleteImageRequest{Name: "gone:1"})
	must.Succeed(t, err)
	comeBack()
	for _, leader := range []string{"s2", "s3"} {
		s.lead(leader)
		for _, o := range s.running {
			got, err := s.at(o).Images().GetImage(s.ctx, &v1.GetImageRequest{Name: "web:latest"})
			must.Succeed(t, err)
			if got.GetStatus().GetDigest() != second {
				t.Errorf("with %s leading, %s says that the tag stands for %s, not for what was pushed last", leader, o.name, got.GetStatus().GetDigest())
			}
			if got := s.pull(o, "web:latest"); got != second {
				t.Errorf("with %s leading, a pull at %s gives %s", leader, o.name, got)
			}
			gone, err := s.at(o).Images().GetImage(s.ctx, &v1.GetImageRequest{Name: "gone:1"})
			must.Succeed(t, err)
			if gone.GetStatus().GetPhase() != "deleted" {
				t.Errorf("with %s leading, the deleted image is %s at %s", leader, gone.GetStatus().GetPhase(), o.name)
			}
			from, err := name.ParseReference("registry.cloudless.internal/gone:1")
			must.Succeed(t, err)
			if _, err := remote.Head(from, remote.WithTransport(s.at(o).HTTPTransport())); err == nil {
				t.Errorf("with %s leading, the deleted image can be pulled at %s", leader, o.name)
			}
		}
	}
	back, err := s.client.Images().RestoreImage(s.ctx, &v1.RestoreImageRequest{Name: "gone:1"})
	must.Succeed(t, err)
	s.lead("s2")
	if got := s.pull(s.running["s1"], "gone:1"); got != kept || back.GetStatus().GetDigest() != kept {
		t.Errorf("restored is %s, pulled %s, pushed was %s", back.GetStatus().GetDigest(), got, kept)
	}
}

// TestImagesPassAFullServer: a server with a full disk delays neither a push nor the mirroring to others.
func TestImagesPassAFullServer(t *testing.T) {
	t.Parallel()
	s, leave, comeBack := apart(t)
	leave()
	s.pushTo("before:1")
	// A file in the place of the blobs' folder makes every write fail, even for root.
	blobs := filepath.Join(s.running["s3"].path, "server/registry/docker/registry/v2/blobs")
	must.Succeed(t, os.Rename(blobs, blobs+".away"))
	must.Succeed(t, os.WriteFile(blobs, nil, 0o600))
	comeBack()
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s2"].GetHealthy() })
	digest := s.pushTo("web:1")
	s.lead("s2")
	for _, ref := range []string{"web:1", "before:1"} {
		if got := s.pull(s.running["s2"], ref); ref == "web:1" && got != digest {
			t.Errorf("image %s is %s", ref, got)
		}
	}
	// When the writes work again, it gets what it has missed.
	must.Succeed(t, os.Remove(blobs))
	must.Succeed(t, os.Rename(blobs+".away", blobs))
	data := filepath.Join(blobs, "sha256", digest[7:9], digest[7:], "data")
	s.untilFile(data)
}

// TestUsedImagesAreOnEveryServer, even without a tag: otherwise replicas could not restart after all servers are
// replaced.
func TestUsedImagesAreOnEveryServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	digest := s.pushTo("web:1")
	_, err := s.client.Workloads().CreateWorkload(s.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "web:1"},
	}})
	must.Succeed(t, err)
	s.pushTo("web:1") // another one
	s.join("s2")
	s.untilFile(s.manifestAt("s2", digest))
}

// manifestAt returns the path of an image's manifest at a server. It is written last.
func (s *testCluster) manifestAt(server, digest string) string {
	return filepath.Join(s.running[server].path, "server/registry/docker/registry/v2/blobs/sha256", digest[7:9], digest[7:], "data")
}

// TestDeletedImagesAreOnEveryServer: a deleted image can be restored after all servers that had it are replaced.
func TestDeletedImagesAreOnEveryServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	digest := s.pushTo("old:1")
	_, err := s.client.Images().DeleteImage(s.ctx, &v1.DeleteImageRequest{Name: "old:1"})
	must.Succeed(t, err)
	s.join("s2")
	s.untilFile(s.manifestAt("s2", digest))
}

// TestImagesOutliveTheServersThatHadThem: a server is removed only after a majority of the others has every image, even
// if those have just joined.
func TestImagesOutliveTheServersThatHadThem(t *testing.T) {
	t.Parallel()
	s := found(t)
	digest := s.pushTo("web:1")
	s.join("s2")
	s.join("s3")
	s.lead("s1")
	remove := func(name string) {
		t.Helper()
		_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: name})
		must.Succeed(t, err)
		s.removed(name)
	}
	remove("s2")
	if _, err := os.Stat(s.manifestAt("s3", digest)); err != nil {
		t.Errorf("one of the two servers that are left does not have the image: %v", err)
	}
	s.lead("s3")
	remove("s1")
	if got := s.pull(s.running["s3"], "web:1"); got != digest {
		t.Errorf("the image is %s, pushed was %s", got, digest)
	}
}

// untilFile waits until a server has a file.
func (s *testCluster) untilFile(path string) {
	s.t.Helper()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("there never is %s", path)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestTagsFollowTheState: a server that was away when a tag was deleted removes the tag from its registry.
func TestTagsFollowTheState(t *testing.T) {
	t.Parallel()
	s := found(t)
	digest := s.pushTo("web:1")
	o := s.running["s1"]
	s.stop("s1")
	tags := filepath.Join(o.path, "server/registry/docker/registry/v2/repositories/web/_manifests/tags")
	must.Succeed(t, os.CopyFS(filepath.Join(tags, "stray"), os.DirFS(filepath.Join(tags, "1"))))
	s.start("s1", o.path, o.address, "")
	for {
		if _, err := os.Stat(filepath.Join(tags, "stray")); os.IsNotExist(err) {
			break
		}
		select {
		case <-s.ctx.Done():
			t.Fatal("a tag that was never pushed stays")
		case <-time.After(20 * time.Millisecond):
		}
	}
	if got := s.pull(s.running["s1"], "web:1"); got != digest {
		t.Errorf("the image is %s", got)
	}
}
