package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/cli/local"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entries are the names in a folder.
func entries(t *testing.T, path string) string {
	t.Helper()
	all, err := os.ReadDir(path)
	must(t, err)
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestFolderIsTheSameOneEveryTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "data")
	first, err := openFolder(path)
	must(t, err)
	if len(first.ID) != 8 || first.ID != strings.ToLower(first.ID) || first.ServerUID == "" || first.Format != folderFormat {
		t.Errorf("a new folder is %+v", first.folderID)
	}
	must(t, first.remember(func(id *folderID) { id.Cluster = "c-1" }))
	first.release()
	again, err := openFolder(path)
	must(t, err)
	defer again.release()
	if again.folderID != first.folderID || again.Cluster != "c-1" {
		t.Errorf("opened again it is %+v, want %+v", again.folderID, first.folderID)
	}
	other, err := openFolder(t.TempDir())
	must(t, err)
	defer other.release()
	if other.ID == again.ID || other.runDir() == again.runDir() {
		t.Error("two folders share what must be apart")
	}
	info, err := os.Stat(filepath.Join(path, "cloud.json"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("cloud.json has mode %v", info.Mode())
	}
}

// A server is started again by its folder alone, as the program says: it is where
// it was and waits as long as it did, until it is told otherwise.
func TestFolderRemembersHowItsServerWasStarted(t *testing.T) {
	path := t.TempDir()
	for _, step := range []struct {
		about    string
		zone     *string
		election time.Duration
		want     planeOptions
	}{
		{"told", new("z3"), 2 * time.Second, planeOptions{zone: "z3", election: 2 * time.Second}},
		{"told nothing", nil, 0, planeOptions{zone: "z3", election: 2 * time.Second}},
		{"told otherwise", new("z4"), time.Second, planeOptions{zone: "z4", election: time.Second}},
		{"told that it has no zone", new(""), 0, planeOptions{election: time.Second}},
		{"told nothing again", nil, 0, planeOptions{election: time.Second}},
	} {
		f, err := openFolder(path)
		must(t, err)
		told := f.asBefore(planeOptions{address: "127.0.0.1:0", election: step.election}, step.zone)
		if told.zone != step.want.zone || told.election != step.want.election {
			t.Errorf("%s: zone %q and %s", step.about, told.zone, told.election)
		}
		must(t, f.startedAs(told))
		if f.Listen != "" {
			t.Errorf("%s: a port that is another one every time is remembered", step.about)
		}
		f.release()
	}
}

func TestFolderIsHeldByOneProcess(t *testing.T) {
	path := t.TempDir()
	f, err := openFolder(path)
	must(t, err)
	must(t, f.announce("127.0.0.1:7700"))
	for name, open := range map[string]func(string) (*folder, error){"open": openFolder, "open existing": openExistingFolder} {
		_, err = open(path)
		held, ok := errors.AsType[*local.AlreadyRunningError](err)
		if !ok || held.PID != os.Getpid() || held.Address != "127.0.0.1:7700" || held.DataDir != path {
			t.Errorf("%s: %v, want AlreadyRunningError of this process", name, err)
		}
	}
	f.release()
	again, err := openExistingFolder(path)
	must(t, err)
	defer again.release()
	if who := readHolder(path); who.Address != "" || who.PID != os.Getpid() {
		t.Errorf("the new holder is said to be %+v", who)
	}
}

// Who waits until a cloud is ready is not told that it runs while another process is
// only starting it, or stopping it.
func TestFolderOfAProcessThatMovesIsWaitedFor(t *testing.T) {
	path := t.TempDir()
	first, err := openFolder(path)
	must(t, err)
	ctx, end := context.WithCancel(t.Context())
	waits := make(chan string)
	attended := local.Process{DataDir: path, Attended: true, Progress: func(doing string) { waits <- doing }}
	open := func(process local.Process) chan error {
		opened := make(chan error, 1)
		go func() {
			f, err := openFolderFor(t.Context(), process)
			if err == nil {
				f.release()
			}
			opened <- err
		}()
		return opened
	}
	runs := func(opened chan error) {
		t.Helper()
		for {
			select {
			case <-waits: // it had looked before
			case err := <-opened:
				if _, ok := errors.AsType[*local.AlreadyRunningError](err); !ok {
					t.Errorf("%v instead of AlreadyRunningError", err)
				}
				return
			}
		}
	}
	runs(open(local.Process{DataDir: path})) // nobody waits for that one
	opened := open(attended)
	if doing := <-waits; doing != fmt.Sprintf("waiting for process %d, which is starting or stopping", os.Getpid()) {
		t.Errorf("it is told to be %s", doing)
	}
	first.settles(ctx, func(string) {})("ready")
	runs(opened)
	runs(open(attended))

	end()
	for !readHolder(path).Moving {
		runtime.Gosched()
	}
	opened = open(attended)
	<-waits
	first.release()
	for {
		select {
		case <-waits:
			continue
		case err := <-opened:
			must(t, err)
		}
		break
	}
}

