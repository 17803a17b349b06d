package consensus_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// written returns a closed folder with ten writes in its log and nothing else.
func written(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c := open(t, lone(dir))
	propose(t, c, 0, 10)
	closed(t, c)
	return dir
}

// only returns the one file that matches a pattern.
func only(t *testing.T, elem ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(elem...))
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	return found[0]
}

// change rewrites a file.
func change(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// end returns where the written part of a segment ends.
func end(segment []byte) int { return len(bytes.TrimRight(segment, "\x00")) }

// A crash in the middle of a write leaves the beginning of a batch that was never acknowledged, in any state.
// Everything acknowledged must be there, and writing must go on.
func TestTornEndIsDropped(t *testing.T) {
	batch := bytes.Repeat([]byte{1, 0, 0, 0, 40, 0, 0, 0, 'x', 'y', 'z', 'x', 'y', 'z', 'x', 'y'}, 20)
	commit := []byte{3, 0, 0, 0, 1, 2, 3, 4}
	for name, torn := range map[string][]byte{
		"half a frame header":  {1, 0, 0},
		"half an entry":        batch[:30],
		"entries, no commit":   batch,
		"commit over garbage":  append(bytes.Clone(batch[:48]), commit...),
		"garbage":              bytes.Repeat([]byte{0xa5}, 500),
		"zeros, then a commit": append(make([]byte, 64), commit...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte {
				at := (end(data) + 7) / 8 * 8
				copy(data[at:], torn)
				return data
			})
			c := open(t, lone(dir))
			if !slices.Equal(numbers(c.Stale()), upTo(10)) {
				t.Fatalf("got %v", numbers(c.Stale()))
			}
			propose(t, c, 10, 20)
			closed(t, c)
			c = open(t, lone(dir))
			if !slices.Equal(numbers(c.Stale()), upTo(20)) {
				t.Fatalf("got %v after writing on", numbers(c.Stale()))
			}
		})
	}
}

// The file is cut inside its last batch, which holds no proposal: the election of the reopened server.
func TestUnfinishedLastBatchIsDropped(t *testing.T) {
	dir := written(t)
	closed(t, open(t, lone(dir)))
	change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte { return data[:end(data)-3] })
	c := open(t, lone(dir))
	if !slices.Equal(numbers(c.Stale()), upTo(10)) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
}

// Acknowledged data is changed. The server must start neither without it nor with something else.
func TestDamageIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"an entry", func(t *testing.T, dir string) {
			change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte {
				data[bytes.Index(data, []byte("node-4"))] ^= 1
				return data
			})
		}, "the log is damaged: 00000000000000000001-0000000000000000.wal has a wrong checksum for bytes"},
		{"a frame", func(t *testing.T, dir string) {
			change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte {
				at := bytes.Index(data, []byte("node-4")) / 8 * 8
				for data[at] != 3 || data[at+1] != 0 { // the commit after it
					at += 8
				}
				copy(data[at:], "garbage!")
				return data
			})
		}, "after damage from byte"},
		{"zeros in the middle", func(t *testing.T, dir string) {
			change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte {
				clear(data[end(data)/4/8*8 : end(data)/2])
				return data
			})
		}, "the log is damaged"},
		{"the header", func(t *testing.T, dir string) {
			change(t, only(t, dir, "log", "*.wal"), func(data []byte) []byte { data[9] ^= 1; return data })
		}, "the log is damaged"},
		{"a foreign file", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "log", "copy.wal"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "copy.wal is no name of a segment"},
		{"the snapshot", func(t *testing.T, dir string) {
			snapshotted(t, dir)
			change(t, only(t, dir, "snapshots", "*", "state.bin"), func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
		}, "cannot be used: CRC mismatch; if there are other servers, remove this one there"},
		{"the snapshot is gone", func(t *testing.T, dir string) {
			snapshotted(t, dir)
			if err := os.RemoveAll(filepath.Dir(only(t, dir, "snapshots", "*", "state.bin"))); err != nil {
				t.Fatal(err)
			}
		}, "are missing between the newest snapshot and the log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := written(t)
			c.damage(t, dir)
			opened, err := consensus.Open(t.Context(), lone(dir))
			if err == nil {
				closed(t, opened)
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// snapshotted moves nearly everything in a folder from the log into a snapshot.
func snapshotted(t *testing.T, dir string) {
	t.Helper()
	o := lone(dir)
	o.SnapshotThreshold = 1
	c := open(t, o)
	propose(t, c, 10, 20)
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed(t, c)
}

// Single bits are flipped in the first half of a log: each flip must be found.
func TestEveryByteOfTheLogIsChecked(t *testing.T) {
	data, err := os.ReadFile(only(t, written(t), "log", "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	data = data[:end(data)+1024]
	if reason := consensus.CheckSegment(data, true); reason != "" {
		t.Fatalf("refused as it was written: it %s", reason)
	}
	if reason := consensus.CheckSegment(data, false); !strings.Contains(reason, "without being sealed") {
		t.Fatalf("not the newest segment, and not sealed: %q", reason)
	}
	for i := range end(data) / 2 {
		for bit := range 8 {
			damaged := bytes.Clone(data)
			damaged[i] ^= 1 << bit
			if consensus.CheckSegment(damaged, true) == "" {
				t.Errorf("bit %d of byte %d was changed unnoticed", bit, i)
			}
		}
	}
}

func FuzzCheckSegment(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0, 255, 255, 255, 255}, 10), true)
	f.Add(bytes.Repeat([]byte{3, 0, 0, 0, 0, 0, 0, 0}, 10), false)
	f.Fuzz(func(_ *testing.T, data []byte, newest bool) {
		consensus.CheckSegment(data, newest) // must not panic on anything
	})
}

// TestSealedSegmentsAreChecked fills several segments and damages an old one.
func TestSealedSegmentsAreChecked(t *testing.T) {
	dir := t.TempDir()
	c := open(t, lone(dir))
	for n := range 10 {
		tx := numbered(n)
		tx.GetChanges()[0].GetPut().GetNode().Metadata.Annotations = map[string]string{"a": strings.Repeat("x", 4<<20)}
		if _, err := c.Propose(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, c)
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.wal"))
	if err != nil || len(segments) < 3 {
		t.Fatalf("got %v, %v", segments, err)
	}
	o := lone(dir)
	c = open(t, o)
	if !slices.Equal(numbers(c.Stale()), upTo(10)) {
		t.Fatalf("got %v", numbers(c.Stale()))
	}
	closed(t, c)
	change(t, segments[0], func(data []byte) []byte { data[1<<20] ^= 1; return data })
	o.Store = state.New()
	if _, err := consensus.Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has a wrong checksum") {
		t.Fatalf("got %v", err)
	}
}
