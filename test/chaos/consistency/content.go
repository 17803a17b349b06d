package consistency

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Content is what one write stores: it says in each of its blocks which write it is of, how large it is, and where the
// block belongs. The zero value is no object at all.
type Content struct {
	// Writer begins with 1.
	Writer, Number uint32
	Size           int64
}

// None is what a read finds where there is no object.
var None Content

func (c Content) String() string {
	if c == None {
		return "nothing"
	}
	return fmt.Sprintf("content %d.%d of %d bytes", c.Writer, c.Number, c.Size)
}

// blockSize is the part of a content that says where it belongs:
//
//	 0  writer, 4 bytes
//	 4  number, 4 bytes
//	 8  size of the content, 8 bytes
//	16  number of the block, 8 bytes
//	24  a mix of all that, 8 bytes
const blockSize = 32

// LeastSize is that of the smallest content.
const LeastSize = blockSize

// Bytes returns all of it.
func (c Content) Bytes() []byte { return c.slice(0, c.Size) }

// slice returns the bytes from one offset to another.
func (c Content) slice(from, to int64) []byte {
	first := from / blockSize
	all := make([]byte, 0, to-from+2*blockSize)
	for number := first; number*blockSize < to; number++ {
		all = c.appendBlock(all, uint64(number))
	}
	return all[from-first*blockSize : to-first*blockSize]
}

func (c Content) appendBlock(b []byte, number uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.Writer)
	b = binary.LittleEndian.AppendUint32(b, c.Number)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Size))
	b = binary.LittleEndian.AppendUint64(b, number)
	return binary.LittleEndian.AppendUint64(b, mix(uint64(c.Writer)<<32|uint64(c.Number), uint64(c.Size), number))
}

// mix scatters numbers over all bits.
func mix(numbers ...uint64) (sum uint64) {
	for _, n := range numbers {
		sum = (sum ^ n) + 0x9e3779b97f4a7c15
		sum = (sum ^ sum>>30) * 0xbf58476d1ce4e5b9
		sum = (sum ^ sum>>27) * 0x94d049bb133111eb
		sum ^= sum >> 31
	}
	return sum
}

// parseBlock returns which block of which content the bytes are.
func parseBlock(b []byte) (c Content, number uint64, ok bool) {
	c = Content{
		Writer: binary.LittleEndian.Uint32(b), Number: binary.LittleEndian.Uint32(b[4:]), Size: int64(binary.LittleEndian.Uint64(b[8:])),
	}
	number = binary.LittleEndian.Uint64(b[16:])
	return c, number, bytes.Equal(b[:blockSize], c.appendBlock(nil, number))
}

// Identify returns what a whole body is the content of. Otherwise, it says what is wrong with the body.
func Identify(body []byte) (Content, error) {
	c, err := IdentifyRange(body, 0)
	if err == nil && c.Size != int64(len(body)) {
		err = fmt.Errorf("%v has only %d bytes", c, len(body))
	}
	return c, err
}

// IdentifyRange is Identify for the part of a content from an offset on. It must have at least twice the least size.
func IdentifyRange(body []byte, offset int64) (Content, error) {
	skip := (blockSize - offset%blockSize) % blockSize
	if int64(len(body)) < skip+blockSize {
		return None, fmt.Errorf("%d bytes do not say what they are", len(body))
	}
	c, _, ok := parseBlock(body[skip:])
	if !ok {
		return None, fmt.Errorf("nobody wrote the bytes at %d", offset+skip)
	}
	end := offset + int64(len(body))
	if end > c.Size {
		return None, fmt.Errorf("%v has bytes up to %d", c, end)
	}
	expected := c.slice(offset, end)
	if bytes.Equal(body, expected) {
		return c, nil
	}
	return None, difference(c, body, expected, offset)
}

// difference says where a body begins to be something else than a content.
func difference(c Content, body, expected []byte, offset int64) error {
	at := 0
	for body[at] == expected[at] {
		at++
	}
	block := at - int((offset+int64(at))%blockSize)
	if block >= 0 && block+blockSize <= len(body) {
		if other, number, ok := parseBlock(body[block:]); ok {
			return fmt.Errorf("%v has from byte %d on what belongs to byte %d of %v", c, offset+int64(block), number*blockSize, other)
		}
	}
	return fmt.Errorf("%v has from byte %d on what nobody wrote", c, offset+int64(at))
}
