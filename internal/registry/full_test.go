package registry_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/image"
)

// A push to a disk that is nearly full is refused in a sentence before anything
// is written; what is there can still be pulled; with room again it works.
func TestPushToAFullDiskIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=192m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := serve(t, filepath.Join(dir, "registry"), slog.New(slog.DiscardHandler))
	push := func(to string) (string, error) {
		img, err := random.Image(1<<20, 2)
		if err != nil {
			t.Fatal(err)
		}
		return image.Push(t.Context(), img, parse(t, to), image.PushOptions{Transport: s.transport})
	}
	before, err := push("before:1")
	if err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	if err := unix.Fallocate(int(filler.Fd()), 0, 0, 180<<20); err != nil {
		t.Fatal(err)
	}
	_, err = push("during:1")
	if err == nil || !strings.Contains(err.Error(), "there is no space left on the disk of the registry") || strings.Contains(err.Error(), "\n") {
		t.Errorf("pushed to a full disk: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "registry/docker/registry/v2/repositories/during/*")); len(left) > 0 {
		t.Errorf("half-made: %q", left)
	}
	pulled, err := remote.Image(repository(t, parse(t, "before:1")).Digest(before), remote.WithTransport(s.transport), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(pulled); err != nil {
		t.Errorf("what was pushed before: %v", err)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	filler.Close()
	if _, err := push("during:1"); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
