package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
)

// TestImagesAreOnEveryServer: an image that is pushed at a server which does not lead is on a majority of the servers
// when the push is answered, later on all of them, on one that joins too, and survives the leader.
func TestImagesAreOnEveryServer(t *testing.T) {
	s := found(t)
	s.join("s2")
	s.join("s3")
	leader := s.leader()
	var follower *one
	for name, o := range s.running {
		if name != leader {
			follower = o
		}
	}
	pushed, err := random.Image(10_000, 3)
	must(t, err)
	digest, err := pushed.Digest()
	must(t, err)
	name, err := image.ParseName("hello:1")
	must(t, err)
	_, err = image.Push(s.ctx, pushed, name, image.PushOptions{Transport: s.at(follower).HTTPTransport()})
	must(t, err)
	layers, err := pushed.Layers()
	must(t, err)
	blobs := []string{digest.Hex}
	for _, layer := range layers {
		d, err := layer.Digest()
		must(t, err)
		blobs = append(blobs, d.Hex)
	}
	has := func(o *one) bool {
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
	for _, o := range []*one{follower, fourth} {
		got, err := s.at(o).Images().GetImage(s.ctx, &v1.GetImageRequest{Name: "hello:1"})
		must(t, err)
		if got.GetStatus().GetDigest() != digest.String() {
			t.Errorf("asked at %s the image is %v", o.name, got)
		}
	}
	// A deletion is known everywhere too.
	_, err = s.client.Images().DeleteImage(s.ctx, &v1.DeleteImageRequest{Name: "hello:1"})
	must(t, err)
	for _, o := range s.running {
		tag := filepath.Join(o.path, "server/registry/docker/registry/v2/repositories/hello/_manifests/tags/1/current/link")
		if _, err := os.Stat(tag); err == nil {
			t.Errorf("server %s still has the deleted image", o.name)
		}
	}
}
