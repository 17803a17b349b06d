package names

import (
	"bytes"
	"encoding/binary"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// Found is a chunk that a query has found.
type Found struct {
	Hash  Hash
	Chunk *objectv1.Chunk
}

// Short returns chunks that fewer nodes have than should, in ascending order, behind a hash; all if it is zero.
func (v *View) Short(after Hash, limit int) ([]Found, error) {
	return v.chunks(key(tableShort), after, limit)
}

// ChunksOn returns chunks that a node should have, in ascending order, behind a hash; all if it is zero.
func (v *View) ChunksOn(node uint32, after Hash, limit int) ([]Found, error) {
	return v.chunks(onKey(node, Hash{})[:5], after, limit)
}

// chunks returns the chunks that rows with a prefix name.
func (v *View) chunks(prefix []byte, behind Hash, limit int) ([]Found, error) {
	if v.err != nil || limit <= 0 {
		return nil, v.err
	}
	var found []Found
	err := scan(v.snapshot, behindHash(prefix, behind), after(prefix), func(k, _ []byte) (bool, error) {
		found = append(found, Found{Hash: Hash(k[len(prefix):])})
		return len(found) < limit, nil
	})
	for i := 0; i < len(found) && err == nil; i++ {
		found[i].Chunk, err = v.Chunk(found[i].Hash)
		if err == nil && found[i].Chunk == nil {
			err = errDamagedRow
		}
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// behindHash is the first row with a prefix behind a hash. A zero hash is before all rows.
func behindHash(prefix []byte, behind Hash) []byte {
	k := append(bytes.Clone(prefix), behind[:]...)
	if behind == (Hash{}) {
		return k
	}
	return append(k, 0)
}

// FoundDead is a chunk that nothing refers to.
type FoundDead struct {
	Hash Hash
	Dead *objectv1.DeadChunk
}

// Dead returns chunks that nothing has referred to since an epoch or before, in ascending order, behind a hash.
func (v *View) Dead(epoch uint64, after Hash, limit int) ([]FoundDead, error) {
	if v.err != nil || limit <= 0 {
		return nil, v.err
	}
	var found []FoundDead
	prefix := key(tableDead)
	err := scan(v.snapshot, behindHash(prefix, after), key(tableDead+1), func(k, row []byte) (bool, error) {
		dead := new(objectv1.DeadChunk)
		if err := decodeMessage(row, dead); err != nil {
			return false, err
		}
		if dead.GetEpoch() <= epoch {
			found = append(found, FoundDead{Hash: Hash(k[1:]), Dead: dead})
		}
		return len(found) < limit, nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Unreferenced returns block lists that Release has to be proposed for.
func (v *View) Unreferenced(limit int) ([]*objectv1.ReleasedList, error) {
	if v.err != nil || limit <= 0 {
		return nil, v.err
	}
	var lists []*objectv1.ReleasedList
	err := scan(v.snapshot, key(tableUnreferenced), key(tableUnreferenced+1), func(k, _ []byte) (bool, error) {
		lists = append(lists, &objectv1.ReleasedList{
			List: bytes.Clone(k[1 : 1+idSize]), Number: binary.BigEndian.Uint32(k[1+idSize:]),
		})
		return len(lists) < limit, nil
	})
	return lists, err
}

// maxKeyOf returns the later one of two keys.
func maxKeyOf(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return b
	}
	return a
}
