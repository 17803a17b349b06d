package datadir

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

	"github.com/cloudless/cloudless/internal/must"
)

func TestFolderIsTheSameOneEveryTime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "data")
	first, err := Open(path)
	must.Succeed(t, err)
	if len(first.ID) != 8 || first.ID != strings.ToLower(first.ID) || first.ServerUID == "" || first.Format != format {
		t.Errorf("a new folder is %+v", first.Record)
	}
	must.Succeed(t, first.Update(func(id *Record) { id.Cluster = "c-1" }))
	first.Release()
	again, err := Open(path)
	must.Succeed(t, err)
	defer again.Release()
	if again.Record != first.Record || again.Cluster != "c-1" {
		t.Errorf("opened again it is %+v, want %+v", again.Record, first.Record)
	}
	other, err := Open(t.TempDir())
	must.Succeed(t, err)
	defer other.Release()
	if other.ID == again.ID || other.RunDir() == again.RunDir() {
		t.Error("two folders share what must be apart")
	}
	info, err := os.Stat(filepath.Join(path, "cloud.json"))
	must.Succeed(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("cloud.json has mode %v", info.Mode())
	}
}

func TestFolderIsHeldByOneProcess(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	f, err := Open(path)
	must.Succeed(t, err)
	must.Succeed(t, f.UpdateHolder(func(h *Holder) { h.Address = "127.0.0.1:7700" }))
	for name, open := range map[string]func(string) (*Folder, error){"open": Open, "open existing": OpenExisting} {
		_, err = open(path)
		held, ok := errors.AsType[*AlreadyRunningError](err)
		if !ok || held.PID != os.Getpid() || held.Address != "127.0.0.1:7700" || held.DataDir != path {
			t.Errorf("%s: %v, want AlreadyRunningError of this process", name, err)
		}
	}
	f.Release()
	again, err := OpenExisting(path)
	must.Succeed(t, err)
	defer again.Release()
	if who := ReadHolder(path); who.Address != "" || who.PID != os.Getpid() {
		t.Errorf("the new holder is said to be %+v", who)
	}
}

// OpenWaiting waits while another process is starting or stopping.
func TestOpenWaitsForAProcessThatStartsOrStops(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	first, err := Open(path)
	must.Succeed(t, err)
	ctx, end := context.WithCancel(t.Context())
	waits := make(chan string)
	open := func() chan error {
		opened := make(chan error, 1)
		go func() {
			f, err := OpenWaiting(t.Context(), path, func(doing string) { waits <- doing })
			if err == nil {
				f.Release()
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
				if _, ok := errors.AsType[*AlreadyRunningError](err); !ok {
					t.Errorf("%v instead of AlreadyRunningError", err)
				}
				return
			}
		}
	}
	opened := open()
	if doing := <-waits; doing != fmt.Sprintf("waiting for process %d, which is starting or stopping", os.Getpid()) {
		t.Errorf("it is told to be %s", doing)
	}
	must.Succeed(t, first.MarkStarted(ctx))
	runs(opened)
	runs(open())

	end()
	for !ReadHolder(path).Moving {
		runtime.Gosched()
	}
	opened = open()
	<-waits
	first.Release()
	for {
		select {
		case <-waits:
			continue
		case err := <-opened:
			must.Succeed(t, err)
		}
		break
	}
}

// A killed process may hold its folder for a moment: the next process waits for it.
func TestOpenWaitsForAProcessThatIsEnding(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	killed := exec.Command("sleep", "1000")
	must.Succeed(t, killed.Start())
	defer func() { _ = killed.Wait() }() // until then it is dead, and still there
	if isEnding(killed.Process.Pid) {
		t.Error("a process that runs is said to be ending")
	}
	must.Succeed(t, killed.Process.Kill())
	for !isEnding(killed.Process.Pid) {
		runtime.Gosched()
	}
	f, err := Open(path)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(lockPath(path), fmt.Appendf(nil, `{"pid":%d}`, killed.Process.Pid), 0o600))
	time.AfterFunc(50*time.Millisecond, f.Release)
	again, err := Open(path)
	must.Succeed(t, err)
	again.Release()
}

