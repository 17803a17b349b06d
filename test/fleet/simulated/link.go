package simulated

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// writeTime bounds how long a server may accept no bytes before a connection counts as broken.
const writeTime = 20 * time.Second

// link is a node's connection to a server, and the stream that is open on it.
type link struct {
	conn *tls.Conn
	raw  *net.TCPConn
	// leaving is set when the server will open no further stream; it belongs to the reader.
	leaving bool
	// The message that is being read, if it comes in several frames; owned by the reader.
	partial []byte
	unread  uint32 // received bytes that are not acknowledged to the server yet
	first   [1]byte

	mu     sync.Mutex // one writer at a time
	stream uint32     // that is open; 0 if none is
	last   uint32     // that was opened
	// Send windows: of the connection, of the stream, and of a new stream.
	window, streamWindow, initialWindow int64
}

// errNoWindow says that a message was not sent, because the server has too much unread already.
var errNoWindow = errors.New("the server has not read what it was sent")

// errNoStream says that a message was not sent, because the session is over.
var errNoStream = errors.New("no session is open")

// dialLink connects and completes the handshake.
func dialLink(ctx context.Context, dialer *net.Dialer, address string, config *tls.Config) (*link, error) {
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != http2.NextProtoTLS {
		_ = raw.Close()
		return nil, fmt.Errorf("%s does not speak HTTP/2", address)
	}
	const everyStreamBegins = 64<<10 - 1
	return &link{conn: conn, raw: raw.(*net.TCPConn), window: everyStreamBegins, initialWindow: everyStreamBegins}, nil
}

// begin opens a stream with its first message.
func (l *link) begin(hello []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	b := (*buffer)[:0]
	if l.last == 0 {
		b = append(b, greeting()...)
		l.last = 1
	} else {
		l.last += 2
	}
	l.stream, l.streamWindow = l.last, l.initialWindow
	b = appendRequest(b, l.stream)
	b, err := l.message(b, hello)
	if err != nil {
		return err
	}
	return l.write(b)
}

// send sends a message on the open stream, or nothing.
func (l *link) send(message []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	b, err := l.message((*buffer)[:0], message)
	if err != nil {
		return err
	}
	return l.write(b)
}

// message adds a message to the write buffer, if the windows allow it.
func (l *link) message(b, message []byte) ([]byte, error) {
	size := int64(len(message) + messageHeader)
	switch {
	case l.stream == 0:
		return nil, errNoStream
	case size > l.window || size > l.streamWindow:
		return nil, errNoWindow
	}
	l.window -= size
	l.streamWindow -= size
	return appendMessage(b, l.stream, message), nil
}

// control sends a frame that no window counts.
func (l *link) control(frame []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(frame)
}

// write writes b. The caller holds the lock.
func (l *link) write(b []byte) error {
	if err := l.raw.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	_, err := l.conn.Write(b)
	return err
}

// cut ends the connection with a reset, as the kernel does for a killed process with unread data.
func (l *link) cut() {
	_ = l.raw.SetLinger(0)
	_ = l.raw.Close()
}

// close tries to end the connection in order.
func (l *link) close() { _ = l.conn.Close() }

// handler receives what comes on a stream. Its arguments are valid during the call only.
type handler interface {
	message([]byte) error
	// mayWrite is called when a send window grows.
	mayWrite()
	// await returns when the node may continue.
	await()
}

// read passes on messages until the stream ends, with its status as error, or the connection does.
func (l *link) read(to handler) error {
	buffer := buffers.Get().(*[]byte)
	defer func() { buffers.Put(buffer) }()
	l.partial = nil
	for {
		// Between two frames, which is most of the time, a node has no buffer.
		head := (*buffer)[:frameHeader]
		if l.idle() {
			buffers.Put(buffer)
			_, err := io.ReadFull(l.conn, l.first[:])
			buffer = buffers.Get().(*[]byte)
			if err != nil {
				return l.broken(err)
			}
			head = (*buffer)[:frameHeader]
			head[0] = l.first[0]
			if _, err := io.ReadFull(l.conn, head[1:]); err != nil {
				return l.broken(err)
			}
		} else if _, err := io.ReadFull(l.conn, head); err != nil {
			return l.broken(err)
		}
		to.await()
		length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		kind, flags, stream := http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:])&(1<<31-1)
		if length > maxFrame {
			return fmt.Errorf("a frame of %d bytes is longer than allowed", length)
		}
		payload := (*buffer)[:length]
		if _, err := io.ReadFull(l.conn, payload); err != nil {
			return l.broken(err)
		}
		if err := l.take(to, kind, flags, stream, payload); err != nil {
			return err
		}
	}
}

// idle reports whether the next frame begins a new message.
func (l *link) idle() bool { return len(l.partial) == 0 }

func (l *link) broken(err error) error {
	l.mu.Lock()
	l.stream = 0
	l.mu.Unlock()
	return fmt.Errorf("connection broken: %w", err)
}

