package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
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
	// Store receives the transactions. Nothing else may change it.
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
	case o.Store == nil:
		return errors.New("consensus needs a store")
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
	return nil
}

// connected reports whether there can be other servers.
func (o *Options) connected() bool { return o.Network != nil }

// Consensus is this server's part in the agreement.
type Consensus struct {
	id        string
	store     *state.Store
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
	groups    groups
	health    atomic.Pointer[[]Health] // while this server leads

	stop     sync.Once
	done     chan struct{} // closed when everything has stopped
	failure  error         // why it stopped by itself; valid after done
	closeErr error
}

// Open restores what Dir holds and joins the cluster. A server that is the only voter leads at once.
func Open(ctx context.Context, o Options) (_ *Consensus, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &Consensus{
		id: o.ServerID, store: o.Store, logger: o.Logger,
		fsm: newFSM(o.Store, o.Observer), observer: o.Observer, room: newRoom(o.Dir), bulk: newBulk(), done: make(chan struct{}),
	}
	c.fsm.saving, c.fsm.saved = c.bulk.began, c.bulk.took
	c.fsm.snapshots, c.fsm.pause = filepath.Join(o.Dir, "snapshots"), o.Pause
	if o.MaxLogGrowth > 0 {
		c.bulk.max = o.MaxLogGrowth
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
	if c.disk, err = openDisk(o.Dir, log); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = c.disk.close() })
	c.reached.path = o.Reached
	if err := c.reached.refuseLoss(c.disk); err != nil {
		return nil, err
	}

	var transport raft.Transport
	configured := &directory{}
	if o.connected() {
		networked := newTransport(o, configured, log)
		transport, c.transport = networked, networked
	} else {
		_, lone := raft.NewInmemTransport(raft.ServerAddress(o.Address))
		transport, c.transport = lone, lone
	}
	undo = append(undo, func() { _ = c.transport.Close() })

	notify := make(chan bool, 16)
	config := configOf(o, log, notify)
	if err := c.bootstrap(o, config, transport); err != nil {
		return nil, err
	}
	if err := c.disk.restore(o.Store); err != nil {
		return nil, err
	}
	entries := bulkyLog{recentLog{watchedLog{observedLog{c.disk.stepped(), o.Observer}, c.logFailed}, &recent{}}, c.bulk}
	if c.raft, err = raft.NewRaft(config, c.fsm, entries, c.disk.log, c.disk.snapshots, transport); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	configured.raft.Store(c.raft)
	undo = append(undo, func() { _ = c.raft.Shutdown().Error() })
	if err := c.electAtOnce(o, config); err != nil {
		return nil, err
	}
	c.leadership.init()
	c.watching.Go(func() { c.watch(notify) })
	c.watching.Go(c.shorten)
	c.watching.Go(c.noteReached)
	return c, nil
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

func (c *Consensus) bootstrap(o Options, config *raft.Config, transport raft.Transport) error {
	exists, err := raft.HasExistingState(c.disk.log, c.disk.log, c.disk.snapshots)
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
	if err := raft.BootstrapCluster(config, c.disk.log, c.disk.log, c.disk.snapshots, transport, alone); err != nil {
		return fmt.Errorf("make a new cluster: %w", err)
	}
	return nil
}

// electAtOnce spares the only voter the wait for a leader that cannot exist. Raft re-evaluates as soon as its timeout
// is shortened, by however little. Permanently short timeouts are no solution: they would remain when a second voter
// joins.
func (c *Consensus) electAtOnce(o Options, config *raft.Config) error {
	var voters []raft.ServerID
	for _, server := range c.raft.GetConfiguration().Configuration().Servers {
		if server.Suffrage == raft.Voter {
			voters = append(voters, server.ID)
		}
	}
	if len(voters) != 1 {
		return nil
	}
	if voters[0] != config.LocalID {
		if !o.connected() {
			return fmt.Errorf("it belongs to the server %s: start with that server's id, or in another folder", voters[0])
		}
		return nil
	}
	shorter := c.raft.ReloadableConfig()
	shorter.HeartbeatTimeout -= time.Millisecond
	if err := c.raft.ReloadConfig(shorter); err != nil {
		return fmt.Errorf("elect the only voter: %w", err)
	}
	return nil
}

// Done is closed when this server has stopped, either by Close or because it could not continue; see [Consensus.Err].
func (c *Consensus) Done() <-chan struct{} { return c.done }

// Err returns why the server stopped by itself. It is nil before that and after an orderly Close.
func (c *Consensus) Err() error {
	select {
	case <-c.done:
		return c.failure
	default:
		return nil
	}
}

// Close waits for proposals in flight, ends leadership and closes all files.
func (c *Consensus) Close() error {
	c.shutdown(nil)
	c.watching.Wait()
	return c.closeErr
}

// shutdown stops everything, once. Raft's own goroutines must not call it, because it waits for them.
func (c *Consensus) shutdown(failure error) {
	c.stop.Do(func() {
		c.gate.Lock()
		c.closed, c.failure = true, failure
		c.gate.Unlock()
		c.drain()
		c.leadership.finish(ErrShutdown)
		c.closeErr = errors.Join(c.raft.Shutdown().Error(), c.reached.note(c.raft.AppliedIndex()), c.transport.Close(), c.disk.close())
		close(c.done)
	})
}

// drain waits for proposals, because raft forgets unwritten ones when it stops.
func (c *Consensus) drain() {
	drained := make(chan struct{})
	go func() {
		c.proposals.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainTimeout):
		c.logger.Warn("proposals did not end in time, their outcome is not known", "timeout", drainTimeout)
	}
}

// stopped is the error of all calls after the end.
func (c *Consensus) stopped() error {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.failure != nil {
		return fmt.Errorf("%w: %w", ErrShutdown, c.failure)
	}
	return ErrShutdown
}
