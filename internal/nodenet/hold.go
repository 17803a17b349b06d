package nodenet

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// hold reserves a port of the machine, and proxies what the rules do not translate: [::1],
// and everything while rules are missing.
type hold struct {
	key      portKey
	backends func(portKey) []netip.AddrPort
	log      *slog.Logger
	ctx      context.Context
	cancel   context.CancelFunc
	work     sync.WaitGroup
}

// holdPort opens the port at its address, or for both families, or not at all.
func (c *claims) holdPort(key portKey) (_ *hold, err error) {
	h := &hold{key: key, backends: c.backends, log: c.log}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if key.addr.IsValid() {
		err := h.open(key.protocol+familyOfAddr(key.addr).suffix, key.addr)
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			err = errors.New("this machine does not have that address")
		}
		return h, err
	}
	if err := h.open(key.protocol+"4", netip.IPv4Unspecified()); err != nil {
		return nil, err
	}
	if err := h.open(key.protocol+"6", netip.IPv6Unspecified()); err != nil && !withoutIPv6(err) {
		return nil, err
	}
	return h, nil
}

func withoutIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

func (h *hold) open(network string, at netip.Addr) error {
	addr := netip.AddrPortFrom(at, h.key.number)
	if h.key.protocol == "udp" {
		conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return err
		}
		h.work.Go(func() { h.serveUDP(conn) })
		return nil
	}
	listener, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	h.work.Go(func() { h.serveTCP(listener) })
	return nil
}

func (h *hold) close() {
	h.cancel()
	h.work.Wait()
}

// pick chooses a serving backend at random. The machine reaches it directly.
func (h *hold) pick() (netip.AddrPort, bool) {
	all := h.backends(h.key)
	if len(all) == 0 {
		return netip.AddrPort{}, false
	}
	return all[rand.IntN(len(all))], true
}

func (h *hold) serveTCP(listener *net.TCPListener) {
	stop := context.AfterFunc(h.ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.AcceptTCP()
		switch {
		case h.ctx.Err() != nil:
			return
		case err != nil: // too many open files, or a caller that is gone already
			h.rest()
			continue
		}
		h.work.Go(func() { h.forwardTCP(conn) })
	}
}

func (h *hold) rest() {
	select {
	case <-h.ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}

func (h *hold) forwardTCP(from *net.TCPConn) {
	defer func() { _ = from.Close() }()
	stop := context.AfterFunc(h.ctx, func() { _ = from.Close() })
	defer stop()
	addr, found := h.pick()
	if !found {
		_ = from.SetLinger(0) // refused, as if the port were closed
		return
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.DialContext(h.ctx, "tcp", addr.String())
	if err != nil {
		_ = from.SetLinger(0)
		return
	}
	to := conn.(*net.TCPConn)
	defer func() { _ = to.Close() }()
	stopTo := context.AfterFunc(h.ctx, func() { _ = to.Close() })
	defer stopTo()
	var back sync.WaitGroup
	back.Go(func() { pass(from, to) })
	pass(to, from)
	back.Wait()
}

// pass copies one direction and passes its end on.
func pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
}

// The lifetime of a flow of datagrams, and how many there may be on a port.
const (
	flowIdle = time.Minute
	maxFlows = 1024
	datagram = 64 << 10
)

func (h *hold) serveUDP(conn *net.UDPConn) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(h.ctx, func() { _ = conn.Close() })
	defer stop()
	flows := &flows{byPeer: map[netip.AddrPort]*net.UDPConn{}}
	buffer := make([]byte, datagram)
	for {
		size, peer, err := conn.ReadFromUDPAddrPort(buffer)
		switch {
		case h.ctx.Err() != nil:
			return
		case err != nil:
			h.rest()
			continue
		}
		if to := h.flow(flows, conn, peer); to != nil {
			_, _ = to.Write(buffer[:size]) // a datagram may be lost
		}
	}
}

// flows are the peers of a port.
type flows struct {
	mu     sync.Mutex
	byPeer map[netip.AddrPort]*net.UDPConn
}

// flow is the connection for the datagrams of a peer, nil if there is none.
func (h *hold) flow(f *flows, conn *net.UDPConn, peer netip.AddrPort) *net.UDPConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to := f.byPeer[peer]; to != nil {
		return to
	}
	addr, found := h.pick()
	if !found || len(f.byPeer) >= maxFlows {
		return nil
	}
	to, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil
	}
	f.byPeer[peer] = to
	h.work.Go(func() {
		h.answer(conn, to, peer)
		f.mu.Lock()
		delete(f.byPeer, peer)
		f.mu.Unlock()
	})
	return to
}

// answer passes datagrams back until there are none for a while.
func (h *hold) answer(conn, from *net.UDPConn, peer netip.AddrPort) {
	defer func() { _ = from.Close() }()
	stop := context.AfterFunc(h.ctx, func() { _ = from.Close() })
	defer stop()
	buffer := make([]byte, datagram)
	for {
		if err := from.SetReadDeadline(time.Now().Add(flowIdle)); err != nil {
			return
		}
		size, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := conn.WriteToUDPAddrPort(buffer[:size], peer); err != nil {
			return
		}
	}
}
