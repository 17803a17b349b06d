package relay

import (
	"bufio"
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
	defaultBytesPerSecond = 125 << 20 // a gigabit
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

// receive reads the frames of one machine.
func (h *Hub) receive(ctx context.Context, from Address, l *link) error {
	r := bufio.NewReaderSize(deadlined{l.conn, h.limits.Silence}, 16<<10)
	buffer := make([]byte, MaxPacket)
	limit := rate.NewLimiter(rate.Limit(h.limits.BytesPerSecond), max(h.limits.BytesPerSecond/10, MaxPacket))
	for {
		f, err := readFrame(r, buffer)
		if err != nil {
			return err
		}
		if err := limit.WaitN(ctx, headerSize+len(f.packet)); err != nil {
			return err
		}
		switch f.kind {
		case kindPacket:
			h.pass(from, l, f)
		case kindPing:
			l.queue.put(frame{kind: kindPong, packet: f.packet})
		}
	}
}

// pass copies a packet to its receiver.
func (h *Hub) pass(from Address, l *link, f frame) {
	h.mu.RLock()
	to := h.links[f.address]
	h.mu.RUnlock()
	if to == nil {
		l.queue.put(frame{kind: kindAbsent, address: f.address})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !to.queue.put(frame{kind: kindPacket, address: from, packet: f.packet}) {
		l.dropped++
		return
	}
	l.packets++
	l.bytes += uint64(len(f.packet))
}

// Drop closes the connection of a machine, if there is one.
func (h *Hub) Drop(a Address) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if l := h.links[a]; l != nil {
		l.close()
	}
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
