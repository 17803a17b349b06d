package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// retryPause is the time between two attempts to listen on an address.
	retryPause = time.Second
	// Limits of TCP: per client, in all, and for a connection on which nothing happens.
	maxClientConns = 16
	maxConns       = 256
	idleTime       = 10 * time.Second
	// receiveBuffer lets a burst of queries wait in the kernel.
	receiveBuffer = 1 << 20
	maxReaders    = 4
	acceptPause   = 100 * time.Millisecond
)

// serve listens on the addresses of SetListen, as they are now.
func (r *Resolver) serve(ctx context.Context) {
	stops := map[netip.AddrPort]func(){}
	for {
		r.mu.Lock()
		want := map[netip.AddrPort]bool{}
		for _, address := range r.listen {
			want[address] = true
		}
		r.mu.Unlock()
		for address, stop := range stops {
			if !want[address] {
				stop()
				delete(stops, address)
			}
		}
		for address := range want {
			if stops[address] == nil {
				stops[address] = r.startServing(ctx, address)
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return
		case <-r.kick:
		}
	}
}

// startServing returns how to stop it, and to wait until its sockets are closed.
func (r *Resolver) startServing(ctx context.Context, address netip.AddrPort) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var server sync.WaitGroup
	server.Go(func() { r.serveAddress(ctx, address) })
	return func() {
		cancel()
		server.Wait()
	}
}

// serveAddress serves one address, and starts again whenever that fails.
func (r *Resolver) serveAddress(ctx context.Context, address netip.AddrPort) {
	for ctx.Err() == nil {
		err := r.serveOnce(ctx, address)
		if ctx.Err() != nil {
			return
		}
		r.listening(address, fmt.Errorf("serve DNS on %v: %w", address, err))
		pause(ctx, retryPause)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// serveOnce returns when one of the sockets fails.
func (r *Resolver) serveOnce(ctx context.Context, address netip.AddrPort) error {
	packets, listener, err := open(ctx, address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { _, _ = packets.Close(), listener.Close() })
	defer stop()
	r.listening(netip.AddrPortFrom(address.Addr(), uint16(listener.Addr().(*net.TCPAddr).Port)), nil)
	var readers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
		readers.Go(func() { cancel(r.servePackets(packets)) })
	}
	readers.Go(func() { cancel(r.serveConns(ctx, listener)) })
	readers.Wait()
	return context.Cause(ctx)
}

// open binds both sockets. The kernel lets them have an address that does not exist yet, and keeps them when it
// vanishes: they work again when it is back.
func open(ctx context.Context, address netip.AddrPort) (*net.UDPConn, net.Listener, error) {
	config := net.ListenConfig{Control: socketOptions}
	// TCP comes first: the kernel refuses it while another resolver has the address, which it does not for UDP.
	listener, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, nil, err
	}
	port := uint16(listener.Addr().(*net.TCPAddr).Port) // the same if any port will do
	packets, err := config.ListenPacket(ctx, "udp", netip.AddrPortFrom(address.Addr(), port).String())
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	return packets.(*net.UDPConn), listener, nil
}

func socketOptions(network, _ string, socket syscall.RawConn) (err error) {
	control := socket.Control(func(fd uintptr) {
		if strings.HasPrefix(network, "udp") {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
			// A route may have the port at all other addresses of the machine; what is sent to this one still comes here.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if strings.HasSuffix(network, "6") {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}
	})
	return errors.Join(control, err)
}

// servePackets answers from memory in the same goroutine; only answers of upstreams need another one.
func (r *Resolver) servePackets(packets *net.UDPConn) error {
	buffer := make([]byte, 4096)
	for {
		n, from, err := packets.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return err
		}
		send := func(answer []byte) { _, _ = packets.WriteToUDPAddrPort(answer, from) }
		if answer, _ := r.handle(buffer[:n], from.Addr(), false, send); answer != nil {
			send(answer)
		}
	}
}

func (r *Resolver) serveConns(ctx context.Context, listener net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // too many files are open, or the client has gone: packets are still served
			pause(ctx, acceptPause)
			continue
		}
		conns.Go(func() { r.serveConn(ctx, conn) })
	}
}

// serveConn answers the queries on a connection, one after the other.
func (r *Resolver) serveConn(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	c := r.clients.of(from)
	mine, all := c.conns.Add(1), r.conns.Add(1)
	defer c.conns.Add(-1)
	defer r.conns.Add(-1)
	if mine > maxClientConns || all > maxConns {
		r.counters.overloaded.Add(1)
		return
	}
	answers := make(chan []byte, 1)
	for {
		_ = conn.SetDeadline(time.Now().Add(idleTime))
		wire, err := readMessage(conn)
		if err != nil {
			return
		}
		answer, pending := r.handle(wire, from, true, func(answer []byte) { answers <- answer })
		if pending {
			select {
			case answer = <-answers:
			case <-ctx.Done():
			}
		}
		if answer == nil {
			return
		}
		framed := append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer))), answer...)
		if _, err := conn.Write(framed); err != nil {
			return
		}
	}
}
