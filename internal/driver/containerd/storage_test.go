package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloudless/cloudless/internal/driver"
)

// zeros is a layer with one file of so many zero bytes, which is small while it is compressed.
func zeros(t *testing.T, size int64) v1.Layer {
	t.Helper()
	var compressed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(zip)
	if err := archive.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(archive, zeroReader{}, size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(compressed.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (o *others) pushWith(t *testing.T, ref string, layers ...v1.Layer) string {
	t.Helper()
	img, err := mutate.AppendLayers(busybox(t), layers...)
	if err != nil {
		t.Fatal(err)
	}
	tag := o.tag(t, ref)
	if err := remote.Write(tag, img, o.auth()); err != nil {
		t.Fatal(err)
	}
	return tag.Name()
}

// A small archive that becomes a large image is refused, and nothing of it stays: neither its name nor its layers.
func TestImageThatUnpacksToTooMuchIsRefused(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	d := mustOpen(t, opts)
	defer d.Close()
	for _, c := range []struct {
		name string
		size int64
	}{
		{"quick", 8 << 20}, // measured once it is complete
		{"large", 1 << 30}, // ended while it is being unpacked
	} {
		task := counter(t, o.pushWith(t, "app:"+c.name, zeros(t, c.size)), c.name)
		task.Login = o.login()
		task.MaxUnpacked = 6 << 20
		err := d.Prepare(t.Context(), task)
		if !errors.Is(err, driver.ErrImage) || !strings.Contains(err.Error(), "is larger than 6Mi once it is unpacked, which is the cluster's limit") {
			t.Fatalf("%s: got %v", c.name, err)
		}
		if stored, err := d.Images(t.Context()); err != nil || len(stored) > 0 {
			t.Errorf("%s: these images are here: %v, %v", c.name, stored, err)
		}
		task.MaxUnpacked = 2 << 30
		if err := d.Prepare(t.Context(), task); err != nil {
			t.Errorf("%s: with a higher limit: %v", c.name, err)
		}
		if err := d.RemoveImage(t.Context(), task.Image); err != nil {
			t.Error(err)
		}
	}
}

// An image can be removed once no task uses it. Its space is free then, and a task that needs it again pulls it again.
func TestUnusedImagesCanBeRemoved(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	d := mustOpen(t, opts)
	defer d.Close()
	task := counter(t, o.pushWith(t, "app:1", zeros(t, 32<<20)), "uses-it")
	task.Login = o.login()
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	stored, err := d.Images(t.Context())
	if err != nil || len(stored) != 1 || !stored[0].InUse || stored[0].Ref != task.Image || stored[0].Bytes < 32<<20 || stored[0].LastUse.IsZero() {
		t.Fatalf("while a task runs: %+v, %v", stored, err)
	}
	if err := d.RemoveImage(t.Context(), task.Image); err == nil || !strings.Contains(err.Error(), "is in use by task "+task.ID) {
		t.Errorf("removing an image in use: %v", err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second time does no harm
		if err := d.RemoveImage(t.Context(), task.Image); err != nil {
			t.Fatal(err)
		}
	}
	if stored, err := d.Images(t.Context()); err != nil || len(stored) > 0 {
		t.Errorf("after the removal: %+v, %v", stored, err)
	}
	if left := traces(t, opts); strings.Contains(strings.Join(left, "\n"), "snapshots/") {
		t.Errorf("layers are left: %q", left)
	}
	task.ID += "-again"
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Errorf("a task that needs the image again: %v", err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Error(err)
	}
}

// What a task writes to its own layer is counted, and what its image has is not.
func TestDiskUsageIsWhatTheTaskHasWritten(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	o := newOthers(t)
	d := mustOpen(t, opts)
	defer d.Close()
	task := counter(t, o.pushWith(t, "app:1", zeros(t, 16<<20)), "writes")
	task.Login = o.login()
	task.Command = []string{"/bin/sh", "-c", "dd if=/dev/zero of=/file bs=1M count=5 2>/dev/null; echo line 3; sleep 1000"}
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 3")
	if used, err := d.DiskUsage(t.Context(), task.ID); err != nil || used < 5<<20 || used > 6<<20 {
		t.Errorf("a task that has written 5 MiB uses %d bytes, %v", used, err)
	}
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DiskUsage(t.Context(), task.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("of a removed task: %v", err)
	}
}
