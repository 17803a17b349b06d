package drivertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloudless/cloudless/internal/driver"
)

// The images of the suite, by references that no registry has.
const (
	busyboxImage = "registry.invalid/busybox:1"
	foreignImage = "registry.invalid/foreign:1"
)

// busybox is the program in the image; Debian has it in busybox-static.
const busybox = "/bin/busybox"

func (s *suite) importImages(t *testing.T) {
	t.Helper()
	s.Import(t, s.driver, archive(t, busyboxImage, runtime.GOARCH))
	s.Import(t, s.driver, archive(t, foreignImage, "s390x"))
}

// Image is the suite's image for a driver's own tests: its reference, and the archive to
// import.
func Image(t testing.TB) (ref string, content io.Reader) {
	t.Helper()
	return busyboxImage, archive(t, busyboxImage, runtime.GOARCH)
}

func archive(t testing.TB, ref, arch string) io.Reader {
	t.Helper()
	files := layer(t)
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithCompressionLevel(gzip.NoCompression), tarball.WithCompressedCaching)
	must(t, err)
	image, err := mutate.AppendLayers(empty.Image, content)
	must(t, err)
	image, err = mutate.ConfigFile(image, withConfig(t, image, v1.ConfigFile{
		OS:           "linux",
		Architecture: arch,
		Config: v1.Config{
			Entrypoint: []string{"/bin/echo", "from-entrypoint"},
			Cmd:        []string{"from-cmd"},
			Env:        []string{"PATH=/bin", "FROM_IMAGE=yes", "IMAGE_OR_TASK=image"},
			WorkingDir: "/tmp",
			StopSignal: "SIGUSR1",
		},
	}))
	must(t, err)
	tag, err := name.NewTag(ref)
	must(t, err)
	var buffer bytes.Buffer
	must(t, tarball.Write(tag, image, &buffer))
	return &buffer
}

// withConfig keeps the image's layers.
func withConfig(t testing.TB, image v1.Image, config v1.ConfigFile) *v1.ConfigFile {
	t.Helper()
	old, err := image.ConfigFile()
	must(t, err)
	config.RootFS = old.RootFS
	config.History = old.History
	return &config
}

// layer is a root filesystem with busybox under the names that scripts use.
func layer(t testing.TB) []byte {
	t.Helper()
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatalf("the suite needs a static busybox at %s (package busybox-static): %v", busybox, err)
	}
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	add := func(header tar.Header, content []byte) {
		header.Size = int64(len(content))
		must(t, w.WriteHeader(&header))
		_, err := w.Write(content)
		must(t, err)
	}
	for _, dir := range []string{"bin/", "etc/", "proc/", "sys/", "dev/"} {
		add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, applet := range []string{
		"sh", "echo", "cat", "sleep", "id", "ls", "grep", "kill", "true", "tail", "dd", "stty", "tr", "pwd",
		"hostname", "ip", "ping", "chown", "mknod", "touch", "env", "wc", "seq", "tty", "nproc", "chroot",
	} {
		add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nweb:x:1234:5678::/:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nweb:x:5678:\nlogs:x:77:web\n"))
	add(tar.Header{Name: "etc/not-a-program", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("text\n"))
	must(t, w.Close())
	return buffer.Bytes()
}

func images(t *testing.T, s *suite) {
	t.Run("an unknown one is refused", func(t *testing.T) {
		task := s.shell(t, "true")
		task.Image = s.UnknownImage
		wantError(t, s.driver.Prepare(s.ctx(t), task), driver.ErrImage)
		_, err := s.driver.Start(s.ctx(t), task)
		wantError(t, err, driver.ErrImage)
		if _, found := s.status(t, task.ID); found {
			t.Error("the task that did not start is in the list")
		}
	})
	t.Run("one of another architecture is refused", func(t *testing.T) {
		task := s.shell(t, "true")
		task.Image = foreignImage
		err := s.driver.Prepare(s.ctx(t), task)
		wantError(t, err, driver.ErrImage)
		if !bytes.Contains([]byte(err.Error()), []byte("s390x")) {
			t.Errorf("the refusal does not name the architecture: %v", err)
		}
	})
	t.Run("gives command, environment and folder", func(t *testing.T) {
		task := s.shell(t, "")
		task.Command = nil
		task.Args = nil
		s.run(t, task)
		s.logUntil(t, task, "from-entrypoint from-cmd")
	})
	t.Run("arguments replace the image's command", func(t *testing.T) {
		task := s.shell(t, "")
		task.Command = nil
		task.Args = []string{"from-task"}
		s.run(t, task)
		s.logUntil(t, task, "from-entrypoint from-task")
	})
	t.Run("the task's environment and folder go before", func(t *testing.T) {
		task := s.shell(t, `echo "$FROM_IMAGE $IMAGE_OR_TASK $FROM_TASK $(pwd)"`)
		task.Env = map[string]string{"IMAGE_OR_TASK": "task", "FROM_TASK": "a=b"}
		if got, want := s.output(t, task), "yes task a=b /tmp"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		task = s.shell(t, "pwd")
		task.WorkingDir = "/etc"
		if got, want := s.output(t, task), "/etc"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
