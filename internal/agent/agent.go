package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/agent/ingress"
	"github.com/cloudless/cloudless/internal/agent/lease"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/agent/probe"
	"github.com/cloudless/cloudless/internal/agent/scrape"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/agent/storage"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Options configures an agent.
type Options struct {
	// DataDir holds what must last: assignments under agent, logs under logs.
	DataDir string
	// Client connects to the servers. Dial it with DialOptions.
	Client v1.AgentServiceClient
	// Drivers run replicas. One of them should be named "container".
	Drivers []driver.Driver
	// Network gives replicas addresses and ports.
	Network Network
	// Mesh connects replicas with those of other nodes, with what MeshBase says of this machine. It may be nil.
	Mesh     Mesh
	MeshBase mesh.Setup
	// Ingress answers for routes. It may be nil.
	Ingress *ingress.Ingress
	// Secrets keeps the secrets of replicas. It may be nil: then no replica can have any.
	Secrets *secrets.Keeper
	// Identity gives replicas identities of their own. It may be nil.
	Identity *identity.Service
	// Machine describes the computer that the agent runs on.
	Machine Machine
	Logger  *slog.Logger
	// Servers is called with the addresses of all servers whenever they change. It may be
	// nil and must not block.
	Servers func(addresses []string)
	// Leave makes the next session use another server, because the current one hangs. It is
	// nil if there is no other server. It must not block.
	Leave func()
	// Quiet is how long not a single byte has come from the server of this session. It may
	// be nil.
	Quiet func() time.Duration
	// Moved is called with the machine's addresses whenever they may have changed. It may be nil and must not block.
	Moved func(have []netip.Addr)
	// InMesh is called with the addresses of this node inside of the mesh, whenever they may have changed. It may be nil and
	// must not block.
	InMesh func(addresses []netip.Addr)
	// NoSession is called with the reason whenever a session fails or ends. It may be nil
	// and must not block.
	NoSession func(why error)
	// Ending is called when the node was removed, with the number of replicas to stop and
	// how long that may take. It may be nil and must not block.
	Ending func(replicas int, atMost time.Duration)
	// GoingDown reports, when the agent is asked to stop, whether the machine goes down on
	// purpose, so that the servers should know. It may be nil.
	GoingDown func() bool
	// Departures calls leave when the machine is about to shut down or to sleep, with a context
	// that ends when it does, and stay when it goes on after all, until its own context ends.
	// It may be nil.
	Departures func(ctx context.Context, leave func(ctx context.Context, reason string), stay func())
	// HeartbeatInterval is how often the agent reports until a server sets the interval.
	// Zero means a second.
	HeartbeatInterval time.Duration
	// LogRetention is how long the log of a removed replica is kept. Zero means a day.
	LogRetention time.Duration
	// LogLimits bound each replica's log. Zero fields mean the log's own defaults.
	LogLimits driver.LogLimits
	// Trust keeps the node's certificate, and which authorities the node trusts. It may be nil.
	Trust Trust
	// Metrics and Tracing record what the agent does. They may be nil.
	Metrics *telemetry.Agent
	Tracing *telemetry.Tracing
}

// Machine is the computer that the agent runs on. Package machine implements it.
type Machine interface {
	// BootID is unique to this boot.
	BootID() string
	// Status is the machine's current status.
	Status() (*v1.NodeStatus, error)
	// Traffic counts the bytes that passed its devices.
	Traffic() (machine.Traffic, error)
	// GPUs lists the GPUs that replicas can get now.
	GPUs() []machine.GPU
	// Memory is the machine's memory, and the share of the last ten seconds in which its programs stalled for lack of
	// it, in percent.
	Memory() (room pressure.Room, stalled float64, err error)
	// Disk is the part of the disk that the node may use.
	Disk() (storage.Disk, error)
	// Watch calls changed once it is watching, and then whenever the machine may have
	// changed, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// Addresses are those of the interfaces that are connected.
	Addresses() ([]netip.Addr, error)
}

func (o *Options) validate() error {
	var missing []error
	for name, absent := range map[string]bool{
		"DataDir": o.DataDir == "",
		"Client":  o.Client == nil,
		"Drivers": len(o.Drivers) == 0,
		"Machine": o.Machine == nil,
		"Network": o.Network == nil,
		"Logger":  o.Logger == nil,
	} {
		if absent {
			missing = append(missing, fmt.Errorf("option %s is missing", name))
		}
	}
	if o.HeartbeatInterval < 0 || o.LogRetention < 0 {
		missing = append(missing, errors.New("options HeartbeatInterval and LogRetention must not be negative"))
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = time.Second
	}
	if o.LogRetention == 0 {
		o.LogRetention = 24 * time.Hour
	}
	return errors.Join(missing...)
}

