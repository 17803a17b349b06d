package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ports opens and closes ports as they are wanted.
type ports struct {
	e       *Engine
	address string
	hosts   *tls.Config // of the port for HTTPS
	wake    chan struct{}

	mu        sync.Mutex
	inherited map[string]*os.File
	wanted    map[port]bool
	open      map[port]*listener
	problems  map[port]string
	changed   bool // since the last report
	ended     bool
}

// listener is an open port.
type listener struct {
	tcp *net.TCPListener
	udp *net.UDPConn
}

func (l *listener) close() {
	if l.tcp != nil {
		_ = l.tcp.Close()
	}
	if l.udp != nil {
		_ = l.udp.Close()
	}
}

func newPorts(e *Engine, address string, inherited map[string]*os.File) *ports {
	return &ports{
		e: e, address: address, hosts: e.tlsForHosts(), wake: make(chan struct{}, 1), inherited: inherited,
		wanted: map[port]bool{}, open: map[port]*listener{}, problems: map[port]string{},
	}
}

func (p port) String() string { return p.protocol + "/" + strconv.Itoa(p.number) }

// retryPort is how often a port is tried that another program uses.
const retryPort = 3 * time.Second

// run tries again to open what could not be opened.
func (p *ports) run(ctx context.Context) {
	ticker := time.NewTicker(retryPort)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		if len(p.problems) > 0 && !p.ended {
			p.tryAll()
		}
		p.mu.Unlock()
	}
}

// want opens the ports that are wanted, and closes all others. What was inherited is kept until everything is known.
func (p *ports) want(wanted map[port]bool, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.wanted = wanted
	for at, l := range p.open {
		if !wanted[at] {
			l.close()
			delete(p.open, at)
			p.note()
		}
	}
	for at := range p.problems {
		if !wanted[at] {
			delete(p.problems, at)
			p.note()
		}
	}
	p.tryAll()
	if known {
		p.dropInherited()
	}
}

func (p *ports) dropInherited() {
	for _, file := range p.inherited {
		_ = file.Close()
	}
	p.inherited = nil
}

func (p *ports) note() {
	p.changed = true
	p.e.hurry()
}

// tryAll opens the wanted ports that are not open. The caller holds mu.
func (p *ports) tryAll() {
	for at := range p.wanted {
		if p.open[at] != nil {
			continue
		}
		l, err := p.listen(at)
		problem := ""
		if err != nil {
			problem = explain(at, err)
		} else {
			p.open[at] = l
			p.e.serve(at, l)
		}
		if before, had := p.problems[at]; err == nil || !had || before != problem {
			p.note()
		}
		if delete(p.problems, at); err != nil {
			p.problems[at] = problem
		}
	}
}

// explain says in a sentence why a port is not open.
func explain(at port, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("Another program uses %s port %d.", at.protocol, at.number)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Sprintf("The ingress may not open %s port %d: it needs root or CAP_NET_BIND_SERVICE.", at.protocol, at.number)
	}
	return fmt.Sprintf("The %s port %d cannot be opened: %v.", at.protocol, at.number, err)
}

func (p *ports) listen(at port) (*listener, error) {
	if file := p.inherited[at.String()]; file != nil {
		delete(p.inherited, at.String())
		defer func() { _ = file.Close() }() // the listener has its own
		if l, err := inherit(at, file); err == nil {
			return l, nil
		}
	}
	address := net.JoinHostPort(p.address, strconv.Itoa(at.number))
	if at.protocol == "udp" {
		var config net.ListenConfig
		if at.number == p.e.opts.SharedUDP {
			config.Control = share
		}
		conn, err := config.ListenPacket(p.e.ctx, "udp", address)
		if err != nil {
			return nil, err
		}
		return &listener{udp: conn.(*net.UDPConn)}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &listener{tcp: l.(*net.TCPListener)}, nil
}

// share lets others have the same port at single addresses, if they do the same. What is sent there comes to them.
func share(_, _ string, socket syscall.RawConn) (err error) {
	control := socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(control, err)
}

func inherit(at port, file *os.File) (*listener, error) {
	if at.protocol == "udp" {
		conn, err := net.FilePacketConn(file)
		if err != nil {
			return nil, err
		}
		if udp, ok := conn.(*net.UDPConn); ok {
			return &listener{udp: udp}, nil
		}
		return nil, errors.Join(errors.New("it is no UDP socket"), conn.Close())
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	if tcp, ok := l.(*net.TCPListener); ok {
		return &listener{tcp: tcp}, nil
	}
	return nil, errors.Join(errors.New("it is no TCP socket"), l.Close())
}

// serve serves a port in a goroutine, until it is closed.
func (e *Engine) serve(at port, l *listener) {
	if l.udp != nil {
		e.open.Go(func() { e.serveUDP(at, l.udp) })
		return
	}
	e.accepting.Go(func() {
		for {
			conn, err := l.tcp.Accept()
			switch {
			case err == nil:
				e.open.Go(func() { e.accept(at, conn) })
			case errors.Is(err, net.ErrClosed):
				return
			default: // no file descriptors are left, or a client was too quick to leave
				time.Sleep(5 * time.Millisecond)
			}
		}
	})
}

// report returns the state of all ports, and whether it has changed since the last report.
func (p *ports) report() ([]*v1.IngressPort, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.changed
	p.changed = false
	var all []*v1.IngressPort
	for _, at := range slices.SortedFunc(maps.Keys(p.wanted), func(a, b port) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.number, b.number))
	}) {
		all = append(all, &v1.IngressPort{Protocol: at.protocol, Port: int32(at.number), Problem: p.problems[at]})
	}
	return all, changed
}

// files returns the open ports as files.
func (p *ports) files() map[string]*os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	files := map[string]*os.File{}
	for at, l := range p.open {
		var file *os.File
		var err error
		if l.tcp != nil {
			file, err = l.tcp.File()
		} else {
			file, err = l.udp.File()
		}
		if err == nil { // the successor opens it itself otherwise
			files[at.String()] = file
		}
	}
	return files
}

func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropInherited()
	p.closeAll()
}

func (p *ports) closeAll() {
	p.ended = true
	for at, l := range p.open {
		l.close()
		delete(p.open, at)
	}
}
