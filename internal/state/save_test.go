package state_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protodelim"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

func sample(t testing.TB) *state.Store {
	store := state.New()
	create(t, store, 3,
		&v1.Cluster{Metadata: &v1.Metadata{Uid: "c1", Name: "home"}},
		workload("u1", "web"), workload("u2", "api"),
		&statev1.Credential{Metadata: &v1.Metadata{Uid: "t1"}, Hash: []byte{1, 2, 3}})
	return store
}

// Restore refuses a snapshot with any changed byte, cut off anywhere, or with bytes after its end. The state does not
// change.
func TestDamageIsRefused(t *testing.T) {
	store := sample(t)
	saved := save(t, store.Snapshot())
	target := state.New()
	create(t, target, 9, workload("u9", "kept"))
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := target.Restore(bytes.NewReader(damaged)); err == nil {
			t.Fatalf("%s: accepted", what)
		}
	}
	for i := range saved {
		damaged := bytes.Clone(saved)
		damaged[i] ^= 1 << (i % 8)
		refuse("flipped bit", damaged)
		refuse("cut off", saved[:i])
	}
	refuse("extended", append(bytes.Clone(saved), 0))
	if target.Snapshot().Workload("u9") == nil || target.Snapshot().Index() != 9 {
		t.Fatal("the state changed")
	}
	if err := target.Restore(iotest.OneByteReader(bytes.NewReader(saved))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(save(t, target.Snapshot()), saved) {
		t.Fatal("what was restored is saved differently")
	}
}

func TestRestoreSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name  string
		saved func(t *testing.T) []byte
		want  string
	}{
		{"nothing", func(*testing.T) []byte { return nil }, "read the header of the snapshot: the snapshot is cut off"},
		{"half", func(t *testing.T) []byte { s := save(t, sample(t).Snapshot()); return s[:len(s)/2] }, "the snapshot is cut off"},
		{"no sum", func(t *testing.T) []byte { s := save(t, sample(t).Snapshot()); return s[:len(s)-4] }, "cut off before its checksum"},
		{"newer format", func(t *testing.T) []byte { return delimited(t, &statev1.SnapshotHeader{Format: 99}) }, "format 99, this release reads format 1: use the release that wrote it"},
		{
			"newer kind", func(t *testing.T) []byte {
				return append(delimited(t, &statev1.SnapshotHeader{Format: 1, Objects: 1}), 3, 0xfa, 0x3f, 0) // field 1023
			},
			"object 1 of 1: the snapshot holds a kind of object that this release does not know",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := state.New().Restore(bytes.NewReader(c.saved(t)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func delimited(t *testing.T, header *statev1.SnapshotHeader) []byte {
	var out bytes.Buffer
	if _, err := protodelim.MarshalTo(&out, header); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestSaveReportsAFullDisk(t *testing.T) {
	full := errors.New("no space left on device")
	if err := sample(t).Snapshot().Save(failing{full}); !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

var _ io.Writer = failing{}

// FuzzRestore checks that every snapshot that Restore accepts can be saved and restored again.
func FuzzRestore(f *testing.F) {
	saved := save(f, sample(f).Snapshot())
	f.Add(saved)
	f.Add(saved[:len(saved)/2])
	f.Add(save(f, state.New().Snapshot()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, input []byte) {
		store := state.New()
		if err := store.Restore(bytes.NewReader(input)); err != nil {
			return
		}
		if err := state.New().Restore(bytes.NewReader(save(t, store.Snapshot()))); err != nil {
			t.Fatal(err)
		}
	})
}
