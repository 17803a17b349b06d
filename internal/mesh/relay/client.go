package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// pingEvery keeps a connection from looking dead, and measures its round trip.
const pingEvery = 15 * time.Second

// silence is how long a relay may send nothing: pings are answered.
const silence = 2*pingEvery + 5*time.Second

// Handler receives what a relay sends. It must not keep the packet.
type Handler interface {
	// Packet is a packet from a machine.
	Packet(from Address, packet []byte)
	// Flush follows the last of several packets that have arrived together.
	Flush()
	// Absent says that a machine, to which a packet was sent, is not connected to this relay.
	Absent(Address)
}

// Client is a machine's side of one connection to a relay.
type Client struct {
	conn    net.Conn
	queue   *queue
	handler Handler
	started time.Time
	trip    atomic.Int64
}

// NewClient uses a connection that is authenticated already. Run must be called.
func NewClient(conn net.Conn, h Handler) *Client {
	return &Client{conn: conn, queue: newQueue(), handler: h, started: time.Now()}
}

// Send queues packets, which begin at an offset in their buffers, and returns how many there was room for.
func (c *Client) Send(to Address, buffers [][]byte, offset int) (taken int) {
	taken = c.queue.addAll(to, buffers, offset)
	c.queue.flush()
	return taken
}

// RoundTrip is how long the relay took to answer the last ping; 0 if it has not yet.
func (c *Client) RoundTrip() time.Duration { return time.Duration(c.trip.Load()) }

// Run relays until the connection or ctx ends, and closes the connection.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, c.close)()
	var all errgroup.Group
	for _, part := range []func() error{
		func() error { return c.queue.copyTo(deadlined{c.conn, silence}) },
		c.receive,
		func() error { return c.ping(ctx) },
	} {
		all.Go(func() error {
			defer cancel()
			return part()
		})
	}
	if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (c *Client) receive() error {
	r := newReader(deadlined{c.conn, silence})
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		switch f.kind {
		case kindPacket:
			c.handler.Packet(f.address, f.packet)
		case kindAbsent:
			c.handler.Absent(f.address)
		case kindPong:
			c.measured(f.packet)
		}
		if !another(r) {
			c.handler.Flush()
		}
	}
}

// Verify closes the connection if the relay sends nothing for a while, although it is asked to.
func (c *Client) Verify(within time.Duration) {
	_ = c.conn.SetReadDeadline(time.Now().Add(within)) // until the next read; it fails only on a closed connection
	c.ask()                                            // not before: the answer would not lift a deadline that comes after it
}

// ask sends a ping.
func (c *Client) ask() {
	c.queue.put(frame{kind: kindPing, packet: binary.BigEndian.AppendUint64(nil, uint64(time.Since(c.started)))})
}

// ping asks at once, and then now and then.
func (c *Client) ping(ctx context.Context) error {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		c.ask()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (c *Client) measured(content []byte) {
	if len(content) != 8 {
		return
	}
	if took := time.Since(c.started) - time.Duration(binary.BigEndian.Uint64(content)); took >= 0 {
		c.trip.Store(int64(max(took, 1))) // a clock may be coarse
	}
}

func (c *Client) close() {
	c.queue.close()
	_ = c.conn.Close()
}
