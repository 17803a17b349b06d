package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// Limits bound what one machine may do.
type Limits struct {
	// BytesPerSecond slows a machine down that sends more. 0 stands for the default.
	BytesPerSecond int
	// Silence is how long a connection may send nothing. 0 stands for the default.
	Silence time.Duration
}

const (
	defaultBytesPerSecond = 1250 << 20 // ten gigabits
	defaultSilence        = 75 * time.Second
)

// Hub is the server's side: it copies packets from one connection to another.
type Hub struct {
	limits Limits

	mu    sync.RWMutex
	links map[Address]*link

	stats Stats
}

// Stats count what a hub did since its start.
type Stats struct {
	Connected int
	Packets   uint64
	Bytes     uint64
	// Dropped counts packets for receivers that were too slow.
	Dropped uint64
}

// link is the connection of one machine.
type link struct {
	conn  net.Conn
	queue *queue
	// counts are added to the hub's when they are asked for.
	mu      sync.Mutex
	packets uint64
	bytes   uint64
	dropped uint64
}

// NewHub returns a hub without connections.
func NewHub(l Limits) *Hub {
	if l.BytesPerSecond == 0 {
		l.BytesPerSecond = defaultBytesPerSecond
	}
	if l.Silence == 0 {
		l.Silence = defaultSilence
	}
	return &Hub{limits: l, links: map[Address]*link{}}
}

// Serve relays for the machine with an address until its connection or ctx ends. A newer connection of the same machine
// replaces an older one. It closes conn.
func (h *Hub) Serve(ctx context.Context, from Address, conn net.Conn) error {
	l := &link{conn: conn, queue: newQueue()}
	h.enter(from, l)
	defer h.leave(from, l)
	defer context.AfterFunc(ctx, l.close)()
	var both errgroup.Group
	both.Go(func() error {
		defer l.close()
		return l.queue.copyTo(deadlined{conn, h.limits.Silence})
	})
	both.Go(func() error {
		defer l.close()
		return h.receive(ctx, from, l)
	})
	err := both.Wait()
	if ctx.Err() != nil || ended(err) {
		return nil
	}
	return err
}

// ended reports whether one side has closed the connection.
func ended(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF)
}

// receive reads the frames of one machine. Frames that have arrived together are passed on together.
func (h *Hub) receive(ctx context.Context, from Address, l *link) error {
	r := newReader(deadlined{l.conn, h.limits.Silence})
	limit := rate.NewLimiter(rate.Limit(h.limits.BytesPerSecond), max(h.limits.BytesPerSecond/10, r.Size()))
	for {
		b := batch{hub: h, from: from, sender: l}
		f, err := readFrame(r)
		for {
			if err != nil {
				return err
			}
			b.handle(f)
			if !another(r) {
				break
			}
			f, err = readFrame(r)
		}
		b.flush()
		if err := limit.WaitN(ctx, b.size); err != nil {
			return err
		}
	}
}

// batch are frames of one machine that have arrived together.
type batch struct {
	hub    *Hub
	from   Address
	sender *link
	size   int

	address  Address // of the last packet's receiver
	receiver *link   // that receiver, nil if it is absent

	packets, bytes, dropped uint64
}

func (b *batch) handle(f frame) {
	b.size += headerSize + len(f.packet)
	switch f.kind {
	case kindPacket:
		b.pass(f)
	case kindPing:
		b.sender.queue.put(frame{kind: kindPong, packet: f.packet})
	}
}

// pass copies a packet to its receiver.
func (b *batch) pass(f frame) {
	if b.receiver == nil || b.address != f.address {
		b.switchTo(f.address)
	}
	switch {
	case b.receiver == nil:
		b.sender.queue.put(frame{kind: kindAbsent, address: f.address})
	case b.receiver.queue.add(frame{kind: kindPacket, address: b.from, packet: f.packet}):
		b.packets++
		b.bytes += uint64(len(f.packet))
	default:
		b.dropped++
	}
}

func (b *batch) switchTo(a Address) {
	if b.receiver != nil {
		b.receiver.queue.flush()
	}
	b.hub.mu.RLock()
	defer b.hub.mu.RUnlock()
	b.address, b.receiver = a, b.hub.links[a]
}

// flush counts all packets, and lets those of the last receiver go out.
func (b *batch) flush() {
	b.sender.count(b.packets, b.bytes, b.dropped)
	if b.receiver != nil {
		b.receiver.queue.flush()
	}
}

func (l *link) count(packets, bytes, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.packets += packets
	l.bytes += bytes
	l.dropped += dropped
}

// Stats returns what the hub did so far.
func (h *Hub) Stats() Stats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := h.stats
	all.Connected = len(h.links)
	for _, l := range h.links {
		l.addTo(&all)
	}
	return all
}

func (l *link) addTo(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Packets += l.packets
	s.Bytes += l.bytes
	s.Dropped += l.dropped
}

func (h *Hub) enter(a Address, l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if older := h.links[a]; older != nil {
		older.close()
	}
	h.links[a] = l
}

func (h *Hub) leave(a Address, l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.addTo(&h.stats)
	if h.links[a] == l {
		delete(h.links, a)
	}
}

func (l *link) close() {
	l.queue.close()
	_ = l.conn.Close()
}

// deadlined fails reads and writes that make no progress for a while.
type deadlined struct {
	net.Conn
	patience time.Duration
}

func (d deadlined) Read(p []byte) (int, error) {
	if err := d.SetReadDeadline(time.Now().Add(d.patience)); err != nil {
		return 0, err
	}
	return d.Conn.Read(p)
}

func (d deadlined) Write(p []byte) (int, error) {
	if err := d.SetWriteDeadline(time.Now().Add(d.patience)); err != nil {
		return 0, err
	}
	return d.Conn.Write(p)
}
