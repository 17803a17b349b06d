package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
	"github.com/cloudless/cloudless/internal/logfile"
)

// childOptions, when set, make this program a process that runs a driver with one task, to
// be killed.
const childOptions = "CLOUDLESS_TEST_DRIVER"

func TestMain(m *testing.M) {
	if text := os.Getenv(childOptions); text != "" {
		if err := runChild(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		select {} // until it is killed
	}
	os.Exit(m.Run())
}

// childTask is the child's input.
type childTask struct {
	ID, DataDir, RunDir string
	Task                driver.Task
	Exec                []string // what to run in the task, if anything
}

func runChild(text string) error {
	var child childTask
	if err := json.Unmarshal([]byte(text), &child); err != nil {
		return err
	}
	ctx := context.Background()
	d, err := Open(ctx, Options{ID: child.ID, DataDir: child.DataDir, RunDir: child.RunDir, Log: quiet})
	if err != nil {
		return err
	}
	if _, err := d.Start(ctx, child.Task); err != nil {
		return err
	}
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	if len(child.Exec) > 0 {
		begun := make(firstWrite, 1)
		if _, err := d.Exec(ctx, child.Task.ID, driver.Exec{Command: child.Exec, Stdout: begun}); err != nil {
			return err
		}
		<-begun
	}
	fmt.Println("pid", all[0].PID)
	return nil
}

// firstWrite has a token once something was written.
type firstWrite chan struct{}

func (w firstWrite) Write(b []byte) (int, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	return len(b), nil
}

// counter is a task that numbers its lines until it is stopped.
func counter(t *testing.T, ref, id string) driver.Task {
	return driver.Task{
		ID:      id,
		Image:   ref,
		Command: []string{"sh", "-c", `trap 'echo last; exit 6' TERM; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.01; done`},
		Network: driver.NetworkNone,
		LogDir:  filepath.Join(t.TempDir(), "log"),
	}
}

// After kill -9 of the process with the daemon in it, the task is the same
// process, no line is missing and its exit is seen.
func TestKilledProcess(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	task := counter(t, ref, "survivor")
	pid := runAndKill(t, opts, task)

	waitForLine(t, task, "line 100")
	d = mustOpen(t, opts)
	defer d.Close()
	all, err := d.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != driver.StateRunning || fmt.Sprint("pid ", all[0].PID) != pid {
		t.Fatalf("want a running task with %s, got %+v, %v", pid, all, err)
	}
	if err := d.Stop(t.Context(), task.ID, "SIGTERM", time.Minute); err != nil {
		t.Fatal(err)
	}
	exit, err := d.Wait(t.Context(), task.ID)
	if err != nil || exit.Code != 6 {
		t.Errorf("got %+v, %v", exit, err)
	}
	for i, line := range waitForLine(t, task, "last") {
		if want := fmt.Sprintf("line %d", i+1); line != want && line != "last" {
			t.Fatalf("line %q where %q should be", line, want)
		}
	}
}

// runAndKill starts the task in another process and kills that. It returns the output of
// the process.
func runAndKill(t *testing.T, opts Options, task driver.Task, exec ...string) string {
	t.Helper()
	text, err := json.Marshal(childTask{opts.ID, opts.DataDir, opts.RunDir, task, exec})
	if err != nil {
		t.Fatal(err)
	}
	child := osexec.Command(os.Args[0])
	child.Env = append(os.Environ(), childOptions+"="+string(text))
	child.Stderr = testWriter{t}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	said := firstLine(t, out)
	child.Process.Kill()
	child.Wait()
	if !strings.HasPrefix(said, "pid ") {
		t.Fatalf("the child failed: %s", said)
	}
	return said
}

func waitForLine(t *testing.T, task driver.Task, last string) []string {
	t.Helper()
	var lines []string
	found := errors.New("found")
	err := logfile.Read(t.Context(), task.LogDir, logfile.Options{Tail: -1, Follow: true}, func(e logfile.Entry) error {
		lines = append(lines, e.Line)
		if e.Line == last {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Fatal(err)
	}
	return lines
}

// Two clouds run tasks of the same name on one machine. Purging one of them leaves nothing
// of it and does not touch the other.
func TestTwoClouds(t *testing.T) {
	ref, _ := drivertest.Image(t)
	var opts [2]Options
	var drivers [2]*Driver
	var tasks [2]driver.Task
	for i := range opts {
		opts[i] = testOptions(t)
		t.Cleanup(func() { mustPurge(t, opts[i]) })
		drivers[i] = mustOpen(t, opts[i])
		_, archive := drivertest.Image(t)
		importArchive(t, drivers[i], archive)
		tasks[i] = counter(t, ref, "same")
		if _, err := drivers[i].Start(t.Context(), tasks[i]); err != nil {
			t.Fatal(err)
		}
	}
	waitForLine(t, tasks[0], "line 5")
	if err := drivers[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), opts[0]); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, opts[0]); len(left) > 0 {
		t.Errorf("left of the purged cloud:\n%s", strings.Join(left, "\n"))
	}
	for _, dir := range []string{opts[0].rootDir(), opts[0].shimDir()} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	for _, dir := range drivers[0].cgroups.dirs(opts[0].cgroupParent()) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	// The other cloud's task goes on: it still answers.
	if err := drivers[1].Stop(t.Context(), "same", "SIGTERM", time.Minute); err != nil {
		t.Fatal(err)
	}
	if exit, err := drivers[1].Wait(t.Context(), "same"); err != nil || exit.Code != 6 {
		t.Errorf("got %+v, %v", exit, err)
	}
	if err := drivers[1].Close(); err != nil {
		t.Fatal(err)
	}
}

// A purge leaves nothing of this cloud in an outside daemon.
func TestPurgeEmptiesOutsideNamespace(t *testing.T) {
	opts := testOptions(t)
	root, state := startOutside(t, &opts)
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	if _, err := d.Start(t.Context(), counter(t, ref, "running")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	for _, trace := range traces(t, opts, root, state) {
		t.Errorf("left: %s", trace)
	}
	d = mustOpen(t, opts)
	defer func() {
		d.Close()
		mustPurge(t, opts)
	}()
	names, err := d.client.NamespaceService().List(d.scope(t.Context()))
	if err != nil || len(names) != 0 {
		t.Errorf("namespaces: %v, %v", names, err)
	}
}

// What an interrupted pull has fetched belongs to no image, and is removed as well.
func TestPurgeOfACrashedPull(t *testing.T) {
	opts := testOptions(t)
	startOutside(t, &opts)
	d := mustOpen(t, opts)
	leased, _, err := d.client.WithLease(d.scope(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	half := []byte("a layer without an image")
	about := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Digest: digest.FromBytes(half), Size: int64(len(half))}
	if err := content.WriteBlob(leased, d.client.ContentStore(), "half", bytes.NewReader(half), about); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), opts); err != nil {
		t.Error(err)
		mustPurge(t, opts)
	}
}

// A second daemon on the same folder is refused with a helpful sentence, and so is purging
// it.
func TestFolderInUse(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	if _, err := Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("open: got %v", err)
	}
	if err := Purge(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("purge: got %v", err)
	}
}

