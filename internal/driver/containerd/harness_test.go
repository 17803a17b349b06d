package containerd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// unknownImage is on a registry that answers and has nothing.
const unknownImage = "registry.test/nothing:1"

// testOptions describe a cloud for this test only.
func testOptions(t *testing.T) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("runs containers, which needs root; make test runs it")
	}
	if os.Geteuid() != 0 {
		t.Fatal("these tests run containers and must be run as root")
	}
	id := "t" + strings.ToLower(rand.Text()[:8])
	opts := Options{
		ID:         id,
		DataDir:    t.TempDir(),
		RunDir:     "/run/cl-" + id,
		Registries: map[string]*http.Client{"registry.test": emptyRegistry(t)},
		Log:        slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	return opts
}

// testWriter writes the driver's log into the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	// A daemon may still log after the test has ended.
	if w.t.Context().Err() == nil {
		w.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// emptyRegistry returns a client that reaches a registry without images under
// any name.
func emptyRegistry(t *testing.T) *http.Client {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	return clientFor(server, nil)
}

// clientFor dials the server whatever the host is called.
func clientFor(server *httptest.Server, certificates []tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		},
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com", Certificates: certificates},
	}}
}

// mustOpen opens a driver; the caller closes it.
func mustOpen(t *testing.T, opts Options) *Driver {
	t.Helper()
	d, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// importArchive gives the driver an image in the format of docker save.
func importArchive(t *testing.T, d drivertest.Driver, archive io.Reader) {
	t.Helper()
	own := d.(*Driver)
	if _, err := own.client.Import(own.scope(t.Context()), archive, client.WithAllPlatforms(true)); err != nil {
		t.Fatal(err)
	}
}

// traces names what tasks leave on the machine, seen from outside the driver.
func traces(t *testing.T, opts Options, daemonDirs ...string) []string {
	t.Helper()
	var found []string
	dirs := append([]string{opts.DataDir, opts.RunDir}, daemonDirs...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		for _, dir := range dirs {
			if strings.Contains(line, dir) {
				found = append(found, "mount "+strings.Fields(line)[4])
			}
		}
	}
	cgroups, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range cgroups.dirs(opts.cgroupParent()) {
		found = append(found, tree(t, dir, fs.FileMode.IsDir)...)
	}
	snapshots := "io.containerd.snapshotter.v1.overlayfs/snapshots"
	found = append(found, tree(t, opts.RunDir, nil)...)
	for _, dir := range append([]string{opts.rootDir()}, daemonDirs...) {
		entries, _ := filepath.Glob(filepath.Join(dir, snapshots, "*"))
		found = append(found, entries...)
	}
	return append(found, processes(t, opts)...)
}

// files are all files of the driver and its daemon, also those of images that are in use.
func files(t *testing.T, opts Options, daemonDirs ...string) (found []string) {
	t.Helper()
	for _, dir := range append([]string{opts.DataDir, opts.RunDir}, daemonDirs...) {
		found = append(found, tree(t, dir, fs.FileMode.IsRegular)...)
	}
	return found
}

func tree(t *testing.T, root string, want func(fs.FileMode) bool) []string {
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		// The parent of all cgroups stays until the cloud is purged.
		if path != root && (want == nil || want(entry.Type())) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// processes are those that belong to the cloud's namespace in containerd or run in its
// cgroups.
func processes(t *testing.T, opts Options) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if len(cmdline) == 0 {
			continue // dead, waiting for init to reap it
		}
		cgroup, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if bytes.Contains(cmdline, []byte(opts.namespace())) ||
			bytes.Contains(cmdline, []byte(opts.DataDir)) ||
			bytes.Contains(cgroup, []byte(opts.cgroupParent()+"/")) {
			found = append(found, fmt.Sprintf("process %d %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// killStockShim kills the shim of an outside daemon.
func killStockShim(t *testing.T, opts Options, id string) {
	t.Helper()
	for _, line := range processes(t, opts) {
		words := strings.Fields(line)
		if !strings.Contains(line, "containerd-shim-runc-v2") || !strings.Contains(line, " -id "+id+" ") {
			continue
		}
		pid, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(handle)
		if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil {
			t.Fatal(err)
		}
		if err := waitGone(handle); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no shim of task %s", id)
}

// firstLine reads a line of a child's output.
func firstLine(t *testing.T, r io.Reader) string {
	t.Helper()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatalf("the child said nothing: %v", lines.Err())
	}
	return lines.Text()
}

// quiet is for work after a test has ended.
var quiet = slog.New(slog.DiscardHandler)

// withoutCancel is for cleanup, when the test's own context has ended.
func withoutCancel(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