func TestUnusableFolderIsRefusedAndReleased(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct{ content, want string }{
		"newer":   {`{"format":99,"id":"abcdefgh"}`, "written by a newer version"},
		"damaged": {`{"format":1,"id":`, "is damaged"},
		"empty":   {``, "is damaged"},
		"no id":   {`{"format":1}`, "is damaged"},
		"way out": {`{"format":1,"id":"../../x"}`, "is damaged"},
	} {
		path := t.TempDir()
		must.Succeed(t, os.WriteFile(filepath.Join(path, "cloud.json"), []byte(one.content), 0o600))
		for range 2 { // the second time shows that the first did not keep the lock
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), one.want) {
				t.Errorf("%s: opened with %v, want %q", name, err, one.want)
			}
		}
		if _, err := OpenExisting(path); err == nil || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%s: opened with %v, want %q", name, err, one.want)
		}
		if data, _ := os.ReadFile(filepath.Join(path, "cloud.json")); string(data) != one.content {
			t.Errorf("%s: the file was changed to %q", name, data)
		}
	}
}

func TestFolderThatOthersCanWriteIsRefused(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	must.Succeed(t, os.Chmod(path, 0o777))
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "can be written by others") || !strings.Contains(err.Error(), "chmod go-w "+path) {
		t.Errorf("opened with %v", err)
	}
	if got := must.List(t, path); got != "" {
		t.Errorf("the folder now has %s", got)
	}
}

func TestForeignFolderIsNotTouched(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(path, "thesis.txt"), nil, 0o600))
	if _, err := OpenExisting(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened with %v, want fs.ErrNotExist", err)
	}
	if got := must.List(t, path); got != "thesis.txt" {
		t.Errorf("the folder now has %s", got)
	}
	if _, err := OpenExisting(filepath.Join(path, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened with %v, want fs.ErrNotExist", err)
	}
}

func TestFolderStaysWithItsCluster(t *testing.T) {
	t.Parallel()
	const one, another = "11111111-1111-7111-8111-111111111111", "22222222-2222-7222-8222-222222222222"
	f, err := Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, f.BindCluster(one))
	must.Succeed(t, f.BindCluster(one))
	if err := f.BindCluster(another); err == nil || !strings.Contains(err.Error(), "is of cluster "+one) {
		t.Errorf("given to another cluster: %v", err)
	}
	if id, err := ReadRecord(f.Path()); err != nil || id.Cluster != one {
		t.Errorf("the folder says %+v, %v", id, err)
	}
}

// The same name and labels may be given again. Others are refused, because they would have no effect.
func TestNameAndLabelsAreForNewNodes(t *testing.T) {
	t.Parallel()
	f, err := Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	ssd, nvme := map[string]string{"disk": "ssd"}, map[string]string{"disk": "nvme"}
	must.Succeed(t, f.CheckSameNode(NodeRequest{Name: "box", Labels: ssd})) // no node yet
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	must.Succeed(t, f.WriteMembership(Membership{Servers: []string{"127.0.0.1:1"}, Node: "box-2", Requested: &NodeRequest{Name: "box", Labels: ssd}}))
	for _, one := range []struct {
		said NodeRequest
		want string
	}{
		{NodeRequest{}, ""},
		{NodeRequest{Name: "box", Labels: ssd}, ""},
		{NodeRequest{Name: "box-2"}, ""},
		{NodeRequest{Name: "other"}, "this machine is node box-2 already, which --name cannot change"},
		{NodeRequest{Labels: nvme}, "cloudless node label box-2 KEY=VALUE"},
	} {
		err := f.CheckSameNode(one.said)
		if one.want == "" && err != nil || one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%+v: %v", one.said, err)
		}
	}
	must.Succeed(t, f.MarkNodeRemoved())
	must.Succeed(t, f.CheckSameNode(NodeRequest{Name: "other", Labels: nvme})) // the next node is a new one
}

func TestMembershipIsReadBackOrRefused(t *testing.T) {
	t.Parallel()
	f, err := Open(t.TempDir())
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	if _, err := f.ReadMembership(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read before it was written: %v", err)
	}
	want := Membership{Servers: []string{"127.0.0.1:7700"}, Node: "n1"}
	must.Succeed(t, f.WriteMembership(want))
	got, err := f.ReadMembership()
	must.Succeed(t, err)
	if a, b := mustJSON(t, got), mustJSON(t, want); a != b {
		t.Errorf("read %s, want %s", a, b)
	}
	must.Succeed(t, f.WriteMembership(Membership{}))
	if _, err := f.ReadMembership(); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a membership without servers: %v", err)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	must.Succeed(t, err)
	return string(data)
}
