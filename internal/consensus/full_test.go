package consensus_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// smallDisk is a file system of so many MiB.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill fills a disk except for so many bytes. free undoes it.
func fill(t *testing.T, dir string, but int64) (free func()) {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-but); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually polls until yes returns true.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); !yes(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: never", what)
		}
	}
}

// labelled is a transaction of a size.
func labelled(n int, label string) *statev1.Transaction {
	var b state.Batch
	b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: fmt.Sprintf("%08d", n), Name: fmt.Sprintf("node-%d", n), Labels: map[string]string{"size": label}}})
	return b.Transaction(time.Unix(1_700_000_000, int64(n)))
}

func TestFullDiskIsRefusedBeforeItDamagesTheLog(t *testing.T) {
	dir := smallDisk(t, "192m")
	o := lone(filepath.Join(dir, "raft"))
	c := open(t, o)
	propose(t, c, 0, 10)
	free := fill(t, dir, 1<<20)
	var full *consensus.FullError
	eventually(t, "a proposal is refused", func() bool {
		_, err := c.Propose(t.Context(), numbered(10))
		var there *state.ExistsError // it came before the check of the disk
		if err != nil && !errors.As(err, &full) && !errors.As(err, &there) {
			t.Fatal(err)
		}
		return full != nil
	})
	if text := full.Error(); !strings.Contains(text, "no space left on the disk") || !strings.Contains(text, o.Dir) || !strings.Contains(text, "nothing was changed") {
		t.Errorf("refused with %q", text)
	}
	// Reads still work.
	snapshot, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := numbers(snapshot)
	if !slices.Equal(known, upTo(10)) && !slices.Equal(known, upTo(11)) { // one may have come before the check of the disk
		t.Errorf("read %v", known)
	}
	free()
	eventually(t, "with room again, a proposal is accepted", func() bool {
		_, err := c.Propose(t.Context(), numbered(20))
		return err == nil
	})
	closed(t, c)
	// A restart on a full disk loses nothing either.
	refill := fill(t, dir, 0)
	o.Store = state.New()
	c = open(t, o)
	if got := numbers(c.Store().Snapshot()); !slices.Equal(got, append(known, 20)) {
		t.Errorf("after a restart there are %v", got)
	}
	if _, err := c.Propose(t.Context(), numbered(21)); !errors.As(err, &full) {
		t.Errorf("proposed on a full disk: %v", err)
	}
	refill()
}

// A write that still meets a full disk must not leave a server that looks alive: it stops
// and says why, and the next start has everything that was acknowledged.
func TestServerWithAnUnwritableLogStops(t *testing.T) {
	dir := smallDisk(t, "64m")
	o := lone(filepath.Join(dir, "raft"))
	c := open(t, o)
	written := 0
	free := fill(t, dir, 0)
	for n := range 64 {
		if err := c.ApplyRaw(labelled(n, strings.Repeat("a", 1<<20))); err != nil {
			break
		}
		written++
	}
	select {
	case <-c.Done():
	case <-t.Context().Done():
	}
	if err := c.Err(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "start it again") {
		t.Errorf("stopped with %v", err)
	}
	free()
	o.Store = state.New()
	again := open(t, o)
	if got := again.Store().Snapshot().Count(state.KindNode); got != written {
		t.Errorf("%d of %d acknowledged changes are there", got, written)
	}
	if err := again.ApplyRaw(labelled(100, "small")); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