// take handles one frame.
func (l *link) take(to handler, kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) error {
	switch kind {
	case http2.FrameData:
		return l.takeData(to, flags, stream, payload)
	case http2.FrameHeaders:
		return l.takeHeaders(flags, stream, payload)
	case http2.FrameRSTStream:
		if stream != l.last || len(payload) < 4 {
			return nil
		}
		return l.ended(status.Errorf(codes.Unavailable, "the server ended the session: %v", http2.ErrCode(binary.BigEndian.Uint32(payload))))
	case http2.FrameSettings:
		return l.takeSettings(flags, payload)
	case http2.FramePing:
		if flags.Has(http2.FlagPingAck) || len(payload) != 8 {
			return nil
		}
		return l.control(append(appendFrame(nil, 8, http2.FramePing, http2.FlagPingAck, 0), payload...))
	case http2.FrameGoAway:
		l.leaving = true
		if len(payload) >= 4 && binary.BigEndian.Uint32(payload)&(1<<31-1) < l.last {
			return l.ended(status.Error(codes.Unavailable, "the server is stopping"))
		}
	case http2.FrameWindowUpdate:
		if len(payload) < 4 {
			return nil
		}
		l.widen(stream, int64(binary.BigEndian.Uint32(payload)&(1<<31-1)))
		to.mayWrite()
	}
	return nil
}

func (l *link) widen(stream uint32, by int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch stream {
	case 0:
		l.window += by
	case l.stream:
		l.streamWindow += by
	}
}

func (l *link) takeSettings(flags http2.Flags, payload []byte) error {
	if flags.Has(http2.FlagSettingsAck) {
		return nil
	}
	for ; len(payload) >= 6; payload = payload[6:] {
		if http2.SettingID(binary.BigEndian.Uint16(payload)) == http2.SettingInitialWindowSize {
			l.mu.Lock()
			now := int64(binary.BigEndian.Uint32(payload[2:]))
			l.streamWindow += now - l.initialWindow
			l.initialWindow = now
			l.mu.Unlock()
		}
	}
	return l.control(appendFrame(nil, 0, http2.FrameSettings, http2.FlagSettingsAck, 0))
}

func (l *link) takeData(to handler, flags http2.Flags, stream uint32, payload []byte) error {
	l.unread += uint32(len(payload))
	if l.unread >= receiveWindow/4 {
		frames := appendWindowUpdate(nil, 0, l.unread)
		if stream == l.last {
			frames = appendWindowUpdate(frames, stream, l.unread)
		}
		l.unread = 0
		if err := l.control(frames); err != nil {
			return err
		}
	}
	if stream != l.last {
		return nil
	}
	data, err := unpad(flags, payload)
	if err != nil {
		return err
	}
	if len(l.partial) > 0 {
		l.partial = append(l.partial, data...)
		data = l.partial
	}
	rest, err := messages(to, data)
	if err != nil {
		return err
	}
	l.keep(rest)
	if flags.Has(http2.FlagDataEndStream) {
		return l.ended(status.Error(codes.Unavailable, "the server ended the session without a word"))
	}
	return nil
}

// messages passes on the complete ones and returns what follows them.
func messages(to handler, data []byte) ([]byte, error) {
	for len(data) >= messageHeader {
		size := int(binary.BigEndian.Uint32(data[1:]))
		if data[0] != 0 || size > maxMessage {
			return nil, errors.New("a message from the server is compressed or too long")
		}
		if len(data) < messageHeader+size {
			break
		}
		if err := to.message(data[messageHeader : messageHeader+size]); err != nil {
			return nil, err
		}
		data = data[messageHeader+size:]
	}
	return data, nil
}

// keep stores the beginning of a message until the rest has come.
func (l *link) keep(rest []byte) {
	switch {
	case len(rest) == 0:
		l.partial = nil
	case len(rest) == len(l.partial): // nothing was taken from it
	default:
		size := len(rest)
		if size >= messageHeader {
			size = messageHeader + int(binary.BigEndian.Uint32(rest[1:]))
		}
		l.partial = append(make([]byte, 0, size), rest...)
	}
}

func (l *link) takeHeaders(flags http2.Flags, stream uint32, payload []byte) error {
	fields, err := decodeHeaders(flags, payload)
	if err != nil {
		return err
	}
	if stream != l.last || !flags.Has(http2.FlagHeadersEndStream) {
		return nil
	}
	return l.ended(statusOf(fields))
}

// ended is the end of a stream whose connection stays open.
func (l *link) ended(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = 0
	return &streamEnded{err}
}

// streamEnded says why a server has ended a stream.
type streamEnded struct{ error }

func (e *streamEnded) Unwrap() error { return e.error }

// statusOf reads the final status of a stream.
func statusOf(fields map[string]string) error {
	code, err := strconv.ParseUint(fields["grpc-status"], 10, 32)
	if err != nil {
		return status.Errorf(codes.Unavailable, "the server answered with HTTP status %s instead of a session", fields[":status"])
	}
	full := &spb.Status{}
	if data, err := base64.RawStdEncoding.DecodeString(fields["grpc-status-details-bin"]); err == nil && len(data) > 0 && proto.Unmarshal(data, full) == nil {
		return status.FromProto(full).Err()
	}
	if codes.Code(code) == codes.OK {
		return status.Error(codes.Unavailable, "the server ended the session")
	}
	return status.Error(codes.Code(code), fields["grpc-message"])
}
