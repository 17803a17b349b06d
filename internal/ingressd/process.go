package ingressd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress"
	"github.com/cloudless/cloudless/internal/ingress/origin"
)

const (
	// socketName, stateName and logName are in the folders that the agent names.
	socketName, stateName, logName = "ingress.sock", "ingress.state", "ingress.log"
	// reportEvery is how often the process reports what it has measured, and which services should wake.
	reportEvery = time.Second
	// watchEvery is how often the process looks whether it is still wanted.
	watchEvery = 10 * time.Second
	// drainTime is how long a replaced process keeps the connections that it has.
	drainTime = time.Hour
	// handOverTime limits the talk between a process and its successor.
	handOverTime = 10 * time.Second
)

// Process says what an ingress process is told when it starts.
type Process struct {
	// Dir holds its socket and, if it is a tmpfs, what it knows.
	Dir string
	// LogDir holds the access log.
	LogDir string
	// Program is the name of its program, by which agents recognize their version.
	Program string
	// Connections is how many clients may be connected, 0 for as many as there are file descriptors for.
	Connections int
	Log         *slog.Logger
}

// process is the ingress process itself.
type process struct {
	Process
	engine *ingress.Engine
	stop   context.CancelFunc

	mu        sync.Mutex
	agent     net.Conn // the newest one
	ended     func()   // ends the reports to it
	changed   bool     // what it knows, since it was stored
	replaced  bool
	forgotten bool // nothing is stored any more
}

// Serve is the ingress process: it answers for the routes that an agent sends to its socket, until ctx ends, an agent says
// so, or a successor has taken over and the last connection has ended.
func Serve(ctx context.Context, o Process) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket := filepath.Join(o.Dir, socketName)
	before := takeOver(socket, o.Log)
	p := &process{Process: o, stop: cancel}
	if o.Connections == 0 {
		o.Connections = connections()
	}
	p.engine = ingress.New(ingress.Options{
		LogDir: o.LogDir, Store: filepath.Join(o.Dir, origin.Socket), Inherited: before.ports, Connections: o.Connections, SharedUDP: dnsPort, Theirs: new(bridges).have, Logger: o.Log,
	})
	defer p.engine.Close()
	if before.known == nil {
		before.known = p.stored()
	}
	if before.known != nil {
		p.engine.Apply(before.known)
	}
	listener, err := listen(socket)
	if err != nil {
		before.close()
		return err
	}
	before.confirm()
	var tasks, conversations sync.WaitGroup
	connected, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		cancel()
		tasks.Wait()
		p.engine.Close()
		hangUp() // only now: that is how an agent knows that the ports are free
		conversations.Wait()
	}()
	tasks.Go(func() { p.tend(ctx, socket) })
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("wait for the agent: %w", err)
		}
		conversations.Go(func() {
			defer context.AfterFunc(connected, func() { _ = conn.Close() })()
			p.converse(ctx, conn)
		})
	}
	p.mu.Lock()
	replaced := p.replaced
	p.mu.Unlock()
	if !replaced {
		return nil
	}
	hangUp()
	draining, end := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer end()
	if err := p.engine.Drain(draining); err != nil {
		o.Log.Warn("a replaced ingress process ends", "error", err)
	}
	return nil
}

// listen makes the socket, in place of another process's.
func listen(socket string) (*net.UnixListener, error) {
	own := socket + "." + strconv.Itoa(os.Getpid())
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: own, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the agent: %w", err)
	}
	listener.SetUnlinkOnClose(false) // the name may be the successor's by then
	if err = os.Chmod(own, 0o600); err == nil {
		err = os.Rename(own, socket)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the agent: %w", err), listener.Close(), os.Remove(own))
	}
	return listener, nil
}

// predecessor is what another process has handed over.
type predecessor struct {
	conn  *net.UnixConn
	known *v1.IngressDown
	ports map[string]*os.File
}

// takeOver asks a process that runs already for its ports and for what it knows. Without one, everything is new.
func takeOver(socket string, log *slog.Logger) (before predecessor) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return before
	}
	_ = conn.SetDeadline(time.Now().Add(handOverTime)) // if it is closed, reading reports it
	before, err = receive(conn)
	if err != nil {
		log.Warn("the earlier ingress process hands nothing over", "error", err)
		before.close()
		return predecessor{}
	}
	return before
}

func receive(conn *net.UnixConn) (before predecessor, err error) {
	before = predecessor{conn: conn, ports: map[string]*os.File{}}
	r := &fileReader{conn: conn}
	defer r.close()
	if err := write(conn, replace, nil); err != nil {
		return before, err
	}
	for {
		k, content, err := read(r)
		if err != nil {
			return before, err
		}
		switch k {
		case down:
			before.known = &v1.IngressDown{}
			if err := proto.Unmarshal(content, before.known); err != nil {
				return before, err
			}
		case file:
			before.ports[string(content)] = r.next()
		case all:
			return before, nil
		}
	}
}