// Agent runs the replicas that are assigned to one node.
type Agent struct {
	*replicaEnv
	client    v1.AgentServiceClient
	machine   Machine
	servers   func([]string)
	leave     func()
	moved     func(have []netip.Addr)
	inMesh    func(addresses []netip.Addr)
	retryNow  chan struct{} // wakes a session that waits before it tries again: servers may be reached now
	noSession func(error)
	ending    func(replicas int, atMost time.Duration)
	quiet     func() time.Duration
	pace      pace
	meter     meter
	scraper   *scrape.Scraper
	readiness readiness
	evictions evictions
	goingDown func() bool
	departs   func(ctx context.Context, leave func(ctx context.Context, reason string), stay func())
	departure departure
	changed   chan struct{}
	ready     chan struct{}
	removed   chan struct{}
	ran       atomic.Bool
	work      sync.WaitGroup
	lives     sync.WaitGroup // of replicas
	reachable networkCondition
	clock     *wallClock
	mesh      Mesh // may be nil
	meshBase  mesh.Setup
	meshState meshState
	cache     *networkCache
	ingress   *ingress.Ingress // may be nil
	trust     Trust            // may be nil
	trustDue  chan struct{}    // has a value when a server must hear what the node trusts
	// instance distinguishes this agent from one on a copy of its data folder.
	instance string

	// outdated is whether the server of this session is one that the cluster has left behind.
	outdated atomic.Bool

	mu       sync.Mutex
	running  context.Context // the context of Run; replicas live within it
	epoch    uint64
	replicas map[string]*replica
	records  []*record              // read at startup, until the replicas are started
	found    map[string][]foundTask // tasks without a known replica, by uid
}

// StartsAtOnce is how many replicas an agent prepares and starts at a time. The others
// wait.
func StartsAtOnce() int { return max(4, 2*runtime.GOMAXPROCS(0)) }

// New reads what an earlier agent has left in the data folder. It starts and stops nothing.
// It refuses a damaged file and leaves it unchanged.
func New(opts Options) (*Agent, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	dir, err := filepath.Abs(opts.DataDir)
	if err != nil {
		return nil, fmt.Errorf("agent: data folder: %w", err)
	}
	a := &Agent{
		client:    opts.Client,
		machine:   opts.Machine,
		mesh:      opts.Mesh,
		meshBase:  opts.MeshBase,
		ingress:   opts.Ingress,
		trust:     opts.Trust,
		trustDue:  make(chan struct{}, 1),
		servers:   opts.Servers,
		leave:     opts.Leave,
		moved:     opts.Moved,
		inMesh:    opts.InMesh,
		retryNow:  make(chan struct{}, 1),
		noSession: opts.NoSession,
		ending:    opts.Ending,
		quiet:     opts.Quiet,
		pace:      newPace(opts.HeartbeatInterval),
		readiness: readiness{since: time.Now()},
		goingDown: opts.GoingDown,
		departs:   opts.Departures,
		clock:     newWallClock(),
		instance:  rand.Text(),
		changed:   make(chan struct{}, 1),
		ready:     make(chan struct{}),
		removed:   make(chan struct{}),
		replicas:  map[string]*replica{},
		found:     map[string][]foundTask{},
	}
	a.departure.changed = a.noteChange
	a.scraper = scrape.New(a.scraped)
	a.meshState.follows = newFollows()
	if a.replicaEnv, err = a.build(dir, opts); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a.cache = newNetworkCache(a.store.dir)
	if a.epoch, err = a.store.epoch(); err != nil {
		return nil, err
	}
	if a.records, err = a.store.load(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) build(dir string, opts Options) (h *replicaEnv, err error) {
	h = &replicaEnv{
		boot:     opts.Machine.BootID(),
		network:  opts.Network,
		secrets:  opts.Secrets,
		gpus:     newGPUs(opts.Machine.GPUs),
		reports:  newReports(),
		drivers:  map[string]driver.Driver{},
		limits:   opts.LogLimits,
		starts:   make(chan struct{}, StartsAtOnce()),
		forget:   a.forget,
		attached: a.setClients,
		execs:    make(chan struct{}, StartsAtOnce()),
		pids:     make(chan struct{}, 1),

		servingChanged: a.servingChanged,
		identity:       opts.Identity,
		wantsLease:     a.noteChange,
		listening:      probe.Listening,
		log:            opts.Logger,
		metrics:        opts.Metrics,
		tracing:        opts.Tracing,
	}
	if room, _, err := opts.Machine.Memory(); err == nil { // otherwise watchMemory says why
		h.memory = room.Total
	}
	for _, d := range opts.Drivers {
		if h.drivers[d.Name()] != nil {
			return nil, fmt.Errorf("two drivers are named %q; give each its own name", d.Name())
		}
		h.drivers[d.Name()] = d
	}
	if h.store, err = openStore(filepath.Join(dir, storeDir)); err != nil {
		return nil, err
	}
	if h.leases, err = lease.NewKeeper(filepath.Join(h.store.dir, "leases"), h.boot); err != nil {
		return nil, err
	}
	h.logs, err = newLogs(filepath.Join(dir, "logs"), opts.LogRetention, opts.Logger)
	return h, err
}

// Ready is closed when the first assignments have been received.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Removed is closed when the agent learns that its node was removed. It then stops the
// replicas, and Run ends.
func (a *Agent) Removed() <-chan struct{} { return a.removed }

// Run reattaches to what runs on this machine, then keeps it as the cluster wants it until
// ctx ends. It leaves running tasks as they are. An Agent runs once. Run also ends with
// [ErrCopy], and with [ErrRemoved] once nothing runs any more.
func (a *Agent) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return errors.New("agent: Run was called twice; make a new Agent")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer cancel()
	if err := a.listTasks(ctx); err != nil {
		return nil // ctx ended before anything was started
	}
	a.restoreNetwork()
	a.restoreReplicas(ctx)
	if err := a.identity.Retain(a.knows); err != nil {
		a.log.Warn("cannot remove the identity sockets of removed replicas", "error", err)
	}
	a.work.Go(func() { a.identity.Run(ctx) })
	a.work.Go(func() { a.cache.run(ctx, func(err error) { a.log.Warn("cannot write to disk", "error", err) }) })
	a.secrets.Retain(a.knows)
	a.work.Go(func() {
		a.secrets.Run(ctx, func(message string) { a.reportEvent("warning", "SecretExpired", "", message) })
	})
	a.work.Go(func() { a.logs.run(ctx) })
	a.work.Go(func() { a.runNetwork(ctx) })
	a.work.Go(func() { a.runMesh(ctx) })
	a.work.Go(func() { a.ingress.Run(ctx, a.ownStates, a.openIngress) })
	a.work.Go(func() { a.keepWill(ctx) })
	a.work.Go(func() { a.watchMachine(ctx) })
	a.work.Go(func() { a.watchReadiness(ctx) })
	a.work.Go(func() { a.watchMemory(ctx) })
	a.work.Go(func() { a.watchDisk(ctx) })
	a.work.Go(func() { a.scraper.Run(ctx) })
	if a.departs != nil {
		a.work.Go(func() { a.departs(ctx, a.depart, a.departure.end) })
	}
	return a.keepSession(ctx)
}

