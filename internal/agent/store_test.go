package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func sampleRecord() *record {
	return &record{
		Assignment: assignment("a"),
		Status:     &v1.ReplicaStatus{Phase: "backoff", Restarts: 3, LastExit: &v1.Exit{Code: 1}},
		recordState: recordState{
			Boot: "boot-1", Attempt: 4, Started: true, Failures: 2, Resume: time.Unix(1_700_000_000, 5).UTC(), GPUs: []string{"0000:01:00.0"},
		},
	}
}

func TestStoreKeepsRecords(t *testing.T) {
	s, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	want := sampleRecord()
	if err := s.save(want); err != nil {
		t.Fatal(err)
	}
	// A write that a crash interrupted is not a record.
	if err := os.WriteFile(filepath.Join(s.dir, replicasDir, ".new-1"), []byte("cloud"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.load()
	if err != nil || len(got) != 1 {
		t.Fatalf("load: %v, %v", got, err)
	}
	if !proto.Equal(got[0].Assignment, want.Assignment) || !proto.Equal(got[0].Status, want.Status) || !reflect.DeepEqual(got[0].recordState, want.recordState) {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
	info, err := os.Stat(s.path("a"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("an environment may be read by others: %v, %v", info.Mode(), err)
	}
	if err := s.remove("a"); err != nil {
		t.Fatal(err)
	}
	if err := s.remove("a"); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if got, err := s.load(); err != nil || len(got) != 0 {
		t.Errorf("after removal: %v, %v", got, err)
	}
}

func TestRecordUnderAnotherNameIsRefused(t *testing.T) {
	s, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.save(sampleRecord()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.path("a"), s.path("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(); err == nil {
		t.Error("a record of another replica was taken")
	}
}

func FuzzDecodeRecord(f *testing.F) {
	whole, err := encodeRecord(sampleRecord())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("cloudless-agent 1 00000000\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := decodeRecord(data)
		if err != nil {
			return
		}
		again, err := encodeRecord(rec)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := decodeRecord(again); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