// confirm tells the predecessor that its ports are served.
func (b predecessor) confirm() {
	if b.conn == nil {
		return
	}
	_ = write(b.conn, taken, nil) // if it is gone, it serves nothing
	_, _, _ = read(b.conn)        // until it has stopped
	_ = b.conn.Close()
}

func (b predecessor) close() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	for _, f := range b.ports {
		_ = f.Close()
	}
}

// converse handles the messages of an agent, or of a successor.
func (p *process) converse(ctx context.Context, conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	if write(conn, hello, []byte(p.Program)) != nil {
		return
	}
	reporting := false
	for {
		k, content, err := read(conn)
		if err != nil {
			p.lost(conn)
			return
		}
		if k == replace {
			p.handOver(conn)
			return
		}
		if !reporting {
			reporting = true
			p.report(ctx, conn)
		}
		switch k {
		case stop:
			p.forget()
			p.stop()
		case down:
			m := &v1.IngressDown{}
			if err := proto.Unmarshal(content, m); err != nil {
				p.Log.Error("the agent's message cannot be read", "error", err)
				return
			}
			p.apply(m)
		}
	}
}

func (p *process) apply(m *v1.IngressDown) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.replaced {
		return
	}
	p.engine.Apply(m)
	p.changed = true
}

// report reports to an agent what is measured, until it has gone or there is a newer one.
func (p *process) report(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	if p.ended != nil {
		p.ended()
	}
	p.agent, p.ended = conn, cancel
	p.mu.Unlock()
	go func() { // ends with the conversation
		ticker := time.NewTicker(reportEvery)
		defer ticker.Stop()
		for first := true; ctx.Err() == nil; first = false {
			if m := p.engine.Report(first); m != nil {
				b, err := proto.Marshal(m)
				if err != nil || write(conn, up, b) != nil {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			case <-p.engine.Urgent():
			}
		}
	}()
}

func (p *process) lost(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agent == conn {
		p.ended()
		p.agent, p.ended = nil, nil
	}
}

// handOver gives a successor the ports and all that is known. From its word on, this process only ends what it has.
func (p *process) handOver(conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(handOverTime)) // if it is closed, writing reports it
	ports := p.engine.Ports()
	defer func() {
		for _, f := range ports {
			_ = f.Close()
		}
	}()
	if known := p.engine.Full(); known != nil {
		if writeDown(conn, known) != nil {
			return
		}
	}
	for name, f := range ports {
		if err := sendFile(conn, name, f); err != nil {
			p.Log.Warn("a port is not handed over", "port", name, "error", err)
			return
		}
	}
	if write(conn, all, nil) != nil {
		return
	}
	if k, _, err := read(conn); err != nil || k != taken {
		return // the successor has failed: this process goes on
	}
	p.mu.Lock()
	p.replaced = true
	p.mu.Unlock()
	p.stop()
}

// tend stores what is known, and ends the process when nobody can reach it any more.
func (p *process) tend(ctx context.Context, socket string) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.store()
		if time.Since(looked) < watchEvery {
			continue
		}
		looked = time.Now()
		if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
			p.forget()
			p.stop()
			return
		}
	}
}

// store keeps what is known for a process after a crash of this one, if that stays in memory.
func (p *process) store() {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.changed && !p.replaced && !p.forgotten
	p.changed = false
	if !changed || !isMemory(p.Dir) {
		return
	}
	known := p.engine.Full()
	if known == nil {
		return
	}
	b, err := proto.Marshal(known)
	if err == nil {
		path := filepath.Join(p.Dir, stateName)
		if err = os.WriteFile(path+".new", b, 0o600); err == nil {
			err = os.Rename(path+".new", path)
		}
	}
	if err != nil {
		p.Log.Warn("a process after a crash would know nothing", "error", err)
	}
}

func (p *process) stored() *v1.IngressDown {
	if !isMemory(p.Dir) {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(p.Dir, stateName))
	if err != nil {
		return nil
	}
	m := &v1.IngressDown{}
	if err := proto.Unmarshal(b, m); err != nil || !m.GetFull() {
		return nil
	}
	return m
}

// forget removes what was stored: the node answers for nothing any more.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten = true
	_ = os.Remove(filepath.Join(p.Dir, stateName)) // it may not be there
}

// isMemory reports whether a folder is on a file system that is in memory only.
func isMemory(dir string) bool {
	var info unix.Statfs_t
	return unix.Statfs(dir, &info) == nil && (info.Type == unix.TMPFS_MAGIC || info.Type == unix.RAMFS_MAGIC)
}

// mostConnections is how many clients may be connected if there are enough file descriptors. Each needs two, and some are
// needed for other things.
const mostConnections, otherFiles = 100_000, 256

func connections() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 2*mostConnections+otherFiles {
		return mostConnections
	}
	return max((int(limit.Cur)-otherFiles)/2, otherFiles)
}
