package netd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/resolver"
)

// Options say how an agent reaches its network process.
type Options struct {
	// Program is the path of the program, and Socket that of the socket that it listens on.
	Program, Socket string
	// Launcher is the beginning of the command that starts the program, such as sudo. It may be empty.
	Launcher []string
	// Log is the file that it writes its log to.
	Log    string
	Logger *slog.Logger
}

// Client is the agent's side. It starts the process where there is none, and gives it again what it has forgotten.
type Client struct {
	opts    Options
	version int // of its messages
	wake    chan struct{}

	mu      sync.Mutex
	setup   *mesh.Setup
	key     mesh.PrivateKey
	peers   map[string]mesh.Peer // nil until the agent knows them
	relays  []mesh.Relay
	names   *Names
	clients map[netip.Addr]resolver.Client
	rules   map[string][]resolver.NameRule
	// services are nil until the agent knows them.
	services map[resolver.Name]resolver.Service
	will     *Will
	pending  request // what the connected process does not know yet
	conn     net.Conn
	waiting  map[uint64]chan response
	numbers  uint64
	problem  string // as last reported
}

// NewClient returns a client that does nothing before Run.
func NewClient(o Options) *Client {
	return &Client{opts: o, version: version, wake: make(chan struct{}, 1), waiting: map[uint64]chan response{}}
}

// Configure says what the network is like. Before it is called, no process is started.
func (c *Client) Configure(s mesh.Setup, key mesh.PrivateKey) {
	c.change(func() {
		if c.setup == nil || !c.setup.Equal(s) {
			c.setup, c.pending.Setup = &s, &s
		}
		if c.key.IsZero() || c.key.Public() != key.Public() {
			c.key, c.pending.Key = key, key.Bytes()
		}
	})
}

// SetPeers replaces all peers.
func (c *Client) SetPeers(all []mesh.Peer) {
	c.change(func() {
		c.peers = map[string]mesh.Peer{}
		for _, p := range all {
			c.peers[p.ID] = p
		}
		c.pending.Full, c.pending.Changed, c.pending.Removed = true, all, nil
	})
}

// UpdatePeers changes some peers and removes others, after SetPeers.
func (c *Client) UpdatePeers(changed []mesh.Peer, removed []string) {
	c.change(func() {
		for _, id := range removed {
			delete(c.peers, id)
		}
		for _, p := range changed {
			c.peers[p.ID] = p
		}
		if c.pending.Full {
			c.pending.Changed = slices.Collect(maps.Values(c.peers))
			return
		}
		// The process removes before it changes, so what is removed now must not be changed any more.
		c.pending.Changed = slices.DeleteFunc(slices.Clone(c.pending.Changed), func(p mesh.Peer) bool { return slices.Contains(removed, p.ID) })
		c.pending.Changed = append(c.pending.Changed, changed...)
		c.pending.Removed = append(c.pending.Removed, removed...)
	})
}

// SetRelays replaces the relays.
func (c *Client) SetRelays(list []mesh.Relay) {
	c.change(func() { c.relays, c.pending.Relays = list, list })
}

// SetWill says what the process tells a server if this agent ends and its replicas do not.
func (c *Client) SetWill(w Will) { c.change(func() { c.will, c.pending.Will = &w, &w }) }

// SetNames says where the resolver listens.
func (c *Client) SetNames(n Names) { c.change(func() { c.names, c.pending.Names = &n, &n }) }

// SetClients names all replicas of this node, by their addresses, and the rules for names that they refer to. It returns
// when the resolver knows them, or when there is no process to tell.
func (c *Client) SetClients(ctx context.Context, all map[netip.Addr]resolver.Client, rules map[string][]resolver.NameRule) {
	_, _ = c.ask(ctx, func(number uint64) {
		c.clients, c.pending.Clients = all, all
		c.rules, c.pending.NameRules = rules, rules
		c.pending.Done = append(c.pending.Done, number)
	}) // the next process hears it
}

// Relearn says that the node's rules may have lost addresses that replicas have looked up.
func (c *Client) Relearn() { c.change(func() { c.pending.Relearn = true }) }

// SetServices replaces all services that can be looked up.
func (c *Client) SetServices(all []resolver.Service) {
	c.change(func() {
		c.services = map[resolver.Name]resolver.Service{}
		for _, s := range all {
			c.services[s.Name] = s
		}
		c.pending.AllServices, c.pending.Services, c.pending.RemovedServices = true, all, nil
	})
}

