package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Options are what an agent needs from outside.
type Options struct {
	// DataDir holds what must last: assignments under agent, logs under logs.
	DataDir string
	// Client leads to the servers. Its connection is best made with DialOptions.
	Client v1.AgentServiceClient
	// Drivers run replicas. One of them should be named "container".
	Drivers []driver.Driver
	// Network gives replicas addresses and ports.
	Network Network
	// Machine is what the agent tells of the computer it runs on.
	Machine Machine
	Logger  *slog.Logger
	// Servers is told where all servers are whenever that changes; nil if nobody
	// wants to know. It must not block.
	Servers func(addresses []string)
	// Leave has the next session be with another server, because the one of this
	// session hangs; nil if there is no other. It must not block.
	Leave func()
	// Quiet is how long nothing at all has come from the server of this session, not
	// even a part of a message; nil if that is not known.
	Quiet func() time.Duration
	// NoSession is told, each time that a session could not be had or ended, why;
	// nil if nobody wants to know. It must not block.
	NoSession func(why error)
	// Ending is told, when the node was removed, how many replicas are being stopped
	// and how long that may take; nil if nobody wants to know. It must not block.
	Ending func(replicas int, atMost time.Duration)
	// Resting says, when the agent is asked to stop, whether that is for a rest of
	// which the servers should know; nil if it never is.
	Resting func() bool
	// HeartbeatInterval is how often the agent reports until a server has said how
	// often; a second if zero.
	HeartbeatInterval time.Duration
	// LogRetention is how long the log of a removed replica is kept, a day if
	// zero.
	LogRetention time.Duration
	// LogLimits bound each replica's log; zero fields stand for the log's own
	// defaults.
	LogLimits driver.LogLimits
	// Metrics and Tracing are told what the agent does; they may be nil.
	Metrics *telemetry.Agent
	Tracing *telemetry.Tracing
}

// Machine is the computer that the agent runs on; package machine has it.
type Machine interface {
	// BootID tells this boot from every other.
	BootID() string
	// Status is everything that a machine can know of itself, as it is now.
	Status() (*v1.NodeStatus, error)
	// Traffic is what has gone through its devices.
	Traffic() (machine.Traffic, error)
	// GPUs are those that replicas can be given now.
	GPUs() []machine.GPU
	// Watch calls changed once it is watching, and then whenever the machine may
	// have changed, until ctx ends.
	Watch(ctx context.Context, changed func()) error
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
	*house
	client    v1.AgentServiceClient
	machine   Machine
	servers   func([]string)
	leave     func()
	noSession func(error)
	ending    func(replicas int, atMost time.Duration)
	quiet     func() time.Duration
	pace      pace
	meter     meter
	fitness   fitness
	resting   func() bool
	changed   chan struct{}
	ready     chan struct{}
	removed   chan struct{}
	ran       atomic.Bool
	work      sync.WaitGroup
	lives     sync.WaitGroup // of replicas
	reachable networkCondition
	clock     *wallClock
	// instance tells this agent from one that runs on a copy of its data folder.
	instance string

	mu       sync.Mutex
	running  context.Context // that of Run; replicas live within it
	epoch    uint64
	replicas map[string]*replica
	records  []*record              // read at the start, until they are taken up
	found    map[string][]foundTask // tasks of no replica that we know, by uid
}

// StartsAtOnce is how many replicas an agent prepares and starts at a time; the
// others wait for their turn.
func StartsAtOnce() int { return max(4, 2*runtime.GOMAXPROCS(0)) }

