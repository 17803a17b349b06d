package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cloudless/cloudless/api"
)

// Codec encodes the messages of the ChunkService as protobuf does. [Encoded], [Arrival] and [Appender] are other forms of its
// messages, which cost fewer copies. gRPC's own codec decodes what they encode, and the other way round.
func Codec() encoding.CodecV2 { return codec{api.ServerCodec()} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if encoded, ok := v.(*Encoded); ok {
		return encoded.buffers, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	decoder, ok := v.(interface{ decode(*mem.Reader) error })
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	r := data.Reader()
	defer func() { _ = r.Close() }()
	return decoder.decode(r)
}

// Encoded is a message that is ready to be sent, once.
type Encoded struct{ buffers mem.BufferSlice }

// Free releases the memory of a message that is not sent after all.
func (e *Encoded) Free() { e.buffers.Free() }

// The numbers of the fields of PutChunk and ChunkPiece.
const (
	fieldNumber protowire.Number = 1
	fieldHash   protowire.Number = 2
	fieldSize   protowire.Number = 3
	fieldEpoch  protowire.Number = 4
	fieldData   protowire.Number = 5
	fieldPiece  protowire.Number = 1
)

// headSize is more than the fields of a PutChunk need without its data.
const headSize = 96

// frames are the buffers that frames are encoded into.
var frames = mem.NewTieredBufferPool(1<<10, 4<<10+headSize, 16<<10+headSize, 64<<10+headSize, PieceSize+headSize)

// Frame is a message PutChunk.
type Frame struct {
	Number uint64
	// Hash, Size and Epoch are in the first message of a chunk only.
	Hash  []byte
	Size  uint32
	Epoch uint64
	Data  []byte
}

// Encode copies the frame, so that its data may change afterwards.
func (f Frame) Encode() *Encoded {
	buffer := frames.Get(headSize + len(f.Data))
	b := protowire.AppendVarint(protowire.AppendTag((*buffer)[:0], fieldNumber, protowire.VarintType), f.Number)
	if len(f.Hash) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldHash, protowire.BytesType), f.Hash)
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldSize, protowire.VarintType), uint64(f.Size))
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldEpoch, protowire.VarintType), f.Epoch)
	}
	if len(f.Data) > 0 {
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldData, protowire.BytesType), f.Data)
	}
	*buffer = b
	return &Encoded{mem.BufferSlice{mem.NewBuffer(buffer, frames)}}
}

// EncodePiece is a message ChunkPiece whose data is a part of a buffer. The buffer is referred to until it is sent.
func EncodePiece(of mem.Buffer, begin, end int) *Encoded {
	head := protowire.AppendTag(make([]byte, 0, 8), fieldPiece, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(end-begin))
	return &Encoded{mem.BufferSlice{mem.SliceBuffer(head), of.Slice(begin, end)}}
}

// Appender receives messages ChunkPiece, and appends the data of each to its bytes.
type Appender struct {
	Bytes []byte
	// Most is how many bytes there may be in the end.
	Most int
}

func (a *Appender) decode(r *mem.Reader) error {
	return eachField(r, func(field protowire.Number, n int) error {
		if field != fieldPiece {
			return skip(r, n)
		}
		if len(a.Bytes)+n > a.Most {
			return fmt.Errorf("a chunk has at most %d bytes here, and more arrive", a.Most)
		}
		have := len(a.Bytes)
		a.Bytes = slices.Grow(a.Bytes, n)[:have+n]
		_, err := io.ReadFull(r, a.Bytes[have:])
		return err
	}, nil)
}

// Arrival receives messages PutChunk.
type Arrival struct {
	Frame
	// Into says where n bytes of data belong, once the other fields are known. It returns nil for data that nobody
	// wants, and an error ends the stream.
	Into func(f *Frame, n int) ([]byte, error)

	hash [32]byte
}

func (a *Arrival) decode(r *mem.Reader) error {
	a.Frame = Frame{}
	return eachField(r, func(field protowire.Number, n int) error {
		switch {
		case field == fieldHash && n == len(a.hash):
			a.Hash = a.hash[:]
			_, err := io.ReadFull(r, a.Hash)
			return err
		case field == fieldHash:
			return fmt.Errorf("the digest of a chunk has %d bytes, not %d", len(a.hash), n)
		case field != fieldData:
			return skip(r, n)
		}
		into, err := a.Into(&a.Frame, n)
		if err != nil {
			return err
		}
		if into == nil {
			return skip(r, n)
		}
		a.Data = into
		_, err = io.ReadFull(r, into[:n])
		return err
	}, func(field protowire.Number, value uint64) {
		switch field {
		case fieldNumber:
			a.Number = value
		case fieldSize:
			a.Size = uint32(min(value, ChunkSize+1))
		case fieldEpoch:
			a.Epoch = value
		}
	})
}

var errEncoding = errors.New("a message of the chunk protocol is not encoded as it should be")

// eachField calls bytes for each field with a length, and number for each number, which may be nil. bytes must read the
// whole field.
func eachField(r *mem.Reader, bytes func(protowire.Number, int) error, number func(protowire.Number, uint64)) error {
	for r.Remaining() > 0 {
		tag, err := binary.ReadUvarint(r)
		if err != nil {
			return errEncoding
		}
		field, kind := protowire.DecodeTag(tag)
		if kind != protowire.VarintType && kind != protowire.BytesType || !field.IsValid() {
			return errEncoding
		}
		value, err := binary.ReadUvarint(r)
		switch {
		case err != nil:
			return errEncoding
		case kind == protowire.VarintType:
			if number != nil {
				number(field, value)
			}
			continue
		case value > uint64(r.Remaining()):
			return errEncoding
		}
		if err := bytes(field, int(value)); err != nil {
			return err
		}
	}
	return nil
}

func skip(r *mem.Reader, n int) error {
	_, err := r.Discard(n)
	return err
}