// A folder that no daemon can open any more can still be purged.
func TestPurgeOfADamagedFolder(t *testing.T) {
	opts := testOptions(t)
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	if _, err := d.Start(t.Context(), counter(t, ref, "orphan")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(opts.rootDir(), "io.containerd.metadata.v1.bolt", "meta.db")
	if err := os.WriteFile(database, []byte("this is no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), opts); err == nil {
		t.Error("the damage was not noticed")
	}
	if err := Purge(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	for _, trace := range traces(t, opts) {
		t.Errorf("left: %s", trace)
	}
}

// A crash between creating and starting a task leaves it listed as created, and the next
// start removes it.
func TestCrashBeforeStart(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	task := counter(t, ref, "half")
	img, err := d.image(t.Context(), driver.Task{Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.create(t.Context(), task, img); err != nil {
		t.Fatal(err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) != 1 || all[0].State != driver.StateCreated {
		t.Fatalf("got %+v, %v", all, err)
	}
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 3")
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
}

// After a reboot the containers are known, but none of them runs.
func TestReboot(t *testing.T) {
	opts := testOptions(t)
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	ref, archive := drivertest.Image(t)
	importArchive(t, d, archive)
	img, err := d.image(t.Context(), driver.Task{Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	d.bootID = "an earlier boot"
	if _, err := d.create(t.Context(), counter(t, ref, "before"), img); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = mustOpen(t, opts)
	defer d.Close()
	exit, err := d.Wait(t.Context(), "before")
	if err != nil || !strings.Contains(exit.Reason, "restarted") || exit.Code == 0 {
		t.Errorf("got %+v, %v", exit, err)
	}
	all, err := d.List(t.Context())
	if err != nil || len(all) != 1 || all[0].State != driver.StateExited || !all[0].Exit.At.Equal(exit.At) {
		t.Errorf("got %+v, %v", all, err)
	}
	if err := d.Remove(t.Context(), "before"); err != nil {
		t.Fatal(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{ID: "abc", DataDir: "/data", RunDir: "/run/x", Log: slog.New(slog.DiscardHandler)}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no id":                func(o *Options) { o.ID = "" },
		"an id with a slash":   func(o *Options) { o.ID = "a/b" },
		"a relative folder":    func(o *Options) { o.DataDir = "data" },
		"a long run folder":    func(o *Options) { o.RunDir = "/run/" + strings.Repeat("x", 40) },
		"no logger":            func(o *Options) { o.Log = nil },
		"a relative run place": func(o *Options) { o.RunDir = "run" },
	} {
		bad := good
		change(&bad)
		if _, err := Open(t.Context(), bad); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
