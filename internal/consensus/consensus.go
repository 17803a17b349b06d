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

// How long servers hear nothing from the one that leads before they elect another. A follower waits between once and
// twice as long, and those who still hope for the old leader vote for nobody, so that its loss costs about that.
// Heartbeats come five to ten times as often, which is what the longest follows from: a server that waits for the
// shortest still hears those of a leader that waits for the longest, so servers need not agree about it.
const (
	MinElectionTimeout = 500 * time.Millisecond
	MaxElectionTimeout = 2500 * time.Millisecond
)

// drainTimeout bounds how long a server that stops waits for proposals which are on their way.
const drainTimeout = 5 * time.Second

const (
	defaultSnapshotThreshold = 8192
	snapshotInterval         = 30 * time.Second
	// maxBatch is how many entries share one write to the disk at most.
	maxBatch = 256
)

// Options say which server this is and where it keeps its part.
type Options struct {
	// Dir holds log and snapshots. It is made if it does not exist. One process at a time may use it.
	Dir string
	// ServerID is the server's uid, for ever.
	ServerID string
	// Address is where others reach this server at first; it may change when the transport knows better.
	Address string
	// Network leads to the other servers. It is closed with this. Without one the server is alone.
	Network Network
	// Addresses says where a server is reached now, empty if it does not know; nil if it never does.
	Addresses func(server string) string
	// Store receives the transactions. Nobody else may change it.
	Store  *state.Store
	Logger *slog.Logger
	// Bootstrap makes a cluster of this server alone if Dir holds none.
	Bootstrap bool
	// Bootstrapped is whether that was done before. Where Dir holds nothing all the same, a second cluster with the keys of
	// the first would call itself by its name: then there is none.
	Bootstrapped bool
	// SnapshotThreshold is the number of log entries after which a snapshot is taken, 8192 if 0. As many entries
	// are kept for servers that lag behind.
	SnapshotThreshold uint64
	// ElectionTimeout is how long this server waits for one that leads, the shortest time if 0. On machines that
	// stand still now and then a longer one spares elections.
	ElectionTimeout time.Duration
	// Observer is told how long things take, if it is there.
	Observer Observer
	// Pause waits while there is something better to do than to write a snapshot; nil never does.
	Pause func(context.Context) bool

	// Reached is a file outside of Dir for how far this server has come, so that the loss of what is in Dir is noticed;
	// empty for none.
	Reached string

	// Lost is asked by [Recover] whether the other servers are lost, before it changes anything; nil believes it. It is
	// given the state with all that the log has.
	Lost func([]Server, *state.Snapshot) error

	// MaxLogGrowth is by how many bytes the log may grow before a snapshot is taken and the log is shortened; 0 stands
	// for 256 MiB.
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
		o.Observer = nobody{}
	}
	return nil
}

// connected tells if there can be other servers.
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

	// Proposals, and whatever else waits for raft, take part in the group until gate is locked and closed is set.
	gate      sync.RWMutex
	closed    bool
	proposals sync.WaitGroup
	groups    groups
	health    atomic.Pointer[[]Health] // while this server leads

	stop     sync.Once
	done     chan struct{} // closed when nothing works any more
	failure  error         // why it stopped by itself; to be read after done
	closeErr error
}

// Open brings back what Dir holds and takes part in the cluster. A server that is the only voter leads at once.
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
	config.LeaderLeaseTimeout = o.ElectionTimeout * 4 / 5 // who leads gives up before others take over
	config.MaxAppendEntries = maxBatch
	config.BatchApplyCh = true
	config.SnapshotThreshold = o.SnapshotThreshold
	config.TrailingLogs = o.SnapshotThreshold
	config.SnapshotInterval = snapshotInterval
	config.NoLegacyTelemetry = true
	// Done beforehand, so that a damaged snapshot is an error and not a reason to take an older one.
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

// electAtOnce spares the only voter the wait for the heartbeat of a leader that cannot exist. Raft looks again as
// soon as its patience is shortened, by however little. Short timeouts would not do: they would still be there
// when a second voter joins.
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

// Done is closed when this server has stopped, be it by Close or because it could not go on; see [Consensus.Err].
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

// Close waits for proposals that are on their way, ends leadership and closes all files.
func (c *Consensus) Close() error {
	c.shutdown(nil)
	c.watching.Wait()
	return c.closeErr
}

// shutdown stops everything, once. It must not be called by raft's own goroutines, for which it waits.
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

// drain waits for proposals, because raft forgets those that have not been written when it stops.
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

// stopped is the error of everything that is asked for after the end.
func (c *Consensus) stopped() error {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.failure != nil {
		return fmt.Errorf("%w: %w", ErrShutdown, c.failure)
	}
	return ErrShutdown
}
