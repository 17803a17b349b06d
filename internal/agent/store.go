package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/mesh"
)

// record is what the agent must remember of a replica to resume after a crash.
type record struct {
	Assignment *v1.Assignment
	Status     *v1.ReplicaStatus // as last reported
	recordState
}

// recordState is the part of a record that only the agent uses.
type recordState struct {
	Removed  bool      `json:"removed,omitempty"`  // no longer wanted; the rest must be cleaned up
	Boot     string    `json:"boot"`               // the boot in which this was written
	Attempt  int       `json:"attempt"`            // the current attempt, from 1
	Started  bool      `json:"started,omitempty"`  // the current attempt was started
	Failures int       `json:"failures,omitempty"` // pauses in a row
	Resume   time.Time `json:"resume,omitzero"`    // when the current pause ends
	GPUs     []string  `json:"gpus,omitempty"`     // ids of its last GPUs
	Evicted  string    `json:"evicted,omitempty"`  // why it was evicted, until it is started again
}

func (r *record) uid() string { return r.Assignment.GetReplica().GetMetadata().GetUid() }

// store keeps one file per replica and one with the epoch. Files are replaced atomically.
// They contain environments, so only their owner may read them.
type store struct{ dir string }

// storeDir is the store's folder in the data folder, replicasDir that of the records in the
// store.
const (
	storeDir    = "agent"
	replicasDir = "replicas"
)

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(filepath.Join(dir, replicasDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's folder: %w", err)
	}
	return &store{dir: dir}, nil
}

// meshKey returns the node's key in the mesh, and makes one if there is none.
func (s *store) meshKey() (mesh.PrivateKey, error) {
	data, err := os.ReadFile(s.meshKeyPath())
	if err == nil {
		return mesh.ParsePrivateKey(data)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return mesh.PrivateKey{}, fmt.Errorf("read the key of the mesh: %w", err)
	}
	return s.newMeshKey()
}

// newMeshKey makes another key for the mesh.
func (s *store) newMeshKey() (mesh.PrivateKey, error) {
	key, err := mesh.NewPrivateKey()
	if err == nil {
		err = atomicfile.Replace(s.meshKeyPath(), key.Bytes())
	}
	if err != nil {
		return mesh.PrivateKey{}, fmt.Errorf("make a key for the mesh: %w", err)
	}
	return key, nil
}

func (s *store) meshKeyPath() string { return filepath.Join(s.dir, "mesh.key") }

func (s *store) path(uid string) string { return filepath.Join(s.dir, replicasDir, uid) }

// load reads every record. It fails if one is damaged: an agent that forgot a replica could
// start it a second time.
func (s *store) load() ([]*record, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, replicasDir))
	if err != nil {
		return nil, fmt.Errorf("read assignments: %w", err)
	}
	var records []*record
	for _, entry := range entries {
		path := s.path(entry.Name())
		if strings.HasPrefix(entry.Name(), ".") { // a write that a crash interrupted
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove an unfinished file: %w", err)
			}
			continue
		}
		rec, err := s.read(entry.Name())
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
}

// read returns os.ErrNotExist if there is no such record.
func (s *store) read(uid string) (*record, error) {
	path := s.path(uid)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read assignments: %w", err)
	}
	rec, err := decodeRecord(data)
	if err == nil && rec.uid() != uid {
		err = fmt.Errorf("it is about replica %q", rec.uid())
	}
	if err != nil {
		return nil, damaged(path, err)
	}
	return rec, nil
}

func damaged(path string, err error) error {
	return fmt.Errorf("the agent's file %s is damaged: %w; nothing was stopped or started: "+
		"restore the file, or move it away: a server then assigns the replica again, and the agent reattaches to its running task", path, err)
}

func (s *store) save(rec *record) error {
	data, err := encodeRecord(rec)
	if err != nil {
		return fmt.Errorf("record replica %s: %w", rec.uid(), err)
	}
	if err := atomicfile.Replace(s.path(rec.uid()), data); err != nil {
		return fmt.Errorf("record replica %s: %w", rec.uid(), err)
	}
	return nil
}

func (s *store) remove(uid string) error {
	if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget replica %s: %w", uid, err)
	}
	return atomicfile.SyncDir(filepath.Dir(s.path(uid)))
}

func (s *store) epochPath() string { return filepath.Join(s.dir, "epoch") }

// epoch is that of the newest assignments ever received, 0 if there were none.
func (s *store) epoch() (uint64, error) {
	data, err := os.ReadFile(s.epochPath())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the epoch: %w", err)
	}
	var epoch uint64
	if err := unseal(data, &epoch); err != nil {
		return 0, damaged(s.epochPath(), err)
	}
	return epoch, nil
}

func (s *store) saveEpoch(epoch uint64) error {
	data, err := seal(epoch)
	if err == nil {
		err = atomicfile.Replace(s.epochPath(), data)
	}
	if err != nil {
		return fmt.Errorf("record the epoch: %w", err)
	}
	return nil
}

// recordFile is a record as JSON. It embeds the API's messages as protobuf, so that an
// older version preserves fields of a newer one.
type recordFile struct {
	Assignment []byte `json:"assignment"`
	Status     []byte `json:"status"`
	recordState
}

func encodeRecord(rec *record) ([]byte, error) {
	file := recordFile{recordState: rec.recordState}
	var err error
	if file.Assignment, err = proto.Marshal(rec.Assignment); err != nil {
		return nil, err
	}
	if file.Status, err = proto.Marshal(rec.Status); err != nil {
		return nil, err
	}
	return seal(file)
}

func decodeRecord(data []byte) (*record, error) {
	var file recordFile
	if err := unseal(data, &file); err != nil {
		return nil, err
	}
	rec := &record{Assignment: &v1.Assignment{}, Status: &v1.ReplicaStatus{}, recordState: file.recordState}
	if err := proto.Unmarshal(file.Assignment, rec.Assignment); err != nil {
		return nil, fmt.Errorf("assignment: %w", err)
	}
	if err := proto.Unmarshal(file.Status, rec.Status); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if !uidPattern.MatchString(rec.uid()) || rec.Attempt < 1 {
		return nil, fmt.Errorf("replica %q, attempt %d: there is no such thing", rec.uid(), rec.Attempt)
	}
	return rec, nil
}

// A file is a line with the format and a checksum, then JSON.
const header = "cloudless-agent 1 %08x\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func seal(value any) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, header, crc32.Checksum(body, castagnoli)), body...), nil
}

func unseal(data []byte, value any) error {
	line, body, found := bytes.Cut(data, []byte{'\n'})
	if !found || !bytes.HasPrefix(line, []byte("cloudless-agent ")) {
		return errors.New("it does not begin as one of the agent's files")
	}
	if want := fmt.Appendf(nil, header, crc32.Checksum(body, castagnoli)); !bytes.Equal(append(line, '\n'), want) {
		return errors.New("its format or its checksum is wrong")
	}
	return json.Unmarshal(body, value)
}
