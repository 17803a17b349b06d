package api

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that this one wraps
	"google.golang.org/grpc/mem"
)

// fast is a message with generated encoding code. That takes a third of the time of
// reflection.
type fast interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

// codec uses the generated code for messages of the API, and gRPC's codec for all
// others.
type codec struct {
	encoding.CodecV2
	trusting bool
}

// ServerCodec validates UTF-8, because any client may call a server.
func ServerCodec() encoding.CodecV2 { return codec{CodecV2: encoding.GetCodecV2("proto")} }

// ClientCodec does not validate UTF-8: a client trusts the server that it calls.
func ClientCodec() encoding.CodecV2 {
	return codec{CodecV2: encoding.GetCodecV2("proto"), trusting: true}
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(fast)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := message.SizeVT()
	if mem.IsBelowBufferPoolingThreshold(size) {
		data := make([]byte, size)
		_, err := message.MarshalToSizedBufferVT(data)
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	pool := mem.DefaultBufferPool()
	data := pool.Get(size)
	if _, err := message.MarshalToSizedBufferVT((*data)[:size]); err != nil {
		pool.Put(data)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(data, pool)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(fast)
	if !ok || !c.trusting {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return message.UnmarshalVT(whole.ReadOnlyData())
}
