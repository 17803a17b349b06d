package names

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// etagOf returns the ETag of the object "cat", which tells a copy from what was there before.
func etagOf(t *testing.T, n *Names) string {
	t.Helper()
	v := n.View()
	defer v.Close()
	version, err := v.Current("photos", "cat")
	if err != nil {
		t.Fatal(err)
	}
	return version.GetEtag()
}

func putCat(t *testing.T, n *Names, index uint64, etag string) {
	t.Helper()
	id := []byte(fmt.Sprintf("version %08d", index))
	operation := putOf(bucketWith(""), "cat", &objectv1.Version{Id: id, Etag: etag}, 1)
	_, err := n.Apply([]Entry{{index, encode(t, &objectv1.Entry{Operations: []*objectv1.Operation{operation}})}})
	if err != nil {
		t.Fatal(err)
	}
}

func openOn(t *testing.T, files vfs.FS, dir string) *Names {
	t.Helper()
	n, err := Open(Options{Dir: dir, files: files, Cache: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func closeNames(t *testing.T, n *Names) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// TestCrashDuringRestoreLeavesTheOldOrTheNew crashes before every call of the file system that a restore makes.
func TestCrashDuringRestoreLeavesTheOldOrTheNew(t *testing.T) {
	files := vfs.NewCrashableMem()
	source := openOn(t, files, "/source")
	putCat(t, source, 7, "new")
	if _, err := source.Checkpoint("/copy"); err != nil {
		t.Fatal(err)
	}
	closeNames(t, source)

	var mu sync.Mutex
	var crashed []*vfs.MemFS
	armed := false
	hook := errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if !armed || op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		for _, percent := range []int{0, 50, 100} {
			rng := rand.New(rand.NewPCG(uint64(len(crashed)), 0))
			crashed = append(crashed, files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
		}
		return nil
	})
	n := openOn(t, errorfs.Wrap(files, hook), "/names")
	putCat(t, n, 3, "old")
	if _, err := n.Checkpoint("/saved"); err != nil { // the old state is on the disk
		t.Fatal(err)
	}
	arm := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		armed = on
	}
	arm(true)
	if err := n.Restore("/copy"); err != nil {
		t.Fatal(err)
	}
	arm(false)
	if etag := etagOf(t, n); etag != "new" {
		t.Errorf("after the restore, the object is %q", etag)
	}
	closeNames(t, n)

	seen := map[string]int{}
	for _, files := range crashed {
		after := openOn(t, files, "/names")
		etag := etagOf(t, after)
		seen[etag]++
		if want := map[string]uint64{"old": 3, "new": 7}[etag]; after.Applied() != want {
			t.Errorf("after a crash, the object is %q and the index %d", etag, after.Applied())
		}
		putCat(t, after, 8, "later")
		closeNames(t, after)
	}
	if seen["old"] == 0 || seen["new"] == 0 {
		t.Errorf("the crashes left %v", seen)
	}
}

// TestKilledProcessLosesNothingThatTheLogHas copies the files of a running store, as kill -9 leaves them.
func TestKilledProcessLosesNothingThatTheLogHas(t *testing.T) {
	dir := t.TempDir()
	n := openOn(t, vfs.Default, filepath.Join(dir, "names"))
	var log []Entry
	for i := range uint64(200) {
		version := &objectv1.Version{Id: []byte(fmt.Sprintf("version %08d", i)), Etag: fmt.Sprint(i)}
		operation := putOf(bucketWith("enabled"), "cat", version, 1)
		log = append(log, Entry{i + 1, encode(t, &objectv1.Entry{Operations: []*objectv1.Operation{operation}})})
		if _, err := n.Apply(log[i:]); err != nil {
			t.Fatal(err)
		}
		if i == 100 {
			if index, err := n.Checkpoint(filepath.Join(dir, "copy")); err != nil || index != 101 {
				t.Fatalf("the copy has index %d (%v)", index, err)
			}
		}
	}
	if _, err := vfs.Clone(vfs.Default, vfs.Default, filepath.Join(dir, "names"), filepath.Join(dir, "killed")); err != nil {
		t.Fatal(err)
	}
	closeNames(t, n)
	killed := openOn(t, vfs.Default, filepath.Join(dir, "killed"))
	defer closeNames(t, killed)
	if killed.Applied() != 101 {
		t.Errorf("without a flush since entry 101, the index is %d", killed.Applied())
	}
	results, err := killed.Apply(log)
	if err != nil || results[100] != nil || results[101] == nil {
		t.Fatalf("the log was not replayed from entry 102 on: %v", err)
	}
	if etag := etagOf(t, killed); etag != "199" {
		t.Errorf("the newest version is %q", etag)
	}
}

func TestRestoreFromDamagedCopyChangesNothing(t *testing.T) {
	files := vfs.NewMem()
	n := openOn(t, files, "/names")
	defer closeNames(t, n)
	putCat(t, n, 3, "old")
	if _, err := n.Checkpoint("/copy"); err != nil {
		t.Fatal(err)
	}
	all, err := files.List("/copy")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if strings.HasPrefix(name, "MANIFEST") {
			file, err := files.Create("/copy/"+name, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	putCat(t, n, 4, "newer")
	if err := n.Restore("/copy"); err == nil || !strings.Contains(err.Error(), "/copy") {
		t.Errorf("restoring a damaged copy says %v", err)
	}
	if err := n.Restore("/missing"); err == nil {
		t.Error("a missing copy was restored")
	}
	putCat(t, n, 5, "newest")
	if etag := etagOf(t, n); etag != "newest" {
		t.Errorf("the object is %q", etag)
	}
}

// TestFullDiskIsReported proves that nothing waits for a disk that stays full.
func TestFullDiskIsReported(t *testing.T) {
	full := errors.New("no space left on device")
	disk := new(errorfs.Toggle)
	disk.Injector = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return full
		}
		return nil
	})
	n := openOn(t, errorfs.Wrap(vfs.NewMem(), disk), "/names")
	putCat(t, n, 3, "old")
	disk.On()
	if _, err := n.Checkpoint("/copy"); !errors.Is(err, full) {
		t.Errorf("a checkpoint on a full disk says %v", err)
	}
	disk.Off()
	_, err := n.Checkpoint("/copy")
	for errors.Is(err, full) { // the attempt that had begun before there was space
		_, err = n.Checkpoint("/copy")
	}
	if err != nil {
		t.Errorf("a checkpoint after the disk was full says %v", err)
	}
	closeNames(t, n)
}
