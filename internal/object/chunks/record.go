package chunks

import (
	"encoding/binary"
	"hash/crc32"
)

// A record is a header, a table of checksums if the data has more than one block, the data, and zeros up to a multiple
// of 8 bytes. Numbers are little-endian.
//
//	 0  marker of the pack, 8 random bytes
//	 8  kind, 1 byte
//	 9  1 if the record begins a batch, 1 byte
//	10  zero, 2 bytes
//	12  size of the data, 4 bytes
//	16  sequence number, 8 bytes
//	24  epoch, 8 bytes
//	32  hash of the chunk
//	64  CRC-32C of the data or, if there is a table, of the table
//	68  CRC-32C of the offset of the record and of everything above
//	72  table: CRC-32C of each block of 64 KiB
//
// A chunk may contain a copy of a pack, so a search for the next record after damage could find records in the data of
// others. Whoever wrote such a chunk cannot know the marker of the pack in which it ends up.
const (
	headerSize = 72
	alignment  = 8
	// blockSize is the part of a chunk that is checked when a part of the chunk is read.
	blockSize = 64 << 10
	maxTable  = 4 * ((MaxSize + blockSize - 1) / blockSize)
)

// kind says what a record does.
type kind byte

const (
	// kindChunk has the data of a chunk.
	kindChunk kind = iota + 1
	// kindStamp says that a chunk was put again.
	kindStamp
	// kindTombstone deletes a chunk.
	kindTombstone
	// kindSeal is the last record of a pack to which nothing is appended any more.
	kindSeal
)

// marker begins every record of a pack.
type marker [8]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header describes a record.
type header struct {
	kind kind
	// first begins a batch: everything before it was durable when it was written.
	first bool
	size  uint32
	// seq orders the records of all packs.
	seq, epoch uint64
	hash       Hash
	sum        uint32
}

// tableSize is the length of the table of checksums.
func tableSize(size uint32) int {
	if size <= blockSize {
		return 0
	}
	return 4 * int((size+blockSize-1)/blockSize)
}

// headSize is the length of a record before its data.
func headSize(size uint32) int64 { return headerSize + int64(tableSize(size)) }

// recordSize is the length of a record with data of a size.
func recordSize(size uint32) int64 {
	return (headSize(size) + int64(size) + alignment - 1) &^ (alignment - 1)
}

// appendHead appends the header and the table of a record to b. The place of the record is not known yet: see place.
func appendHead(b []byte, h header, data []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, headSize(h.size))...)
	head := b[start:]
	table := head[headerSize:]
	if len(table) == 0 {
		h.sum = crc32.Checksum(data, castagnoli)
	} else {
		for i := 0; len(data) > 0; i += 4 {
			n := min(len(data), blockSize)
			binary.LittleEndian.PutUint32(table[i:], crc32.Checksum(data[:n], castagnoli))
			data = data[n:]
		}
		h.sum = crc32.Checksum(table, castagnoli)
	}
	head[8] = byte(h.kind)
	binary.LittleEndian.PutUint32(head[12:], h.size)
	binary.LittleEndian.PutUint64(head[16:], h.seq)
	binary.LittleEndian.PutUint64(head[24:], h.epoch)
	copy(head[32:], h.hash[:])
	binary.LittleEndian.PutUint32(head[64:], h.sum)
	return b
}

// place completes a header for a place in a pack.
func place(head []byte, m marker, offset int64, first bool) {
	copy(head, m[:])
	head[9] = 0
	if first {
		head[9] = 1
	}
	binary.LittleEndian.PutUint32(head[68:], headerSum(head, offset))
}

func headerSum(head []byte, offset int64) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(offset))
	return crc32.Update(crc32.Checksum(at[:], castagnoli), castagnoli, head[:68])
}

// parseHeader reads the header at an offset of a pack. It is false if there is none that was written there.
func parseHeader(b []byte, m marker, offset int64) (header, bool) {
	if len(b) < headerSize || marker(b[:8]) != m || binary.LittleEndian.Uint32(b[68:]) != headerSum(b, offset) {
		return header{}, false
	}
	h := header{
		kind:  kind(b[8]),
		first: b[9] == 1,
		size:  binary.LittleEndian.Uint32(b[12:]),
		seq:   binary.LittleEndian.Uint64(b[16:]),
		epoch: binary.LittleEndian.Uint64(b[24:]),
		hash:  Hash(b[32:64]),
		sum:   binary.LittleEndian.Uint32(b[64:]),
	}
	known := h.kind >= kindChunk && h.kind <= kindSeal && b[9] <= 1 && b[10] == 0 && b[11] == 0
	if !known || h.size > MaxSize || h.kind != kindChunk && h.size != 0 {
		return header{}, false
	}
	return h, true
}

// blocksIntact compares whole blocks with their checksums, from the one with a number. head is the header and the table.
func blocksIntact(head []byte, size uint32, first int, data []byte) bool {
	sum := binary.LittleEndian.Uint32(head[64:])
	table := head[headerSize:headSize(size)]
	if len(table) == 0 {
		return crc32.Checksum(data, castagnoli) == sum
	}
	if crc32.Checksum(table, castagnoli) != sum {
		return false
	}
	for i := first; len(data) > 0; i++ {
		n := min(len(data), blockSize)
		if crc32.Checksum(data[:n], castagnoli) != binary.LittleEndian.Uint32(table[4*i:]) {
			return false
		}
		data = data[n:]
	}
	return true
}
