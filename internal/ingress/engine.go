package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/accesslog"
	"github.com/cloudless/cloudless/internal/ingress/config"
)

// Options are those of an engine.
type Options struct {
	// LogDir holds the access log. There is none if it is empty.
	LogDir string
	// Address is where ports are opened; everywhere if it is empty.
	Address string
	// Store is the socket of the agent that leads to the object store.
	Store string
	// Connections is how many clients may be connected, 0 for a hundred thousand. A quarter of them may come from one
	// address.
	Connections int
	// Inherited are open ports of a process before this one, by names such as "tcp/443". They are used if they are wanted,
	// and closed otherwise when the first full set is known.
	Inherited map[string]*os.File
	// SharedUDP is a UDP port that others use at addresses of this machine, as the node's resolver does with that of DNS. A
	// route may have the port at all other addresses. Theirs says which are not for routes, also while nobody answers there.
	SharedUDP int
	Theirs    func(netip.Addr) bool
	Logger    *slog.Logger
}

// Engine answers for routes.
type Engine struct {
	opts      Options
	current   atomic.Pointer[state]
	dated     atomic.Pointer[dated]
	ports     *ports
	traffic   traffic
	limits    *limits
	access    *accesslog.Log
	auth      *passwords
	http2     *http2Front
	urgent    chan struct{}
	wakes     waking
	accepting sync.WaitGroup // the loops that accept clients
	open      sync.WaitGroup // connections of clients
	draining,
	closed atomic.Bool

	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	config    config.Config
	endpoints map[string]*endpoint // by their addresses
}

// defaultConnections is how many clients may be connected.
const defaultConnections = 100_000

// New returns an engine that answers for nothing yet. It works until Close.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Connections == 0 {
		o.Connections = defaultConnections
	}
	e := &Engine{
		opts: o, limits: newLimits(o.Connections), auth: newPasswords(), urgent: make(chan struct{}, 1), endpoints: map[string]*endpoint{},
	}
	if o.LogDir != "" {
		e.access = accesslog.Open(o.LogDir)
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.ports = newPorts(e, o.Address, o.Inherited)
	e.traffic.meters = map[meterKey]*meter{}
	e.wakes.waiting = map[string]int{}
	e.current.Store(&state{superseded: make(chan struct{}), maxHead: defaultMaxHead})
	e.http2 = newHTTP2Front(e)
	e.tasks.Go(func() { e.ports.run(e.ctx) })
	e.tasks.Go(e.tend)
	return e
}

// Apply adds a message to what the engine knows. The message must not change any more.
func (e *Engine) Apply(down *v1.IngressDown) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.config.Apply(down)
	next := e.build()
	last := e.current.Swap(next)
	close(last.superseded)
	e.forget()
	if !e.draining.Load() {
		e.ports.want(next.ports, e.config.Known)
	}
}

// Full is everything that the engine knows, as one message, and nil before the first full set.
func (e *Engine) Full() *v1.IngressDown {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.config.Known {
		return nil
	}
	return e.config.Full()
}

// Urgent has a token when a report should not wait.
func (e *Engine) Urgent() <-chan struct{} { return e.urgent }

func (e *Engine) hurry() {
	select {
	case e.urgent <- struct{}{}:
	default:
	}
}

// Report returns what has been measured since the last one, or nil if there is nothing new. With all it has the state of
// the ports even if it is not new.
func (e *Engine) Report(all bool) *v1.IngressUp {
	up := &v1.IngressUp{Traffic: e.traffic.take(), Wake: e.wakes.uids()}
	if ports, changed := e.ports.report(); changed || all {
		up.Ports, up.PortsSet = ports, true
	}
	if !up.GetPortsSet() && len(up.GetTraffic())+len(up.GetWake()) == 0 {
		return nil
	}
	return up
}

// tendEvery is how often idle connections to backends are looked at.
const tendEvery = 5 * time.Second

func (e *Engine) tend() {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-ticker.C:
		}
		e.mu.Lock()
		all := make([]*endpoint, 0, len(e.endpoints))
		for _, to := range e.endpoints {
			all = append(all, to)
		}
		e.mu.Unlock()
		for _, to := range all {
			to.closeIdle(time.Now().Add(-idleBackend))
		}
		if e.access != nil {
			e.access.Flush()
		}
	}
}

// forget drops what the current state does not need any more. The caller holds mu.
func (e *Engine) forget() {
	used := e.current.Load().endpoints
	for key, to := range e.endpoints {
		if !used[to] {
			delete(e.endpoints, key)
			to.close()
		}
	}
	e.traffic.forget(e.config.Routes)
}

// Ports returns the open ports, by names such as "tcp/443", for a successor. They stay open here as well until Drain: what
// comes meanwhile reaches one of the two.
func (e *Engine) Ports() map[string]*os.File { return e.ports.files() }

// ErrStillOpen says that connections were open when there was no more time to wait for them.
var ErrStillOpen = errors.New("connections are still open")

// Drain closes the ports and waits until the last connection has ended, or ctx.
func (e *Engine) Drain(ctx context.Context) error {
	e.draining.Store(true)
	e.ports.close()
	e.http2.drain()
	e.accepting.Wait()
	ended := make(chan struct{})
	go func() { // ends at the latest with the connections that Close cuts
		e.open.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ErrStillOpen
	}
}

// Close ends everything, connections included.
func (e *Engine) Close() {
	e.draining.Store(true)
	e.closed.Store(true)
	e.cancel()
	e.ports.close()
	e.http2.close()
	e.limits.closeAll()
	e.tasks.Wait()
	e.accepting.Wait()
	e.open.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, to := range e.endpoints {
		to.close()
	}
	if e.access != nil {
		e.access.Close()
	}
}

// dated is the time of a second as answers have it.
type dated struct {
	second int64
	text   string
}

// date is the value of the field Date.
func (e *Engine) date() string {
	now := time.Now()
	d := e.dated.Load()
	if d == nil || d.second != now.Unix() {
		d = &dated{second: now.Unix(), text: now.UTC().Format(http.TimeFormat)}
		e.dated.Store(d)
	}
	return d.text
}
