package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
)

func TestDeletedImageCanBeRestored(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	img := randomImage(t)
	pushed := s.push(t, "hello:1", img)
	gone, err := s.Delete(t.Context(), "hello", "1", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(gone) != 1 || gone[0].Tag != "1" || gone[0].Digest != pushed || gone[0].ExpireTime.Sub(gone[0].DeleteTime) != 24*time.Hour {
		t.Errorf("deleted %+v", gone)
	}
	if _, err := s.Digest(t.Context(), "hello", "1"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("the tag is still there: %v", err)
	}
	if freed := s.collect(t, registry.CollectOptions{}); freed != 0 {
		t.Errorf("the collection took %d bytes of an image that can be restored", freed)
	}
	if err := s.SetTag(t.Context(), "hello", "1", pushed); err != nil {
		t.Fatal(err)
	}
	s.wantWhole(t, "hello:1")
	if left, err := s.Deleted(); err != nil || len(left) != 0 {
		t.Errorf("still deleted: %v, %v", left, err)
	}
}

// A tag can be moved without a push, and only valid names become files.
func TestSetTag(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	first := s.push(t, "hello:1", randomImage(t))
	second := s.push(t, "hello:1", randomImage(t))
	if err := s.SetTag(t.Context(), "hello", "1", first); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Digest(t.Context(), "hello", "1"); err != nil || got != first {
		t.Errorf("the tag stands for %s, %v, and not for %s", got, err, first)
	}
	absent := "sha256:" + strings.Repeat("0", 64)
	if err := s.SetTag(t.Context(), "hello", "2", absent); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Tagged(t.Context(), "hello", "2"); err != nil || got != absent {
		t.Errorf("the tag of an image that is not here stands for %s, %v", got, err)
	}
	if _, err := s.Tagged(t.Context(), "hello", "3"); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("got %v, want that there is no such tag", err)
	}
	for _, bad := range [][3]string{{"hello", "../1", second}, {"../hello", "1", second}, {"hello", "1", "../x"}} {
		if err := s.SetTag(t.Context(), bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

// An image that was deleted for good and is pushed again is not collected before it has its
// tag; one that was deleted before is removed when it is forgotten.
func TestDeletedImageIsReclaimedOrForgotten(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	again := s.push(t, "hello:1", randomImage(t))
	if _, err := s.Delete(t.Context(), "hello", "1", true); err != nil {
		t.Fatal(err)
	}
	if err := s.Reclaim(t.Context(), "hello", again); err != nil {
		t.Fatal(err)
	}
	s.collect(t, registry.CollectOptions{})
	if err := s.SetTag(t.Context(), "hello", "1", again); err != nil {
		t.Fatal(err)
	}
	s.wantWhole(t, "hello:1")

	gone, err := s.Delete(t.Context(), "hello", "1", false)
	if err != nil || len(gone) != 1 {
		t.Fatalf("deleted %v, %v", gone, err)
	}
	if err := s.Forget(gone[0]); err != nil {
		t.Fatal(err)
	}
	s.collect(t, registry.CollectOptions{})
	if err := s.Reclaim(t.Context(), "hello", again); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("got %v, want that it is gone", err)
	}
}

// An image deleted with now is removed at once however young it is, and shared layers stay.
func TestCollectionRemovesImagesDeletedNow(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, slog.New(slog.DiscardHandler))
	shared, err := random.Layer(2000, "application/vnd.oci.image.layer.v1.tar+gzip")
	if err != nil {
		t.Fatal(err)
	}
	with := func() v1.Image {
		img, err := mutate.AppendLayers(randomImage(t), shared)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	kept, gone := with(), with()
	s.push(t, "kept:1", kept)
	s.push(t, "gone:1", gone)
	sharedSize, err := shared.Size()
	if err != nil {
		t.Fatal(err)
	}
	dry := s.collect(t, registry.CollectOptions{DryRun: true, Without: []registry.Deleted{deletedTag(t, s, "gone", "1")}})
	if _, err := s.Delete(t.Context(), "gone", "1", true); err != nil {
		t.Fatal(err)
	}
	freed := s.collect(t, registry.CollectOptions{Keep: func(string, string) bool { return true }})
	if want := wholeSize(t, gone) - sharedSize; freed != want || dry != want {
		t.Errorf("freed %d bytes, announced %d, want %d", freed, dry, want)
	}
	s.wantWhole(t, "kept:1")
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].Name != "kept" {
		t.Errorf("the registry has %v, %v", list, err)
	}
	if again := s.collect(t, registry.CollectOptions{}); again != 0 {
		t.Errorf("a second collection freed %d bytes more", again)
	}
	if n := filesBelow(t, filepath.Join(dir, "collected")); n != 0 {
		t.Errorf("%d files are left of what was collected", n)
	}
	s.push(t, "gone:1", gone) // all of it is sent again
	s.wantWhole(t, "gone:1")
}

// A manifest whose tag has moved stays as long as it is kept.
func TestCollectionKeepsNeededManifests(t *testing.T) {
	s := serveWith(t, registry.Options{Dir: t.TempDir(), Grace: time.Nanosecond})
	first := s.push(t, "hello:1", randomImage(t))
	s.push(t, "hello:1", randomImage(t))
	used := true
	keep := func(repository, digest string) bool { return used && repository == "hello" && digest == first }
	if freed := s.collect(t, registry.CollectOptions{Keep: keep}); freed != 0 {
		t.Errorf("freed %d bytes of what is used", freed)
	}
	s.wantWhole(t, "hello@"+first)
	used = false
	if freed := s.collect(t, registry.CollectOptions{Keep: keep}); freed == 0 {
		t.Error("freed nothing, though the old image is unused")
	}
	if _, err := s.Resolve(t.Context(), "hello", first); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("the old image is still there: %v", err)
	}
	s.wantWhole(t, "hello:1")
}

