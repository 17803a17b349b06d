package registry_test

import (
	"io"
	"log/slog"
	"net/http"
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

// A push to a nearly full disk is refused in a sentence before anything is written. Pulls
// still work, and with room again the push works.
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

// zeros is a body of unknown length.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	z.left -= n
	return int(n), nil
}

// A client need not say how much it will send. Its push is refused when the reserve is
// reached, and not when the disk is full.
func TestChunkedPushLeavesTheReserve(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=192m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := serve(t, filepath.Join(dir, "registry"), slog.New(slog.DiscardHandler))
	send := func(method, to string, body io.Reader) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, to, body)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	began := send(http.MethodPost, "https://registry/v2/web/blobs/uploads/", nil)
	to, err := began.Request.URL.Parse(began.Header.Get("Location"))
	if err != nil || began.StatusCode != http.StatusAccepted {
		t.Fatalf("the upload does not begin: %s, %v", began.Status, err)
	}
	answer := send(http.MethodPatch, to.String(), &zeros{left: 512 << 20})
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusInsufficientStorage || !strings.Contains(string(said), "there is no space left on the disk of the registry") {
		t.Errorf("the push is answered with %s %s", answer.Status, said)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if free := disk.Bavail * uint64(disk.Bsize) >> 20; free < 120 {
		t.Errorf("%d MiB are left of the 128 that are kept in reserve", free)
	}
	// The data sent so far is removed with the upload.
	if to, err = to.Parse(send(http.MethodGet, to.String(), nil).Header.Get("Location")); err != nil {
		t.Fatal(err)
	}
	if cancelled := send(http.MethodDelete, to.String(), nil); cancelled.StatusCode != http.StatusNoContent {
		t.Errorf("cancelling the upload is answered with %s", cancelled.Status)
	}
	if small := send(http.MethodPost, "https://registry/v2/web/blobs/uploads/", nil); small.StatusCode != http.StatusAccepted {
		t.Errorf("with room again: %s", small.Status)
	}
}
