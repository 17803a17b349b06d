package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/state"
)

// How long followers wait for the leader before they elect another. A follower waits between once and twice as long,
// and followers that still trust the old leader do not vote, so that losing it costs about that time. Heartbeats come
// five to ten times as often. That limits the maximum: a server with the shortest timeout still hears the heartbeats of
// a leader with the longest, so servers need not agree on it.
const (
	MinElectionTimeout = 500 * time.Millisecond
	MaxElectionTimeout = 2500 * time.Millisecond
)

// drainTimeout bounds how long a stopping server waits for proposals in flight.
const drainTimeout = 5 * time.Second

const (
	defaultSnapshotThreshold = 8192
	snapshotInterval         = 30 * time.Second
	// maxBatch is how many entries share one disk write at most.
	maxBatch = 256
)

// Options configures a server.
type Options struct {
	// Dir holds the log and snapshots. It is created if it does not exist. Only one process at a time may use it.
	Dir string
	// ServerID is the server's uid. It never changes.
	ServerID string
	// Address is this server's initial address; the transport may know a newer one.
	Address string
	// Network connects to the other servers. It is closed together with the server. Without one the server is alone.
	Network Network
	// Addresses returns a server's current address, or "" if unknown. It may be nil.
	Addresses func(server string) string
	// Store receives the transactions of [Open] and [Recover]. Nothing else may change it.
	Store  *state.Store
	Logger *slog.Logger
	// Bootstrap creates a cluster of this server alone if Dir holds none.
	Bootstrap bool
	// Bootstrapped is whether that was done before. If Dir is empty nevertheless, Open fails: a second cluster would
	// have the keys and the name of the first.
	Bootstrapped bool
	// SnapshotThreshold is the number of log entries after which a snapshot is taken, 8192 if 0. As many entries are
	// kept for servers that lag behind.
	SnapshotThreshold uint64
	// ElectionTimeout is how long this server waits for the leader; 0 means the shortest time. On machines that stall
	// now and then, a longer one avoids elections.
	ElectionTimeout time.Duration
	// Observer receives durations. It may be nil.
	Observer Observer
	// Pause delays writing a snapshot while more urgent work is running. It may be nil.
	Pause func(context.Context) bool

	// Reached is a file outside of Dir that records how far this server has come, so that a loss of data in Dir is
	// noticed. Empty means none.
	Reached string

	// Reserve is how many bytes must stay free on the disk of Dir beside a proposal; 0 means 64 MiB.
	Reserve uint64

	// Lost checks, before [Recover] changes anything, that the other servers are lost. It gets the state including the
	// whole log. It may be nil.
	Lost func([]Server, *state.Snapshot) error

	// MaxLogGrowth is by how many bytes the log may grow before a snapshot is taken and the log is shortened; 0 means
	// 256 MiB.
	MaxLogGrowth int64
}

func (o *Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("consensus needs a folder")
	case o.ServerID == "":
		return errors.New("consensus needs the server's id")
	case o.Logger == nil:
		return errors.New("consensus needs a logger")
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = MinElectionTimeout
	}
	if o.ElectionTimeout < MinElectionTimeout || o.ElectionTimeout > MaxElectionTimeout {
		return fmt.Errorf("the election timeout cannot be %s: use %s to %s", o.ElectionTimeout, MinElectionTimeout, MaxElectionTimeout)
	}
	if o.Address == "" {
		o.Address = o.ServerID
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = defaultSnapshotThreshold
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Reserve == 0 {
		o.Reserve = reserve
	}
	return nil
}

// connected reports whether there can be other servers.
func (o *Options) connected() bool { return o.Network != nil }

// Group is this server's part in a group of servers that agree on one log, and apply it to a machine.
type Group struct {
	id        string
	machine   Machine
	logger    *slog.Logger
	raft      *raft.Raft
	fsm       *fsm
	observer  Observer
	disk      *disk
	reached   reached
	room      *room
	bulk      *bulk
	transport raft.WithClose

	leadership leadership
	watching   sync.WaitGroup

	// Proposals, and all other callers of raft, hold a share of the group until gate is locked and closed is set.
	gate      sync.RWMutex
	closed    bool
	proposals sync.WaitGroup
	batches   batches
	health    atomic.Pointer[[]Health] // while this server leads

	stop     sync.Once
	done     chan struct{} // closed when everything has stopped
	failure  error         // why it stopped by itself; valid after done
	closeErr error
}

// OpenGroup restores what Dir holds and joins the group. A server that is the only voter leads at once.
func OpenGroup(ctx context.Context, o Options, machine Machine) (_ *Group, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g := &Group{
		id: o.ServerID, machine: machine, logger: o.Logger,
		fsm: newFSM(machine, o), observer: o.Observer, room: newRoom(o.Dir, o.Reserve), bulk: newBulk(), done: make(chan struct{}),
	}
	g.fsm.saving, g.fsm.saved = g.bulk.began, g.bulk.took
	if o.MaxLogGrowth > 0 {
		g.bulk.max = o.MaxLogGrowth
	}
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
			err = fmt.Errorf("open the log of server %s in %s: %w", o.ServerID, o.Dir, err)
		}
	}()

	log := newHCLogger(o.Logger)
	if g.disk, err = openDisk(o.Dir, log); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = g.disk.close() })
	g.reached.path = o.Reached
	if err := g.reached.refuseLoss(g.disk); err != nil {
		return nil, err
	}

	var transport raft.Transport
	configured := &directory{}
	if o.connected() {
		networked := newTransport(o, configured, log)
		transport, g.transport = networked, networked
	} else {
		_, lone := raft.NewInmemTransport(raft.ServerAddress(o.Address))
		transport, g.transport = lone, lone
	}
	undo = append(undo, func() { _ = g.transport.Close() })

	notify := make(chan bool, 16)
	config := configOf(o, log, notify)
	if err := g.bootstrap(o, config, transport); err != nil {
		return nil, err
	}
	if err := g.disk.restore(g.fsm.content); err != nil {
		return nil, err
	}
	entries := bulkyLog{recentLog{watchedLog{observedLog{g.disk.stepped(), o.Observer}, g.logFailed}, &recent{}}, g.bulk}
	if g.raft, err = raft.NewRaft(config, g.fsm, entries, g.disk.log, g.fsm.content.store(g.disk.snapshots), transport); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	configured.raft.Store(g.raft)
	undo = append(undo, func() { _ = g.raft.Shutdown().Error() })
	if err := g.electAtOnce(o.connected()); err != nil {
		return nil, err
	}
	g.leadership.init()
	g.watching.Go(func() { g.watch(notify) })
	g.watching.Go(g.shorten)
	g.watching.Go(g.noteReached)
	return g, nil
}

