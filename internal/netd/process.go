package netd

import (
	"context"
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

	"github.com/cloudless/cloudless/internal/mesh"
)

// process is the network process itself.
type process struct {
	version int // of its messages
	log     *slog.Logger
	stop    context.CancelFunc

	// joining is held while this node joins or leaves the mesh. It comes before mu.
	joining sync.Mutex

	mu        sync.Mutex
	agent     *json.Encoder // of the agent that is connected; nil if none is
	key       mesh.PrivateKey
	wanted    *mesh.Setup // nil until an agent says it
	announced *mesh.Announcement
	running   *running // nil until this node has joined the mesh
	problem   string   // why it has not
	relays    []mesh.Relay
	will      *knownWill // nil until an agent says it

	names *names
	lost  chan struct{} // has a token after the agent has ended
}

// Serve is the network process: it serves agents that connect to a socket, until ctx ends or an agent says so.
func Serve(ctx context.Context, socket string, log *slog.Logger) error {
	return serve(ctx, socket, version, log)
}

func serve(ctx context.Context, socket string, version int, log *slog.Logger) error {
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
	p := &process{version: version, log: log, stop: cancel, lost: make(chan struct{}, 1)}
	if p.names, err = newNames(p); err != nil {
		return errors.Join(err, listener.Close())
	}
	var tasks, conversations sync.WaitGroup
	// An agent stays connected until the process has released everything: that is how it knows when to start another.
	connected, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		cancel()
		tasks.Wait()
		p.leave()
		hangUp()
		conversations.Wait()
	}()
	tasks.Go(func() { p.watch(ctx, socket) })
	tasks.Go(func() { p.keepJoining(ctx) })
	tasks.Go(func() { p.executeWills(ctx) })
	tasks.Go(func() { _ = p.names.resolver.Run(ctx) }) // it ends with ctx
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for the agent: %w", err)
		}
		conversations.Go(func() {
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
		p.stop()
		p.leave()
		p.mu.Lock()
		setup := p.wanted
		p.mu.Unlock()
		if setup != nil {
			_ = mesh.RemoveInterface(setup.Interface) // it is gone already, or there is no caller left to tell
		}
		return
	}
}

// serve handles the messages of one agent.
func (p *process) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	out := json.NewEncoder(conn)
	p.mu.Lock()
	p.agent = out // the newest agent is the right one
	_ = out.Encode(response{Version: p.version, Failed: p.problem, Announced: p.announced, Resolver: p.names.problem()})
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
		select {
		case p.lost <- struct{}{}:
		default:
		}
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
	if r.Will != nil {
		p.setWill(*r.Will)
	}
	if r.Relays != nil {
		p.mu.Lock()
		p.relays = r.Relays
		p.mu.Unlock()
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
		p.setUp(ctx, *r.Setup)
	}
	m, err := p.joined()
	if err != nil { // the agent sends everything again once this node has joined
		for _, q := range r.Asked {
			p.say(out, response{Number: q.Number, Failed: err.Error()})
		}
		return nil
	}
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

// tellAgent tells the connected agent something, and reports whether there is one.
func (p *process) tellAgent(r response) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.agent != nil && p.agent.Encode(r) == nil
}