// New reads what an earlier agent has left in the data folder. It starts and
// stops nothing. A damaged file is refused and kept as it is.
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
		servers:   opts.Servers,
		leave:     opts.Leave,
		noSession: opts.NoSession,
		ending:    opts.Ending,
		quiet:     opts.Quiet,
		pace:      newPace(opts.HeartbeatInterval),
		fitness:   fitness{since: time.Now()},
		resting:   opts.Resting,
		clock:     newWallClock(),
		instance:  rand.Text(),
		changed:   make(chan struct{}, 1),
		ready:     make(chan struct{}),
		removed:   make(chan struct{}),
		replicas:  map[string]*replica{},
		found:     map[string][]foundTask{},
	}
	if a.house, err = a.build(dir, opts); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if a.epoch, err = a.store.epoch(); err != nil {
		return nil, err
	}
	if a.records, err = a.store.load(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) build(dir string, opts Options) (h *house, err error) {
	h = &house{
		boot:    opts.Machine.BootID(),
		network: opts.Network,
		gpus:    newGPUs(opts.Machine.GPUs),
		reports: newReports(),
		drivers: map[string]driver.Driver{},
		limits:  opts.LogLimits,
		starts:  make(chan struct{}, StartsAtOnce()),
		forget:  a.forget,
		log:     opts.Logger,
		metrics: opts.Metrics,
		tracing: opts.Tracing,
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
	h.logs, err = newLogs(filepath.Join(dir, "logs"), opts.LogRetention, opts.Logger)
	return h, err
}

// Ready is closed when the first assignments have been received.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Removed is closed when the agent learns that its node was removed: it stops the
// replicas, and then Run ends.
func (a *Agent) Removed() <-chan struct{} { return a.removed }

// Run takes back what runs on this machine, then keeps it as the cluster wants
// it until ctx ends. It leaves running tasks as they are. An Agent runs once.
// [ErrCopy] ends it, and so does [ErrRemoved], once nothing runs any more.
func (a *Agent) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return errors.New("agent: Run was called twice; make a new Agent")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer cancel()
	if err := a.listTasks(ctx); err != nil {
		return nil // ctx has ended before anything was begun
	}
	a.takeUp(ctx)
	a.work.Go(func() { a.logs.run(ctx) })
	a.work.Go(func() { a.runNetwork(ctx) })
	a.work.Go(func() { a.watchMachine(ctx) })
	a.work.Go(func() { a.watchFitness(ctx) })
	return a.keepSession(ctx)
}

// listTasks finds the tasks that an earlier agent has left. Without knowing them
// nothing may be started, so it tries until every driver has answered.
func (a *Agent) listTasks(ctx context.Context) error {
	for _, d := range a.drivers {
		var pause backoff
		tasks, err := d.List(ctx)
		for err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			a.log.Warn("cannot list tasks; trying again", "driver", d.Name(), "error", err)
			sleep(ctx, pause.next())
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

// takeUp starts a replica for every record of an earlier agent.
func (a *Agent) takeUp(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = ctx
	for _, rec := range a.records { // before any of them asks for more
		if !ended(rec.Status.GetPhase()) {
			a.gpus.hold(rec.uid(), rec.GPUs)
		}
	}
	for _, rec := range a.records {
		a.startReplica(*rec, true, nil)
	}
	if len(a.records) > 0 {
		a.log.Info("took up replicas of an earlier run", "replicas", len(a.records), "epoch", a.epoch)
	}
	a.records = nil
}

// startReplica gives a replica its goroutine. The caller holds a.mu.
func (a *Agent) startReplica(rec record, saved bool, login *v1.RegistryLogin) {
	r := newReplica(a.house, rec, saved, a.found[rec.uid()])
	r.wish.login = login
	delete(a.found, rec.uid())
	a.replicas[r.uid] = r
	ctx := a.running
	a.lives.Add(1)
	a.work.Go(func() {
		defer a.lives.Done()
		r.run(ctx)
	})
}

// replica is nil if this node has none of that uid.
func (a *Agent) replica(uid string) *replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replicas[uid]
}

// forget takes out a replica of which nothing is left, unless it is wanted again.
func (a *Agent) forget(r *replica) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !r.wanted().removed {
		return false
	}
	delete(a.replicas, r.uid)
	return true
}

// watchMachine has the machine's changes told at once.
func (a *Agent) watchMachine(ctx context.Context) {
	var pause backoff
	for ctx.Err() == nil {
		err := a.machine.Watch(ctx, func() {
			pause.reset()
			a.noteChange()
		})
		if err != nil && ctx.Err() == nil {
			a.log.Warn("changes of this machine are seen late", "error", err)
			sleep(ctx, pause.next())
		}
	}
}

// noteChange has the node's status told with the next heartbeat, which comes at
// once.
func (a *Agent) noteChange() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
