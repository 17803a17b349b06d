package objects

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/server/core"
)

// body is the content that a caller sends in messages. Reading it fails when the caller sends nothing for a while, or the
// call ends: the store waits for no caller.
type body struct {
	ctx      context.Context
	messages chan message
	patience *time.Timer
	limit    time.Duration
	rest     []byte
	err      error
}

type message struct {
	data []byte
	err  error
}

// newBody receives messages until end is called. A reception that goes on then ends with its stream.
func newBody(ctx context.Context, limit time.Duration, receive func() ([]byte, error)) (b *body, end func()) {
	b = &body{ctx: ctx, messages: make(chan message), limit: limit, patience: time.NewTimer(limit)}
	over := make(chan struct{})
	go func() {
		for {
			data, err := receive()
			select {
			case b.messages <- message{data, err}:
			case <-over:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return b, func() { close(over); b.patience.Stop() }
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		b.patience.Reset(b.limit)
		select {
		case m := <-b.messages:
			b.rest, b.err = m.data, m.err
		case <-b.patience.C:
			b.err = core.Refuse(codes.DeadlineExceeded, "nothing came for %s, so the upload was given up: send it again", b.limit)
		case <-b.ctx.Done():
			b.err = context.Cause(b.ctx)
		}
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// sendSize is how much content one message has at most.
const sendSize = 256 << 10

// outlet sends content in messages. Writing fails when the caller takes nothing for a while: content that waits for it is
// in memory that others need.
type outlet struct {
	ctx   context.Context
	limit time.Duration
	send  func([]byte) error
	sent  chan error
}

// Write implements io.Writer.
func (o *outlet) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		piece := p[:min(len(p), sendSize)]
		if err := o.one(piece); err != nil {
			return total, err
		}
		total += len(piece)
		p = p[len(piece):]
	}
	return total, nil
}

// one sends a message. A transmission that is given up ends with its stream, and does not need the piece any more: it
// waits only after it has encoded it.
func (o *outlet) one(piece []byte) error {
	go func() { o.sent <- o.send(piece) }()
	late := time.NewTimer(o.limit)
	defer late.Stop()
	select {
	case err := <-o.sent:
		return err
	case <-late.C:
		return core.Refuse(codes.DeadlineExceeded, "nothing was taken for %s, so the download was given up: go on from where it was", o.limit)
	case <-o.ctx.Done():
		return context.Cause(o.ctx)
	}
}

func newOutlet(ctx context.Context, limit time.Duration, send func([]byte) error) *outlet {
	return &outlet{ctx: ctx, limit: limit, send: send, sent: make(chan error, 1)}
}

// copyTo writes a range of an object.
func copyTo(w io.Writer, from io.ReadCloser) error {
	_, err := from.(io.WriterTo).WriteTo(w)
	return errors.Join(err, from.Close())
}
