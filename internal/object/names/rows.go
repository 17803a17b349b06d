package names

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// format is that of the rows. A store of a later format is refused.
const format = 1

var errDamagedRow = errors.New("a row of the names cannot be decoded: restore this server's copy from another server")

// meta is what there is once. It is one small row, because every batch of entries changes it.
type meta struct {
	applied, epoch uint64
	nextNode       uint32
	totals         Totals
}

func newMeta() meta { return meta{epoch: 1, nextNode: 1} }

func (m *meta) counters() []*int64 {
	t := &m.totals
	return []*int64{&t.Objects, &t.Versions, &t.Bytes, &t.Chunks, &t.ChunkBytes, &t.Short, &t.Dead}
}

func (m *meta) encode() []byte {
	row := binary.AppendUvarint(nil, format)
	row = binary.AppendUvarint(row, m.applied)
	row = binary.AppendUvarint(row, m.epoch)
	row = binary.AppendUvarint(row, uint64(m.nextNode))
	for _, counter := range m.counters() {
		row = binary.AppendVarint(row, *counter)
	}
	return row
}

func (m *meta) decode(row []byte) error {
	var fields [4]uint64
	for i := range fields {
		field, n := binary.Uvarint(row)
		if n <= 0 {
			return errDamagedRow
		}
		fields[i], row = field, row[n:]
		if i == 0 && field > format {
			return fmt.Errorf("the names have format %d, and this release knows %d at most: update this server", field, format)
		}
	}
	m.applied, m.epoch, m.nextNode = fields[1], fields[2], uint32(fields[3])
	for _, counter := range m.counters() {
		value, n := binary.Varint(row)
		if n <= 0 {
			return errDamagedRow
		}
		*counter, row = value, row[n:]
	}
	return nil
}

// readMeta returns the meta row, which an empty store does not have yet.
func readMeta(r pebble.Reader) (meta, error) {
	m := newMeta()
	_, err := read(r, key(tableMeta), m.decode)
	return m, err
}

// position orders the versions of a key.
type position struct {
	index     uint64
	operation uint32
}

func (p position) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, p.index), p.operation)
}

func (p *position) decode(row []byte) error {
	if len(row) != 12 {
		return errDamagedRow
	}
	p.index, p.operation = binary.BigEndian.Uint64(row), binary.BigEndian.Uint32(row[8:])
	return nil
}

// stored is the row of a version.
type stored struct {
	*objectv1.Version
	// operation is the one in the version's log entry that made it.
	operation uint32
	// older is whether the key may have older versions. Only the rows of current versions have it, to save a search.
	older bool
}

const (
	flagMarker = 1 << iota
	flagOlder
)

func (s *stored) position() position { return position{index: s.GetIndex(), operation: s.operation} }

func (s *stored) encode() ([]byte, error) {
	var flags byte
	if s.GetDeleteMarker() {
		flags |= flagMarker
	}
	if s.older {
		flags |= flagOlder
	}
	row := make([]byte, 0, 2+proto.Size(s.Version))
	row = binary.AppendUvarint(append(row, flags), uint64(s.operation))
	return encoding.MarshalAppend(row, s.Version)
}

func (s *stored) decode(row []byte) error {
	if len(row) < 2 {
		return errDamagedRow
	}
	operation, n := binary.Uvarint(row[1:])
	if n <= 0 {
		return errDamagedRow
	}
	s.operation, s.older, s.Version = uint32(operation), row[0]&flagOlder != 0, new(objectv1.Version)
	return decodeMessage(row[1+n:], s.Version)
}

// isMarker looks at the row of a version without decoding it.
func isMarker(row []byte) bool { return len(row) > 0 && row[0]&flagMarker != 0 }

// staged is the row of a list that nothing has adopted. Lists are numbered from 0 and may come in any order.
type staged struct {
	count, last uint32
	expires     int64
}

func (s *staged) encode() []byte {
	row := binary.AppendUvarint(nil, uint64(s.count))
	row = binary.AppendUvarint(row, uint64(s.last))
	return binary.AppendVarint(row, s.expires)
}

