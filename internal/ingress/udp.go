package ingress

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// flowIdle is how long a flow may be silent.
	flowIdle = time.Minute
	// mostFlows is how many flows a port may have, and mostFlowsEach how many of them may come from one address.
	mostFlows, mostFlowsEach = 16384, 1024
	// largestPacket is that of UDP.
	largestPacket = 64 << 10
	// queued is how many packets of a flow wait for its backend.
	queued = 64
)

// flows are those of a UDP port, by the address of the client.
type flows struct {
	e    *Engine
	at   port
	conn *net.UDPConn

	mu   sync.Mutex
	all  map[netip.AddrPort]*flow
	each map[netip.Addr]int
}

// flow is what one client sends and gets.
type flow struct {
	from    netip.AddrPort
	packets chan []byte
	source  []byte // says with which of our addresses to answer
}

// serveUDP passes packets on until the port is closed, and waits for its flows.
func (e *Engine) serveUDP(at port, conn *net.UDPConn) {
	f := &flows{e: e, at: at, conn: conn, all: map[netip.AddrPort]*flow{}, each: map[netip.Addr]int{}}
	wantSource(conn)
	var running sync.WaitGroup
	defer running.Wait()
	packet, control := make([]byte, largestPacket), make([]byte, 128)
	for {
		n, size, _, from, err := conn.ReadMsgUDPAddrPort(packet, control)
		if errors.Is(err, net.ErrClosed) {
			f.endAll()
			return
		}
		if err != nil {
			continue // a client that is unreachable
		}
		r := e.current.Load().byPort[at]
		if r == nil || len(r.allow) > 0 && !within(r.allow, from.Addr().Unmap()) {
			continue
		}
		if at.number == e.opts.SharedUDP && e.opts.Theirs != nil && e.opts.Theirs(destination(control[:size])) {
			continue
		}
		one, isNew := f.get(from, control[:size])
		if one == nil {
			continue
		}
		if isNew {
			running.Go(func() { f.run(one, r) })
		}
		select {
		case one.packets <- append([]byte(nil), packet[:n]...):
		default: // a backend that is too slow
		}
	}
}

func (f *flows) get(from netip.AddrPort, control []byte) (one *flow, isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one = f.all[from]; one != nil {
		return one, false
	}
	who := group(from.Addr())
	if len(f.all) >= mostFlows || f.each[who] >= mostFlowsEach {
		return nil, false
	}
	one = &flow{from: from, packets: make(chan []byte, queued), source: sourceOf(control)}
	f.all[from] = one
	f.each[who]++
	return one, true
}

func (f *flows) end(one *flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all[one.from] != one {
		return
	}
	delete(f.all, one.from)
	close(one.packets)
	who := group(one.from.Addr())
	if f.each[who]--; f.each[who] <= 0 {
		delete(f.each, who)
	}
}

func (f *flows) endAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		close(one.packets)
	}
	clear(f.all)
}

// run passes on the packets of a flow until it is silent for too long.
func (f *flows) run(one *flow, r *route) {
	defer f.end(one)
	began := time.Now()
	backend, c, ok := f.e.dialBackend(r, "udp")
	if !ok {
		r.local.answered(time.Since(began), true)
		return
	}
	c.meter.answered(time.Since(began), false)
	c.meter.open.Add(1)
	defer c.meter.open.Add(-1)
	idle := flowIdle
	if h := r.spec.GetHttp(); h.GetIdleTimeout() != "" {
		idle = duration(h.GetIdleTimeout(), flowIdle)
	}
	var answers sync.WaitGroup
	defer answers.Wait()
	defer func() { _ = backend.Close() }()
	answered := make(chan struct{}, 1)
	answers.Go(func() {
		packet := make([]byte, largestPacket)
		for {
			n, err := backend.Read(packet)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond) // nothing listens there; it may soon
				continue
			}
			c.meter.sent.Add(int64(n))
			select {
			case answered <- struct{}{}:
			default:
			}
			_, _, _ = f.conn.WriteMsgUDPAddrPort(packet[:n], one.source, one.from) // packets may be lost
		}
	})
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case packet, open := <-one.packets:
			if !open {
				return
			}
			c.meter.received.Add(int64(len(packet)))
			_, _ = backend.Write(packet) // packets may be lost
		case <-answered:
		case <-timer.C:
			return
		}
		timer.Reset(idle)
	}
}

// wantSource asks the kernel to say to which of our addresses a packet was sent: the answer must come from there. Where
// it does not, the answer comes from the address that the kernel chooses.
func wantSource(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1) // one of them fits
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	})
}

// sourceOf turns what the kernel says of a packet into what to say with the answer.
func sourceOf(control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])}
			return unix.PktInfo6(&info)
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			info := unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[4:8])}
			return unix.PktInfo4(&info)
		}
	}
	return nil
}

// destination is the address to which a packet was sent, by what the kernel says of it; not valid if it does not say.
func destination(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[8:12]))
		}
	}
	return netip.Addr{}
}