func configOf(o Options, log *hcLogger, notify chan<- bool) *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(o.ServerID)
	config.Logger = log
	config.NotifyCh = notify
	config.HeartbeatTimeout, config.ElectionTimeout = o.ElectionTimeout, o.ElectionTimeout
	config.LeaderLeaseTimeout = o.ElectionTimeout * 4 / 5 // the leader steps down before others take over
	config.MaxAppendEntries = maxBatch
	config.BatchApplyCh = true
	config.SnapshotThreshold = o.SnapshotThreshold
	config.TrailingLogs = o.SnapshotThreshold
	config.SnapshotInterval = snapshotInterval
	config.NoLegacyTelemetry = true
	// Restored beforehand, so that a damaged snapshot is an error and not a reason to use an older one.
	config.NoSnapshotRestoreOnStart = true
	return config
}

func (g *Group) bootstrap(o Options, config *raft.Config, transport raft.Transport) error {
	exists, err := raft.HasExistingState(g.disk.log, g.disk.log, g.disk.snapshots)
	if err != nil {
		return fmt.Errorf("look for an existing log: %w", err)
	}
	if !exists && o.Bootstrap && o.Bootstrapped {
		return fmt.Errorf("the log is gone: %s", wayBack)
	}
	if exists || !o.Bootstrap && o.connected() {
		return nil
	}
	if !o.Bootstrap {
		return errors.New("it holds no cluster: make a new one there, or name the folder of an existing one")
	}
	alone := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: config.LocalID, Address: raft.ServerAddress(o.Address),
	}}}
	if err := raft.BootstrapCluster(config, g.disk.log, g.disk.log, g.disk.snapshots, transport, alone); err != nil {
		return fmt.Errorf("make a new cluster: %w", err)
	}
	return nil
}

// electAtOnce spares the only voter the wait for a leader that cannot exist. Raft re-evaluates as soon as its timeout
// is shortened, by however little. Permanently short timeouts are no solution: they would remain when a second voter
// joins.
func (g *Group) electAtOnce(connected bool) error {
	var voters []raft.ServerID
	for _, server := range g.raft.GetConfiguration().Configuration().Servers {
		if server.Suffrage == raft.Voter {
			voters = append(voters, server.ID)
		}
	}
	if len(voters) != 1 {
		return nil
	}
	if voters[0] != raft.ServerID(g.id) {
		if !connected {
			return fmt.Errorf("it belongs to the server %s: start with that server's id, or in another folder", voters[0])
		}
		return nil
	}
	shorter := g.raft.ReloadableConfig()
	shorter.HeartbeatTimeout -= time.Millisecond
	if err := g.raft.ReloadConfig(shorter); err != nil {
		return fmt.Errorf("elect the only voter: %w", err)
	}
	return nil
}

// Found makes this server, which knows of no group yet, the only one of a new group.
func (g *Group) Found(ctx context.Context, address string) error {
	alone := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(g.id), Address: raft.ServerAddress(address)}}}
	if err := g.change(ctx, "found a group", func() raft.Future { return g.raft.BootstrapCluster(alone) }); err != nil {
		return err
	}
	return g.electAtOnce(true)
}

// Known reports whether this server has anything of a group.
func (g *Group) Known() bool { return g.raft.LastIndex() > 0 || len(g.Servers()) > 0 }

// Done is closed when this server has stopped, either by Close or because it could not continue; see [Consensus.Err].
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns why the server stopped by itself. It is nil before that and after an orderly Close.
func (g *Group) Err() error {
	select {
	case <-g.done:
		return g.failure
	default:
		return nil
	}
}

// Close waits for proposals in flight, ends leadership and closes all files.
func (g *Group) Close() error {
	g.shutdown(nil)
	g.watching.Wait()
	return g.closeErr
}

// shutdown stops everything, once. Raft's own goroutines must not call it, because it waits for them.
func (g *Group) shutdown(failure error) {
	g.stop.Do(func() {
		g.gate.Lock()
		g.closed, g.failure = true, failure
		g.gate.Unlock()
		g.drain()
		g.leadership.finish(ErrShutdown)
		g.closeErr = errors.Join(g.raft.Shutdown().Error(), g.reached.note(g.raft.AppliedIndex()), g.transport.Close(), g.disk.close())
		close(g.done)
	})
}

// drain waits for proposals, because raft forgets unwritten ones when it stops.
func (g *Group) drain() {
	drained := make(chan struct{})
	go func() {
		g.proposals.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainTimeout):
		g.logger.Warn("proposals did not end in time, their outcome is not known", "timeout", drainTimeout)
	}
}

// stopped is the error of all calls after the end.
func (g *Group) stopped() error {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if g.failure != nil {
		return fmt.Errorf("%w: %w", ErrShutdown, g.failure)
	}
	return ErrShutdown
}