// UpdateServices changes some services and removes others, after SetServices.
func (c *Client) UpdateServices(changed []resolver.Service, removed []resolver.Name) {
	c.change(func() {
		for _, name := range removed {
			delete(c.services, name)
		}
		for _, s := range changed {
			c.services[s.Name] = s
		}
		// The process removes before it changes, so what is removed now must not be changed any more.
		p := &c.pending
		p.Services = slices.DeleteFunc(slices.Clone(p.Services), func(s resolver.Service) bool { return slices.Contains(removed, s.Name) })
		p.Services, p.RemovedServices = append(p.Services, changed...), append(p.RemovedServices, removed...)
	})
}

// Fetched says that all services of some namespaces are known now.
func (c *Client) Fetched(namespaces []string) {
	c.change(func() { c.pending.Fetched = append(c.pending.Fetched, namespaces...) })
}

func (c *Client) change(edit func()) {
	c.mu.Lock()
	edit()
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// retryPause is the time between two attempts to reach the process.
const retryPause = 200 * time.Millisecond

// Run keeps the process running and informed until ctx ends. It leaves the process running.
func (c *Client) Run(ctx context.Context, e Events) {
	for ctx.Err() == nil {
		if !c.configured() {
			select {
			case <-ctx.Done():
			case <-c.wake:
			}
			continue
		}
		err := c.talk(ctx, e)
		if errors.Is(err, errReplaced) {
			continue
		}
		if ctx.Err() == nil {
			c.opts.Logger.Warn("no connection to the network process; trying again", "error", err)
			c.report(err.Error(), e.Failed)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

func (c *Client) configured() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.setup != nil
}

// report reports a problem, and its end, once.
func (c *Client) report(problem string, failed func(string)) {
	c.mu.Lock()
	known := c.problem == problem
	c.problem = problem
	c.mu.Unlock()
	if !known {
		failed(problem)
	}
}

// talk has one conversation with the process.
func (c *Client) talk(ctx context.Context, e Events) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in := json.NewDecoder(conn)
	var first response
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("listen to the network process: %w", err)
	}
	if first.Version != c.version {
		c.opts.Logger.Info("the network process is of another version: replacing it", "version", first.Version, "wanted", c.version)
		return c.replace(conn, in)
	}
	c.hear(first, e)
	c.mu.Lock()
	c.conn, c.pending = conn, c.everything()
	c.mu.Unlock()
	defer c.hangUp()
	heard := make(chan error, 1)
	go func() {
		defer cancel()
		heard <- c.listen(in, e)
	}()
	err = c.tell(ctx, conn)
	cancel()
	return errors.Join(<-heard, err)
}

// everything is the request for a process that knows nothing. The caller holds mu.
func (c *Client) everything() request {
	return request{
		Version: c.version, Key: c.key.Bytes(), Setup: c.setup,
		// A process that has run for a while keeps its peers until this agent knows them.
		Full: c.peers != nil, Changed: slices.Collect(maps.Values(c.peers)), Relays: c.relays,
		Will: c.will, Names: c.names, Clients: c.clients, NameRules: c.rules, Relearn: true, AllServices: c.services != nil, Services: slices.Collect(maps.Values(c.services)),
	}
}

// resend sends everything again, with what is pending.
func (c *Client) resend() {
	c.change(func() {
		all := c.everything()
		all.Fetched, all.Done, all.Asked = c.pending.Fetched, c.pending.Done, c.pending.Asked
		c.pending = all
	})
}

// replaceTime bounds how long a process may take to end.
const replaceTime = 10 * time.Second

var errReplaced = errors.New("the network process is being replaced")

// replace ends a process. It returns errReplaced when the process has released everything, so that its successor gets it.
func (*Client) replace(conn net.Conn, in *json.Decoder) error {
	if err := conn.SetDeadline(time.Now().Add(replaceTime)); err != nil {
		return err
	}
	untilStopped(conn, in)
	return errReplaced
}

func (c *Client) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = nil
	for _, w := range c.waiting {
		close(w)
	}
	clear(c.waiting)
}