// listTasks finds the tasks that an earlier agent has left. Nothing may be started without
// knowing them, so it retries until every driver has answered.
func (a *Agent) listTasks(ctx context.Context) error {
	for _, d := range a.drivers {
		var pause backoff
		tasks, err := d.List(ctx)
		for err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			a.log.Warn("cannot list tasks; trying again", "driver", d.Name(), "error", err)
			_ = sleep.For(ctx, pause.next())
			tasks, err = d.List(ctx)
		}
		for _, status := range tasks {
			if task, ours := identify(d, status); ours {
				a.found[task.replica] = append(a.found[task.replica], task)
			}
		}
	}
	return nil
}

// restoreReplicas starts a replica for every record of an earlier agent.
func (a *Agent) restoreReplicas(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = ctx
	for _, rec := range a.records { // before any of them claims more
		if !ended(rec.Status.GetPhase()) {
			a.gpus.hold(rec.uid(), rec.GPUs)
		}
	}
	for _, rec := range a.records {
		a.startReplica(*rec, true, nil)
	}
	if len(a.records) > 0 {
		a.log.Info("restored replicas of an earlier run", "replicas", len(a.records), "epoch", a.epoch)
	}
	a.records = nil
}

// startReplica starts a replica's goroutine. The caller holds a.mu.
func (a *Agent) startReplica(rec record, saved bool, login *v1.RegistryLogin) {
	r := newReplica(a.replicaEnv, rec, saved, a.found[rec.uid()])
	r.desired.login = login
	delete(a.found, rec.uid())
	a.replicas[r.uid] = r
	ctx := a.running
	a.lives.Add(1)
	a.work.Go(func() {
		defer a.lives.Done()
		r.run(ctx)
	})
}

// replica returns nil if this node has no replica with that uid.
func (a *Agent) replica(uid string) *replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replicas[uid]
}

// forget drops a replica that is completely removed, unless it is wanted again.
func (a *Agent) forget(r *replica) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !r.wanted().removed {
		return false
	}
	delete(a.replicas, r.uid)
	return true
}

// watchMachine reports changes of the machine at once.
func (a *Agent) watchMachine(ctx context.Context) {
	var pause backoff
	for ctx.Err() == nil {
		err := a.machine.Watch(ctx, func() {
			pause.reset()
			a.noteAddresses()
			a.noteChange()
		})
		if err != nil && ctx.Err() == nil {
			a.log.Warn("cannot watch this machine; changes are noticed late", "error", err)
			_ = sleep.For(ctx, pause.next())
		}
	}
}

// noteAddresses lets connections from addresses that are gone end, before anything is sent by them.
func (a *Agent) noteAddresses() {
	if a.moved == nil {
		return
	}
	have, err := a.machine.Addresses()
	if err != nil {
		a.log.Warn("cannot list the machine's addresses; connections from old ones end late", "error", err)
		return
	}
	a.moved(have)
	select {
	case a.retryNow <- struct{}{}:
	default:
	}
}

// noteChange sends the node's status with the next heartbeat, which follows at once.
func (a *Agent) noteChange() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