// A process that was killed does not run any more, though it may hold its folder for a
// moment: who comes next waits for it instead of being told that it runs.
func TestFolderOfAProcessThatIsEndingIsWaitedFor(t *testing.T) {
	path := t.TempDir()
	killed := exec.Command("sleep", "1000")
	must(t, killed.Start())
	defer func() { _ = killed.Wait() }() // until then it is dead, and still there
	if isEnding(killed.Process.Pid) {
		t.Error("a process that runs is said to be ending")
	}
	must(t, killed.Process.Kill())
	for !isEnding(killed.Process.Pid) {
		runtime.Gosched()
	}
	f, err := openFolder(path)
	must(t, err)
	must(t, os.WriteFile(lockPath(path), fmt.Appendf(nil, `{"pid":%d}`, killed.Process.Pid), 0o600))
	time.AfterFunc(50*time.Millisecond, f.release)
	again, err := openFolder(path)
	must(t, err)
	again.release()
}

func TestFolderThatCannotBeUsedIsRefusedAndLetGo(t *testing.T) {
	for name, one := range map[string]struct{ content, want string }{
		"newer":   {`{"format":99,"id":"abcdefgh"}`, "written by a newer version"},
		"damaged": {`{"format":1,"id":`, "is damaged"},
		"empty":   {``, "is damaged"},
		"no id":   {`{"format":1}`, "is damaged"},
		"way out": {`{"format":1,"id":"../../x"}`, "is damaged"},
	} {
		path := t.TempDir()
		must(t, os.WriteFile(filepath.Join(path, "cloud.json"), []byte(one.content), 0o600))
		for range 2 { // the second time shows that the first did not keep the lock
			if _, err := openFolder(path); err == nil || !strings.Contains(err.Error(), one.want) {
				t.Errorf("%s: opened with %v, want %q", name, err, one.want)
			}
		}
		if _, err := openExistingFolder(path); err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: opened with %v, want %q", name, err, one.want)
		}
		if data, _ := os.ReadFile(filepath.Join(path, "cloud.json")); string(data) != one.content {
			t.Errorf("%s: the file was changed to %q", name, data)
		}
	}
}

func TestFolderThatOthersCanWriteIsRefused(t *testing.T) {
	path := t.TempDir()
	must(t, os.Chmod(path, 0o777))
	if _, err := openFolder(path); err == nil || !strings.Contains(err.Error(), "can be written by others") || !strings.Contains(err.Error(), "chmod go-w "+path) {
		t.Errorf("opened with %v", err)
	}
	if got := entries(t, path); got != "" {
		t.Errorf("the folder now has %s", got)
	}
}

func TestFolderThatIsNotOursIsLeftAlone(t *testing.T) {
	path := t.TempDir()
	must(t, os.WriteFile(filepath.Join(path, "thesis.txt"), nil, 0o600))
	if _, err := openExistingFolder(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened with %v, want fs.ErrNotExist", err)
	}
	if got := entries(t, path); got != "thesis.txt" {
		t.Errorf("the folder now has %s", got)
	}
	if _, err := openExistingFolder(filepath.Join(path, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened with %v, want fs.ErrNotExist", err)
	}
}

// What is said of a node when it joins can be repeated; another name or label is
// refused, because it would change nothing.
func TestWishesAreForNewNodes(t *testing.T) {
	f, err := openFolder(t.TempDir())
	must(t, err)
	defer f.release()
	ssd, nvme := map[string]string{"disk": "ssd"}, map[string]string{"disk": "nvme"}
	must(t, f.sameNode(local.Machine{Name: "box", Labels: ssd})) // nobody yet
	must(t, os.MkdirAll(f.sub("agent"), 0o700))
	must(t, f.writeMembership(membership{Servers: []string{"127.0.0.1:1"}, Node: "box-2", Wished: &wishes{Name: "box", Labels: ssd}}))
	for _, one := range []struct {
		said local.Machine
		want string
	}{
		{local.Machine{}, ""},
		{local.Machine{Name: "box", Labels: ssd}, ""},
		{local.Machine{Name: "box-2"}, ""},
		{local.Machine{Name: "other"}, "this machine is node box-2 already, which --name cannot change"},
		{local.Machine{Labels: nvme}, "cloudless node label box-2 KEY=VALUE"},
	} {
		err := f.sameNode(one.said)
		if one.want == "" && err != nil || one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%+v: %v", one.said, err)
		}
	}
	must(t, f.noteRemoved())
	must(t, f.sameNode(local.Machine{Name: "other", Labels: nvme})) // the next node is a new one
}

func TestMembershipIsReadBackOrRefused(t *testing.T) {
	f, err := openFolder(t.TempDir())
	must(t, err)
	defer f.release()
	must(t, os.MkdirAll(f.sub("agent"), 0o700))
	if _, err := f.readMembership(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read before it was written: %v", err)
	}
	want := membership{Servers: []string{"127.0.0.1:7700"}, Node: "n1"}
	must(t, f.writeMembership(want))
	got, err := f.readMembership()
	must(t, err)
	if a, b := mustJSON(t, got), mustJSON(t, want); a != b {
		t.Errorf("read %s, want %s", a, b)
	}
	must(t, f.writeMembership(membership{}))
	if _, err := f.readMembership(); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a membership without servers: %v", err)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	must(t, err)
	return string(data)
}