// tell sends what is pending, whenever there is something.
func (c *Client) tell(ctx context.Context, conn net.Conn) error {
	out := json.NewEncoder(conn)
	for {
		c.mu.Lock()
		next := c.pending
		c.pending = request{}
		c.mu.Unlock()
		if !reflect.ValueOf(next).IsZero() {
			if err := out.Encode(next); err != nil {
				return fmt.Errorf("talk to the network process: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
	}
}

func (c *Client) listen(in *json.Decoder, e Events) error {
	for {
		var r response
		if err := in.Decode(&r); err != nil {
			return fmt.Errorf("listen to the network process: %w", err)
		}
		c.hear(r, e)
	}
}

// hear handles a message of the process.
func (c *Client) hear(r response, e Events) {
	if r.Number != 0 {
		c.answer(r)
		return
	}
	if r.Failed != "" {
		c.report(r.Failed, e.Failed)
	}
	if r.Resend {
		c.resend()
	}
	if r.Announced != nil {
		c.report("", e.Failed)
		e.Announced(*r.Announced)
	}
	if r.Resolver != nil {
		e.Resolver(*r.Resolver)
	}
	if r.Wanted != "" {
		e.Wanted(r.Wanted)
	}
}

func (c *Client) answer(r response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.waiting[r.Number]; w != nil {
		w <- r
		delete(c.waiting, r.Number)
	}
}

// ErrNotRunning says that there is no network process to ask.
var ErrNotRunning = errors.New("the network process is not running")

// Status asks the process for the state of the mesh, with all peers or without those that are idle.
func (c *Client) Status(ctx context.Context, all bool) (mesh.Status, error) {
	return c.question(ctx, question{All: all})
}

// Probe asks the process how it reaches a peer. It takes a moment if there was no traffic with the peer.
func (c *Client) Probe(ctx context.Context, id string) (mesh.PeerStatus, error) {
	s, err := c.question(ctx, question{Probe: id})
	if err == nil && len(s.Peers) == 0 {
		err = errors.New("this node does not know that peer yet")
	}
	if err != nil {
		return mesh.PeerStatus{}, err
	}
	return s.Peers[0], nil
}

func (c *Client) question(ctx context.Context, q question) (mesh.Status, error) {
	r, err := c.ask(ctx, func(number uint64) {
		q.Number = number
		c.pending.Asked = append(c.pending.Asked, q)
	})
	switch {
	case err != nil:
		return mesh.Status{}, err
	case r.Status == nil:
		return mesh.Status{}, errors.New(r.Failed)
	}
	return *r.Status, nil
}

// ask changes something and waits for the response with the number that the change got.
func (c *Client) ask(ctx context.Context, edit func(number uint64)) (response, error) {
	answer := make(chan response, 1)
	connected := false
	c.change(func() {
		c.numbers++
		edit(c.numbers)
		if connected = c.conn != nil; connected {
			c.waiting[c.numbers] = answer
		}
	})
	if !connected {
		return response{}, ErrNotRunning
	}
	select {
	case <-ctx.Done():
		return response{}, ctx.Err()
	case r, ok := <-answer:
		if !ok {
			return response{}, ErrNotRunning
		}
		return r, nil
	}
}

// connect reaches the process, and starts one if there is none.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", c.opts.Socket); err == nil {
		return conn, nil
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	for range 100 {
		if conn, err := d.DialContext(ctx, "unix", c.opts.Socket); err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("the network process does not answer; its log is %s", c.opts.Log)
}

// start starts the process in a session of its own, so that it outlives this one.
func (c *Client) start() error {
	log, err := os.OpenFile(c.opts.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the log of the network process: %w", err)
	}
	defer func() { _ = log.Close() }()
	words := append(slices.Clone(c.opts.Launcher), c.opts.Program, c.opts.Socket)
	command := exec.Command(words[0], words[1:]...)
	command.Stdout, command.Stderr, command.Dir = log, log, "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the network process: %w", err)
	}
	go func() { _ = command.Wait() }() // so that a dead one leaves no zombie
	return nil
}

// Stop ends the process that listens on a socket, if there is one, and returns when it is gone.
func Stop(ctx context.Context, socket string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil // no process is there
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	untilStopped(conn, json.NewDecoder(conn))
	return ctx.Err()
}

// untilStopped ends the process at the other end of a connection. It returns when the process has released its
// interface and its ports: it closes the connection then.
func untilStopped(conn net.Conn, in *json.Decoder) {
	err := json.NewEncoder(conn).Encode(request{Stop: true})
	for err == nil {
		var r response
		err = in.Decode(&r)
	}
}
