package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"runtime"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// A saved snapshot consists of a SnapshotHeader, the number of Objects that it states, each preceded by its length, and
// the CRC-32C of all that in four big-endian bytes.
const (
	saveFormat = 1
	// maxSavedObject keeps a damaged length from allocating all memory.
	maxSavedObject = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Save writes the whole state. It blocks neither readers nor writers.
func (s *Snapshot) Save(w io.Writer) error {
	buffered := bufio.NewWriterSize(w, 1<<16)
	sum := crc32.New(castagnoli)
	if err := s.saveObjects(io.MultiWriter(buffered, sum)); err != nil {
		return fmt.Errorf("save the state at index %d: %w", s.index, err)
	}
	if _, err := buffered.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32())); err != nil {
		return fmt.Errorf("save the state at index %d: %w", s.index, err)
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("save the state at index %d: %w", s.index, err)
	}
	return nil
}

func (s *Snapshot) saveObjects(w io.Writer) error {
	header := &statev1.SnapshotHeader{Format: saveFormat, Index: s.index}
	for _, count := range s.counts {
		header.Objects += uint64(count)
	}
	marshal := protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{Deterministic: true}}
	if _, err := marshal.MarshalTo(w, header); err != nil {
		return err
	}
	saved := savedObject{to: w}
	n := 0
	for _, t := range tables {
		saved.field = objectFields.ByName(protoreflect.Name(t.kind)).Number()
		for object := range listByPrefix[Object](s, t.kind, indexUID, nil) {
			if err := saved.write(object); err != nil {
				return fmt.Errorf("%s %s: %w", t.kind, object.GetMetadata().GetUid(), err)
			}
			if n++; n%saveAtOnce == 0 {
				runtime.Gosched() // saving is not urgent, transactions are
			}
		}
	}
	return nil
}

// saveAtOnce is how many objects are written before Save yields: some tens of microseconds. Without that, other
// goroutines would wait again and again until the scheduler preempts Save after some ten milliseconds.
const saveAtOnce = 16

var objectFields = (&statev1.Object{}).ProtoReflect().Descriptor().Fields()

// savedObject writes objects in the form in which protodelim writes a statev1.Object, without allocating one for each of
// millions of objects.
type savedObject struct {
	to    io.Writer
	field protowire.Number // field of the kind in statev1.Object

	body, head []byte
}

func (s *savedObject) write(o Object) (err error) {
	if s.body, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(s.body[:0], o); err != nil {
		return err
	}
	size := protowire.SizeTag(s.field) + protowire.SizeBytes(len(s.body))
	s.head = protowire.AppendVarint(s.head[:0], uint64(size))
	s.head = protowire.AppendTag(s.head, s.field, protowire.BytesType)
	s.head = protowire.AppendVarint(s.head, uint64(len(s.body)))
	if _, err = s.to.Write(s.head); err == nil {
		_, err = s.to.Write(s.body)
	}
	return err
}

// Restore replaces the whole state by a saved one. If that is damaged, incomplete or in an unknown format, the state does
// not change. All subscriptions end with [ErrLagged].
func (s *Store) Restore(r io.Reader) error {
	saved, err := load(r)
	if err != nil {
		return fmt.Errorf("restore the state: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.reset(saved)
	return nil
}

func load(r io.Reader) (*Snapshot, error) {
	in := &summedReader{in: bufio.NewReaderSize(r, 1<<16), sum: crc32.New(castagnoli)}
	header := &statev1.SnapshotHeader{}
	if err := in.next(header); err != nil {
		return nil, fmt.Errorf("read the header of the snapshot: %w", err)
	}
	if header.GetFormat() != saveFormat {
		return nil, fmt.Errorf("the snapshot has format %d, this release reads format %d: use the release that wrote it, or a newer one",
			header.GetFormat(), saveFormat)
	}
	b := newBuilder(&Snapshot{rows: emptyRows(), index: header.GetIndex(), counts: make([]int, len(tables))})
	for i := range header.GetObjects() {
		if err := b.loadObject(in); err != nil {
			return nil, fmt.Errorf("object %d of %d: %w", i+1, header.GetObjects(), err)
		}
	}
	if err := in.end(); err != nil {
		return nil, err
	}
	return b.finish(), nil
}

func (b *builder) loadObject(in *summedReader) error {
	wrapped := &statev1.Object{}
	if err := in.next(wrapped); err != nil {
		return err
	}
	kind, object := unwrap(wrapped)
	if kind == "" || hasUnknown(wrapped) {
		return errors.New("the snapshot holds a kind of object that this release does not know: use the release that wrote it, or a newer one")
	}
	if reason := checkObject(kind, object); reason != "" {
		return fmt.Errorf("the snapshot is damaged: it %s", reason)
	}
	if b.get(kind, object.GetMetadata().GetUid()) != nil || b.rival(kind, object, nil) != nil {
		return fmt.Errorf("the snapshot is damaged: it has the %s %q (uid %s) twice", kind, Path(object), object.GetMetadata().GetUid())
	}
	b.replace(kind, nil, object)
	return nil
}

// summedReader reads messages and computes the checksum of their bytes.
type summedReader struct {
	in  *bufio.Reader
	sum hash.Hash32
}

func (r *summedReader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	_, _ = r.sum.Write(p[:n]) // a hash never fails
	return n, err
}

func (r *summedReader) ReadByte() (byte, error) {
	b, err := r.in.ReadByte()
	if err == nil {
		_, _ = r.sum.Write([]byte{b})
	}
	return b, err
}

func (r *summedReader) next(m proto.Message) error {
	err := protodelim.UnmarshalOptions{MaxSize: maxSavedObject}.UnmarshalFrom(r, m)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the snapshot is cut off")
	}
	if err != nil {
		return fmt.Errorf("the snapshot is damaged: %w", err)
	}
	return nil
}

// end reads the checksum, which must be right and at the end of the input.
func (r *summedReader) end() error {
	var stored [4]byte
	if _, err := io.ReadFull(r.in, stored[:]); err != nil {
		return fmt.Errorf("the snapshot is cut off before its checksum: %w", err)
	}
	if sum := binary.BigEndian.Uint32(stored[:]); sum != r.sum.Sum32() {
		return fmt.Errorf("the snapshot is damaged: its checksum is %08x, it should be %08x", r.sum.Sum32(), sum)
	}
	if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("the snapshot is damaged: something follows its end")
	}
	return nil
}
