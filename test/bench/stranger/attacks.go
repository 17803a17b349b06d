package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
)

// attacks are what a stranger does. Each call is one attempt, on its own connection.
var attacks = map[string]func(context.Context, *victim) error{
	"enroll with many labels":    enrollFlood,
	"enroll of 7 MB":             longEnroll,
	"unfinished large messages":  unfinishedMessages,
	"idle TLS connections":       idleConnection,
	"unknown tokens":             unknownTokens,
	"unknown tokens by HTTP":     unknownTokensByHTTP,
	"slow readers":               slowReader,
	"slow headers of HTTP/1":     slowHeaders,
	"slow headers of HTTP/2":     slowHeaderFrames,
	"stream resets":              rapidReset,
	"handshakes begun":           helloFlood,
	"handshakes finished":        handshakeFlood,
	"connections without a word": silentConnection,
}

const (
	enroll = v1.EnrollmentService_Enroll_FullMethodName
	create = v1.WorkloadService_CreateWorkload_FullMethodName
)

// message is a gRPC message with its prefix.
func message(data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(data))), data...)
}

// labelled is an EnrollRequest that consists of tiny labels, with a token that looks valid.
func labelled(size int) []byte {
	token := identity.NewJoinToken(identity.Fingerprint{}).Reveal()
	data := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), token)
	for i := uint32(0); len(data) < size; i++ {
		key := binary.BigEndian.AppendUint32(nil, i|0x01010101)
		entry := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), bytes.ToValidUTF8(key, []byte("-")))
		data = protowire.AppendBytes(protowire.AppendTag(data, 4, protowire.BytesType), entry)
	}
	return data
}

var (
	shortLabels = message(labelled(60 << 10))
	longLabels  = message(labelled(7 << 20))
)

func enrollFlood(ctx context.Context, v *victim) error {
	return v.calls(ctx, func(c *h2conn) error {
		for c.throttle.wait(ctx) {
			if err := c.call(enroll, nil, shortLabels, true); err != nil {
				return err
			}
			if err := c.answer(); err != nil {
				return err
			}
		}
		return nil
	})
}

func longEnroll(ctx context.Context, v *victim) error {
	return v.post(ctx, []string{enroll}, func() io.Reader { return bytes.NewReader(longLabels) })
}

// unfinishedMessages never sends the last byte of any of a hundred messages.
func unfinishedMessages(ctx context.Context, v *victim) error {
	methods := slices.Repeat([]string{create, enroll}, 50)
	return v.post(ctx, methods, func() io.Reader {
		return io.MultiReader(bytes.NewReader(longLabels[:len(longLabels)-1]), stall{ctx})
	})
}

func idleConnection(ctx context.Context, v *victim) error {
	c, err := v.shake(ctx, "h2")
	if err == nil {
		v.keep(c)
	}
	return err
}

func unknownTokens(ctx context.Context, v *victim) error {
	return v.calls(ctx, func(c *h2conn) error {
		for c.throttle.wait(ctx) {
			token := identity.NewAPIToken(identity.Fingerprint{}).Reveal()
			if err := c.call(create, []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + token}}, message(nil), true); err != nil {
				return err
			}
			if err := c.answer(); err != nil {
				return err
			}
		}
		return nil
	})
}

func unknownTokensByHTTP(ctx context.Context, v *victim) error {
	c, err := v.shake(ctx, "http/1.1")
	if err != nil {
		return err
	}
	defer c.Close()
	answer := make([]byte, 4<<10)
	for v.throttle.wait(ctx) {
		token := identity.NewAPIToken(identity.Fingerprint{}).Reveal()
		if _, err := io.WriteString(c, "GET /v1/workloads HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
			return nil // cut off
		}
		if _, err := c.Read(answer); err != nil {
			return nil
		}
	}
	return nil
}

// slowReader sends requests as long as it can, and reads no answer.
func slowReader(ctx context.Context, v *victim) error {
	c, err := v.shake(ctx, "http/1.1")
	if err != nil {
		return err
	}
	request := bytes.Repeat([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), 100)
	for v.throttle.wait(ctx) {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := c.Write(request); err != nil {
			break
		}
	}
	v.keep(c)
	return nil
}

// slowHeaders sends a header byte by byte.
func slowHeaders(ctx context.Context, v *victim) error {
	c, err := v.shake(ctx, "http/1.1")
	if err != nil {
		return err
	}
	v.keep(c)
	if _, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: "); err != nil {
		return nil
	}
	v.drip(c, []byte("x"))
	return nil
}

// slowHeaderFrames sends HTTP/2 headers that never end.
func slowHeaderFrames(ctx context.Context, v *victim) error {
	return v.calls(ctx, func(c *h2conn) error {
		if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x83}}); err != nil {
			return err
		}
		v.keep(c)
		var drop bytes.Buffer
		_ = http2.NewFramer(&drop, nil).WriteContinuation(1, false, []byte{0x86})
		v.drip(c, drop.Bytes())
		return nil
	})
}

// rapidReset begins calls and resets them at once.
func rapidReset(ctx context.Context, v *victim) error {
	return v.calls(ctx, func(c *h2conn) error {
		for i := 0; c.throttle.wait(ctx); i++ {
			for range 100 {
				c.stream += 2
				if err := c.headers([]string{create, enroll}[i%2], nil); err != nil {
					return err
				}
				if err := c.framer.WriteRSTStream(c.stream, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			if err := c.out.Flush(); err != nil {
				return err
			}
		}
		return nil
	})
}

// helloFlood makes the server do its part of a handshake, with a constant hello that costs nothing.
func helloFlood(ctx context.Context, v *victim) error {
	c, err := v.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(hello()); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err = c.Read(make([]byte, 1))
	return err
}

func handshakeFlood(ctx context.Context, v *victim) error {
	c, err := v.shake(ctx, "h2")
	if err == nil {
		_ = c.Close()
	}
	return err
}

// silentConnection sends nothing, or something that is not a hello.
func silentConnection(ctx context.Context, v *victim) error {
	c, err := v.dial(ctx)
	if err != nil {
		return err
	}
	garbage := make([]byte, 1)
	if _, err := rand.Read(garbage); err != nil {
		return err
	}
	if garbage[0]%2 == 0 {
		v.keep(c)
		return nil
	}
	_, err = c.Write([]byte{22, 3, 1, 0xff, garbage[0]})
	return errors.Join(err, c.Close())
}