// Every platform of an index stays while the index does, and goes with it.
func TestCollectionFollowsAnIndex(t *testing.T) {
	s := serveWith(t, registry.Options{Dir: t.TempDir(), Grace: time.Nanosecond})
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	to := parse(t, "multi:1")
	if err := remote.WriteIndex(repository(t, to).Tag(to.Tag), index, remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}
	if freed := s.collect(t, registry.CollectOptions{}); freed != 0 {
		t.Errorf("freed %d bytes of an index that has a tag", freed)
	}
	found, err := s.Resolve(t.Context(), "multi", "1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(t.Context(), "multi", "1", true); err != nil {
		t.Fatal(err)
	}
	if freed := s.collect(t, registry.CollectOptions{}); freed != found.Size {
		t.Errorf("freed %d bytes, want all %d", freed, found.Size)
	}
}

// A layer that a client has sent or asked about stays until the client had time to name it
// in a manifest.
func TestCollectionSparesPushesInProgress(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	img := randomImage(t)
	s.push(t, "hello:1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	// Another client asks for a layer, learns that it is there, and takes its time.
	s.do(t, http.MethodHead, "/v2/hello/blobs/"+digest.String(), "", http.StatusOK)
	if _, err := s.Delete(t.Context(), "hello", "1", true); err != nil {
		t.Fatal(err)
	}
	s.collect(t, registry.CollectOptions{})
	s.do(t, http.MethodHead, "/v2/hello/blobs/"+digest.String(), "", http.StatusOK)
}

// Pushes, pulls, deletions and collections at once: every acknowledged push that was not
// deleted is complete, and no push fails.
func TestCollectionWhileOthersPushAndPull(t *testing.T) {
	dir := t.TempDir()
	s := serveWith(t, registry.Options{Dir: dir})
	shared := make([]v1.Layer, 4)
	for i := range shared {
		var err error
		if shared[i], err = random.Layer(4<<10, "application/vnd.oci.image.layer.v1.tar+gzip"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var collector sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.Collect(ctx, registry.CollectOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	var pushers sync.WaitGroup
	for p := range 4 {
		pushers.Go(func() {
			for round := range 12 {
				base, err := random.Image(2<<10, 1)
				if err != nil {
					t.Error(err)
					return
				}
				img, err := mutate.AppendLayers(base, shared[(p+round)%len(shared)], shared[(p+round+1)%len(shared)])
				if err != nil {
					t.Error(err)
					return
				}
				tag := fmt.Sprintf("team%d:%d", p%2, p*100+round)
				if _, err := image.Push(ctx, img, parse(t, tag), image.PushOptions{Transport: s.transport}); err != nil {
					t.Errorf("push %s: %v", tag, err)
					return
				}
				s.wantWhole(t, tag)
				if round%3 != 0 {
					name := parse(t, tag)
					if _, err := s.Delete(ctx, name.Repository, name.Tag, round%3 == 1); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	pushers.Wait()
	stop()
	collector.Wait()
	deleted, err := s.Deleted()
	if err != nil {
		t.Fatal(err)
	}
	was := map[string]string{}
	for _, d := range deleted {
		was[d.Repository+":"+d.Tag] = d.Digest
	}
	for p := range 4 {
		for round := 0; round < 12; round += 3 {
			s.wantWhole(t, fmt.Sprintf("team%d:%d", p%2, p*100+round))
		}
		for round := 2; round < 12; round += 3 {
			repository, tag := fmt.Sprintf("team%d", p%2), fmt.Sprint(p*100+round)
			if err := s.SetTag(t.Context(), repository, tag, was[repository+":"+tag]); err != nil {
				t.Error(err)
			}
			s.wantWhole(t, fmt.Sprintf("team%d:%d", p%2, p*100+round))
		}
	}
}

func (s *server) collect(t *testing.T, o registry.CollectOptions) int64 {
	t.Helper()
	freed, err := s.Collect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return freed
}

// wantWhole pulls everything of an image and compares all digests.
func (s *server) wantWhole(t *testing.T, name string) {
	t.Helper()
	n := parse(t, name)
	ref := repository(t, n).Tag(n.Tag).Repository.Digest(n.Digest)
	var pulled v1.Image
	var err error
	if n.Digest != "" {
		pulled, err = remote.Image(ref, remote.WithTransport(s.transport), remote.WithContext(t.Context()))
	} else {
		pulled, err = remote.Image(repository(t, n).Tag(n.Tag), remote.WithTransport(s.transport), remote.WithContext(t.Context()))
	}
	if err == nil {
		err = validate.Image(pulled)
	}
	if err != nil {
		t.Errorf("image %s is not whole: %v", name, err)
	}
}

func deletedTag(t *testing.T, s *server, name, tag string) registry.Deleted {
	t.Helper()
	digest, err := s.Digest(t.Context(), name, tag)
	if err != nil {
		t.Fatal(err)
	}
	return registry.Deleted{Repository: name, Tag: tag, Digest: digest}
}

func filesBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			n++
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
