package simulated

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A node needs a small part of gRPC: one stream at a time, opened by it, with messages both ways. A client library
// keeps half a dozen goroutines and two buffers for each connection to do much more than that, so the frames are
// written here.

const (
	frameHeader   = 9
	messageHeader = 5 // of gRPC: compression flag and length
	maxFrame      = 16 << 10
	// receiveWindow is what a server may send before the node has read it.
	receiveWindow = 8 << 20
	// maxMessage bounds one message to a node: all its assignments.
	maxMessage = 64 << 20
)

// buffers are shared by all nodes: one is needed only while a frame is read or written.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, maxFrame+frameHeader)) }}

func appendFrame(b []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

// appendMessage adds a gRPC message in as many frames as it takes.
func appendMessage(b []byte, stream uint32, message []byte) []byte {
	head := make([]byte, 0, messageHeader)
	head = append(head, 0)
	head = binary.BigEndian.AppendUint32(head, uint32(len(message)))
	for first := true; first || len(message) > 0; first = false {
		room := maxFrame
		if first {
			room -= messageHeader
		}
		part := message[:min(room, len(message))]
		message = message[len(part):]
		if first {
			b = appendFrame(b, messageHeader+len(part), http2.FrameData, 0, stream)
			b = append(b, head...)
		} else {
			b = appendFrame(b, len(part), http2.FrameData, 0, stream)
		}
		b = append(b, part...)
	}
	return b
}

func appendWindowUpdate(b []byte, stream, by uint32) []byte {
	b = appendFrame(b, 4, http2.FrameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(b, by)
}

// greeting begins every connection. Without a dynamic table, header blocks can be read one by one.
var greeting = sync.OnceValue(func() []byte {
	b := []byte(http2.ClientPreface)
	settings := []http2.Setting{
		{ID: http2.SettingHeaderTableSize, Val: 0},
		{ID: http2.SettingEnablePush, Val: 0},
		{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
	}
	b = appendFrame(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return appendWindowUpdate(b, 0, receiveWindow)
})

// request is the header block that opens a session.
var request = sync.OnceValue(func() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0) // the same bytes open every stream
	for _, field := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":path", v1.AgentService_Session_FullMethodName},
		{":authority", "cloudless"},
		{"content-type", "application/grpc"},
		{"user-agent", "cloudless-fleet"},
		{"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // never fails on a buffer
	}
	return block.Bytes()
})

func appendRequest(b []byte, stream uint32) []byte {
	block := request()
	b = appendFrame(b, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, stream)
	return append(b, block...)
}

// decodeHeaders reads a whole header block.
func decodeHeaders(flags http2.Flags, payload []byte) (map[string]string, error) {
	if !flags.Has(http2.FlagHeadersEndHeaders) {
		return nil, errors.New("headers in parts are not understood")
	}
	payload, err := unpad(flags, payload)
	if err != nil {
		return nil, err
	}
	if flags.Has(http2.FlagHeadersPriority) {
		if len(payload) < 5 {
			return nil, errors.New("a frame of headers is too short")
		}
		payload = payload[5:]
	}
	fields := map[string]string{}
	decoder := hpack.NewDecoder(0, func(f hpack.HeaderField) { fields[f.Name] = f.Value })
	if _, err := decoder.Write(payload); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	return fields, decoder.Close()
}

func unpad(flags http2.Flags, payload []byte) ([]byte, error) {
	if !flags.Has(http2.FlagDataPadded) {
		return payload, nil
	}
	if len(payload) == 0 || int(payload[0]) > len(payload)-1 {
		return nil, errors.New("a frame has more padding than bytes")
	}
	return payload[1 : len(payload)-int(payload[0])], nil
}

func encode(up *v1.SessionUp) ([]byte, error) {
	data, err := proto.Marshal(up)
	if err != nil {
		return nil, fmt.Errorf("encode a message to a server: %w", err)
	}
	return data, nil
}
