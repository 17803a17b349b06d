package consensus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// A snapshot of a machine on disk contains only a mark: how far the machine's own files are. So nothing is written twice,
// however large the machine is. When another server needs the snapshot, it is replaced by a fresh copy of the files. The
// copy may contain more entries than the snapshot should; the other server's machine skips those.
//
// A received snapshot contains the files until raft has taken two of its own.
const (
	markMagic  = "cloudless mark 1"
	filesMagic = "cloudless file 1"
	headerSize = len(markMagic) + 8
)

// onDisk is the content of a machine on disk.
type onDisk struct {
	machine DiskMachine
	// copies is the folder for copies that are sent or received.
	copies string
	logger *slog.Logger
}

// save writes a mark, when the machine's files are durable.
func (d onDisk) save() func(io.Writer) error {
	index := d.machine.Applied()
	return func(to io.Writer) error {
		if err := d.machine.Flush(); err != nil {
			return err
		}
		_, err := to.Write(header(markMagic, index))
		return err
	}
}

func header(magic string, index uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(magic), index)
}

// readHeader reports whether files follow, and how far they, or those of the machine, are.
func readHeader(from io.Reader) (files bool, index uint64, err error) {
	data := make([]byte, headerSize)
	if _, err := io.ReadFull(from, data); err != nil {
		return false, 0, fmt.Errorf("read its beginning: %w", err)
	}
	index = binary.BigEndian.Uint64(data[len(markMagic):])
	switch string(data[:len(markMagic)]) {
	case markMagic:
		return false, index, nil
	case filesMagic:
		return true, index, nil
	}
	return false, 0, errors.New("it is of an unknown kind: update this server")
}

// restore brings the machine as far as a snapshot, unless it is there already.
func (d onDisk) restore(from io.Reader) error {
	if err := d.clean(); err != nil {
		return err
	}
	from = bufio.NewReaderSize(from, 1<<20)
	files, index, err := readHeader(from)
	switch {
	case err != nil:
		return err
	case d.machine.Applied() >= index:
		return nil
	case !files:
		return fmt.Errorf("the data ends with entry %d, but the log was shortened up to entry %d: files were taken away, or older ones put back", d.machine.Applied(), index)
	}
	dir, err := d.newCopy()
	if err != nil {
		return err
	}
	if err := unpack(from, dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := d.machine.Restore(dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if d.machine.Applied() < index {
		return fmt.Errorf("its data ends with entry %d instead of %d", d.machine.Applied(), index)
	}
	return nil
}

// clean removes what a crash has left. A copy that is being sent stays: its server leads, and restores nothing.
func (d onDisk) clean() error { return os.RemoveAll(d.copies) }

// newCopy returns the path of a folder that does not exist.
func (d onDisk) newCopy() (string, error) {
	if err := os.MkdirAll(d.copies, 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(d.copies, "copy-")
	return filepath.Join(dir, "files"), err
}

func (d onDisk) store(files *raft.FileSnapshotStore) raft.SnapshotStore { return sentStore{files, d} }

// sentStore replaces marks by files for other servers.
type sentStore struct {
	*raft.FileSnapshotStore
	content onDisk
}

// Open implements raft.SnapshotStore.
func (s sentStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, saved, err := s.FileSnapshotStore.Open(id)
	if err != nil || meta.Size != int64(headerSize) {
		return meta, saved, err
	}
	if err := saved.Close(); err != nil {
		return nil, nil, err
	}
	sent, size, err := s.content.copied()
	if err != nil {
		return nil, nil, fmt.Errorf("copy the data for another server: %w", err)
	}
	meta.Size = size
	return meta, sent, nil
}

// copied is a stream of a fresh copy of the machine's files, which is removed when the stream is closed.
func (d onDisk) copied() (io.ReadCloser, int64, error) {
	dir, err := d.newCopy()
	if err != nil {
		return nil, 0, err
	}
	remove := func() error { return os.RemoveAll(filepath.Dir(dir)) }
	index, err := d.machine.Checkpoint(dir)
	if err != nil {
		return nil, 0, errors.Join(err, remove())
	}
	packed, err := pack(dir)
	if err != nil {
		return nil, 0, errors.Join(err, remove())
	}
	size := int64(headerSize) + packed.size
	return &sentCopy{Reader: io.MultiReader(bytesReader(header(filesMagic, index)), packed), packed: packed, remove: remove}, size, nil
}

type sentCopy struct {
	io.Reader
	packed *packed
	remove func() error
}

func (s *sentCopy) Close() error { return errors.Join(s.packed.Close(), s.remove()) }