func (s *staged) decode(row []byte) error {
	count, n := binary.Uvarint(row)
	if n <= 0 {
		return errDamagedRow
	}
	last, m := binary.Uvarint(row[n:])
	if m <= 0 {
		return errDamagedRow
	}
	expires, k := binary.Varint(row[n+m:])
	if k <= 0 {
		return errDamagedRow
	}
	s.count, s.last, s.expires = uint32(count), uint32(last), expires
	return nil
}

// A list begins with the bytes of its blocks, so that a reader can pass over it.
func encodeList(list *objectv1.BlockList) ([]byte, error) {
	return encoding.MarshalAppend(binary.AppendUvarint(nil, uint64(blockBytes(list.GetBlocks()))), list)
}

func cutListBytes(row []byte) (size int64, rest []byte, err error) {
	bytes, n := binary.Uvarint(row)
	if n <= 0 {
		return 0, nil, errDamagedRow
	}
	return int64(bytes), row[n:], nil
}

func decodeList(row []byte) (*objectv1.BlockList, error) {
	_, row, err := cutListBytes(row)
	if err != nil {
		return nil, err
	}
	list := new(objectv1.BlockList)
	return list, decodeMessage(row, list)
}

func blockBytes(blocks []*objectv1.Block) int64 {
	var size int64
	for _, block := range blocks {
		size += int64(block.GetSize())
	}
	return size
}

// encoding gives a message the same bytes on every server.
var encoding = proto.MarshalOptions{Deterministic: true}

func decodeMessage(row []byte, m proto.Message) error {
	if err := proto.Unmarshal(row, m); err != nil {
		return errDamagedRow
	}
	return nil
}

// read decodes a row. It reports whether there is one.
func read(r pebble.Reader, k []byte, decode func([]byte) error) (bool, error) {
	row, closer, err := r.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = decode(row)
	return true, errors.Join(err, closer.Close())
}

// readMessage returns the message in a row, or nil.
func readMessage[T any, M interface {
	*T
	proto.Message
}](r pebble.Reader, k []byte,
) (M, error) {
	m := M(new(T))
	found, err := read(r, k, func(row []byte) error { return decodeMessage(row, m) })
	if err != nil || !found {
		return nil, err
	}
	return m, nil
}

func has(r pebble.Reader, k []byte) (bool, error) {
	return read(r, k, func([]byte) error { return nil })
}

func readCurrent(r pebble.Reader, bucket, object string) (*stored, error) {
	return readStored(r, currentKey(bucket, object))
}

func readStored(r pebble.Reader, k []byte) (*stored, error) {
	s := new(stored)
	found, err := read(r, k, s.decode)
	if err != nil || !found {
		return nil, err
	}
	return s, nil
}

// readOlder returns a version that is not the current one by its id, or nil.
func readOlder(r pebble.Reader, bucket, object, id string) (*stored, error) {
	var at position
	found, err := read(r, positionKey(bucket, object, id), at.decode)
	if err != nil || !found {
		return nil, err
	}
	s, err := readStored(r, olderKey(bucket, object, at))
	if err == nil && s == nil {
		err = errDamagedRow
	}
	return s, err
}

// is reports whether a version has an id, or is the one that S3 calls null.
func (s *stored) is(id string) bool {
	return s != nil && (string(s.GetId()) == id || id == nullID && s.GetNull())
}

func readNamespace(r pebble.Reader, uid string) (int64, error) {
	var size int64
	_, err := read(r, key(tableNamespace, uid), func(row []byte) error {
		if len(row) != 8 {
			return errDamagedRow
		}
		size = int64(binary.BigEndian.Uint64(row))
		return nil
	})
	return size, err
}

// scan calls f for the rows of a range, until it returns false.
func scan(r pebble.Reader, from, to []byte, f func(k, row []byte) (bool, error)) error {
	rows, err := r.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	for ok := rows.First(); ok && err == nil; {
		var row []byte
		if row, err = rows.ValueAndErr(); err == nil {
			ok, err = f(rows.Key(), row)
		}
		if ok && err == nil {
			ok = rows.Next()
		}
	}
	return errors.Join(err, rows.Close())
}
