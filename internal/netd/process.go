package netd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/deadpeer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// process is the network process itself.
type process struct {
	log  *slog.Logger
	stop context.CancelFunc

	mu        sync.Mutex
	agent     *json.Encoder // of the agent that is connected; nil if none is
	key       mesh.PrivateKey
	setup     mesh.Setup
	announced *mesh.Announcement
	running   *running

	names *names
}

// running is a mesh and the goroutine that runs it.
type running struct {
	mesh   *mesh.Mesh
	cancel context.CancelFunc
	ended  chan struct{}
}

// Serve is the network process: it serves agents that connect to a socket, until ctx ends or an agent says so.
func Serve(ctx context.Context, socket string, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	p := &process{log: log, stop: cancel}
	if p.names, err = newNames(p); err != nil {
		return errors.Join(err, listener.Close())
	}
	var tasks sync.WaitGroup
	// Agents are connected until the mesh is left: that is how Stop knows.
	connected, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		p.end()
		hangUp()
		tasks.Wait()
	}()
	tasks.Go(func() { p.watch(ctx, socket) })
	tasks.Go(func() { _ = p.names.resolver.Run(ctx) }) // it ends with ctx
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			cancel()
			return fmt.Errorf("wait for the agent: %w", err)
		}
		tasks.Go(func() {
			defer context.AfterFunc(connected, func() { _ = conn.Close() })()
			p.serve(ctx, conn)
		})
	}
}

// watchEvery is how often the process looks whether it is still wanted.
const watchEvery = 10 * time.Second

// watch ends the process when its socket is gone: then no agent can reach it any more. It removes the interface, too,
// because no other process will.
func (p *process) watch(ctx context.Context, socket string) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		p.mu.Lock()
		name := p.setup.Interface
		p.mu.Unlock()
		p.end()
		if name != "" {
			_ = mesh.RemoveInterface(name) // it is gone already, or there is no caller left to tell
		}
		p.stop()
		return
	}
}

// serve handles the messages of one agent.
func (p *process) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	out := json.NewEncoder(conn)
	p.mu.Lock()
	p.agent = out                 // the newest agent is the right one
	program, _ := os.Executable() // an agent that does not know it replaces the process
	_ = out.Encode(response{Version: version, Program: program, Announced: p.announced, Resolver: p.names.problem()})
	p.mu.Unlock()
	for in := json.NewDecoder(conn); ; {
		var r request
		if in.Decode(&r) != nil {
			break
		}
		if err := p.handle(ctx, out, r); err != nil {
			p.log.Error("the agent's request failed", "error", err)
			p.fail(out, r, err)
		}
		if r.Full || r.AllServices {
			debug.FreeOSMemory() // a full set is large once decoded, and rare
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agent == out {
		p.agent = nil
	}
}

func (p *process) say(out *json.Encoder, r response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = out.Encode(r) // an agent that is gone asks again
}

// fail answers a request that failed, and all callers that wait for it.
func (p *process) fail(out *json.Encoder, r request, err error) {
	p.say(out, response{Failed: err.Error()})
	numbers := r.Done
	for _, q := range r.Asked {
		numbers = append(numbers, q.Number)
	}
	for _, number := range numbers {
		p.say(out, response{Failed: err.Error(), Number: number})
	}
}

func (p *process) handle(ctx context.Context, out *json.Encoder, r request) error {
	if r.Stop {
		p.stop()
		return nil
	}
	if err := p.names.apply(r); err != nil { // names are answered even if there is no mesh
		return err
	}
	for _, number := range r.Done {
		p.say(out, response{Number: number})
	}
	if r.Key != nil {
		if err := p.setKey(r.Key); err != nil {
			return err
		}
	}
	if r.Setup != nil {
		if err := p.setUp(ctx, *r.Setup); err != nil {
			return err
		}
	}
	p.mu.Lock()
	current := p.running
	p.mu.Unlock()
	if current == nil {
		return errors.New("the network is not set up yet")
	}
	m := current.mesh
	switch {
	case r.Full:
		m.SetPeers(r.Changed)
	case len(r.Changed)+len(r.Removed) > 0:
		m.Update(r.Changed, r.Removed)
	}
	if r.Relays != nil {
		m.SetRelays(r.Relays)
	}
	for _, q := range r.Asked {
		if q.Probe != "" {
			go p.probe(ctx, out, m, q)
			continue
		}
		status := m.Status(q.All)
		p.say(out, response{Number: q.Number, Status: &status})
	}
	return nil
}

// probeTime is how long a direct path is looked for.
const probeTime = 3 * time.Second

// probe answers a question about one peer.
func (p *process) probe(ctx context.Context, out *json.Encoder, m *mesh.Mesh, q question) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var status mesh.Status
	if peer, known := m.Probe(ctx, q.Probe); known {
		status.Peers = []mesh.PeerStatus{peer}
	}
	p.say(out, response{Number: q.Number, Status: &status})
}

func (p *process) setKey(b []byte) error {
	key, err := mesh.ParsePrivateKey(b)
	if err != nil {
		return err
	}
	p.mu.Lock()
	same := !p.key.IsZero() && p.key.Public() == key.Public()
	p.key = key
	current := p.running
	p.mu.Unlock()
	if same || current == nil {
		return nil
	}
	return current.mesh.SetKey(key)
}

// setUp joins the mesh, unless that was done in the same way.
func (p *process) setUp(ctx context.Context, s mesh.Setup) error {
	p.mu.Lock()
	current, same, key := p.running, p.setup.Equal(s), p.key
	p.mu.Unlock()
	if current != nil && same {
		return nil
	}
	p.end()
	m, err := mesh.Open(mesh.Options{
		Setup: s, Key: key, Dial: dialer(s.Credentials), Announce: p.announce, Logger: p.log,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	started := &running{mesh: m, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(started.ended)
		_ = m.Run(ctx) // it ends with ctx
	}()
	p.mu.Lock()
	p.setup, p.running = s, started
	p.mu.Unlock()
	return nil
}

// end leaves the mesh.
func (p *process) end() {
	p.mu.Lock()
	old := p.running
	p.running = nil
	p.mu.Unlock()
	if old == nil {
		return
	}
	old.cancel()
	<-old.ended
	if err := old.mesh.Close(); err != nil {
		p.log.Warn("the mesh did not end cleanly", "error", err)
	}
}

// announce tells the agent how this node can be reached.
func (p *process) announce(a mesh.Announcement) {
	p.mu.Lock()
	p.announced = &a
	p.mu.Unlock()
	p.tellAgent(response{Announced: &a}) // an agent that is gone hears it when it is back
}

// tellAgent tells the connected agent something, and reports whether there is one.
func (p *process) tellAgent(r response) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.agent != nil && p.agent.Encode(r) == nil
}

// dialer connects to relays by mutual TLS. It reads the credentials each time: they are renewed now and then.
func dialer(credentials string) func(context.Context, mesh.Relay) (net.Conn, error) {
	return func(ctx context.Context, r mesh.Relay) (net.Conn, error) {
		mine, err := identity.LoadCredentials(credentials)
		if err != nil {
			return nil, err
		}
		config := identity.ClientTLS(mine.Trust(), mine.Certificate)
		config.NextProtos = []string{relay.Protocol}
		return (&tls.Dialer{NetDialer: deadpeer.Dialer(), Config: config}).DialContext(ctx, "tcp", r.Address)
	}
}
