package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/sleep"
)

// fault begins a fault and returns a description, and how to undo it.
type fault func(ctx context.Context, l *lab, s step) (what string, undo func() error, err error)

// kinds are the faults by name. Their targets are chosen when they begin: the leader as it is then.
var kinds = map[string]fault{
	"kill-leader":   onLeader(killed),
	"kill-follower": onFollower(killed),
	"kill-servers":  onServers(killed),
	"kill-agent":    onNode(killed),
	"kill-node":     onNode(killedWhole),

	"pause-leader":   onLeader(paused),
	"pause-follower": onFollower(paused),
	"pause-agent":    onNode(paused),

	"cut-leader":     onLeader(cutFromServers),
	"cut-follower":   onFollower(cutFromServers),
	"isolate-leader": onLeader(isolated),
	"isolate-server": onFollower(isolated),
	"mute-leader":    onLeader(mute),
	"deaf-leader":    onLeader(deaf),
	"deaf-follower":  onFollower(deaf),
	"cut-node":       onNode(cutFromServers),
	"cut-nodes":      cutNodes,

	"fill-leader":   onLeader(filled),
	"fill-follower": onFollower(filled),
	"fill-node":     onNode(filled),

	"slow-leader":   onLeader(slowed),
	"slow-follower": onFollower(slowed),
	"slow-node":     onNode(slowed),

	stranding: stranded,

	"clock-node": onNode(clockSet),

	"transfer": transfer,
}

// inflict runs the schedule of kinds of faults, and has undone all of it when it returns.
func inflict(ctx context.Context, l *lab, kinds map[string]fault, steps []step) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var failures []error
	begin := l.told.now()
	for _, s := range steps {
		if sleep.For(ctx, begin+s.at-l.told.now()) != nil {
			break
		}
		running.Go(func() {
			if err := suffer(ctx, l, kinds[s.kind], s); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, fmt.Errorf("%s: %w", s.kind, err))
			}
		})
	}
	running.Wait()
	if len(failures) > 0 {
		return fmt.Errorf("the test could not do what it wanted: %w", failures[0])
	}
	return nil
}

// suffer is one fault from its beginning to its end.
func suffer(ctx context.Context, l *lab, begin fault, s step) error {
	at := l.told.now()
	what, undo, err := begin(ctx, l, s)
	if err != nil {
		return err
	}
	l.told.note("%s: %s", s.kind, what)
	_ = sleep.For(ctx, s.length)
	err = undo()
	l.told.note("%s: over", s.kind)
	l.told.fault(span{what: what, begin: at, end: l.told.now()})
	return err
}

// onMachine is a fault of one machine.
type onMachine func(l *lab, m *machine, s step) (what string, undo func() error, err error)

func onLeader(f onMachine) fault {
	return func(ctx context.Context, l *lab, s step) (string, func() error, error) {
		return f(l, l.leaderOr(ctx, s), s)
	}
}

// leaderOr is the leader, or any server while there is none.
func (l *lab) leaderOr(ctx context.Context, s step) *machine {
	leader, err := l.leader(ctx)
	if err != nil {
		l.told.note("%s: no leader is known: %v", s.kind, err)
		return l.servers[s.dice%uint64(len(l.servers))]
	}
	return leader
}

func onFollower(f onMachine) fault {
	return func(ctx context.Context, l *lab, s step) (string, func() error, error) {
		leader := l.leaderOr(ctx, s)
		followers := slices.DeleteFunc(slices.Clone(l.servers), func(m *machine) bool { return m == leader })
		return f(l, followers[s.dice%uint64(len(followers))], s)
	}
}

func onNode(f onMachine) fault {
	return func(_ context.Context, l *lab, s step) (string, func() error, error) {
		return f(l, l.nodes[s.dice%uint64(len(l.nodes))], s)
	}
}

func onServers(f onMachine) fault {
	return func(_ context.Context, l *lab, s step) (string, func() error, error) {
		var all []func() error
		for _, m := range l.servers {
			_, undo, err := f(l, m, s)
			if err != nil {
				return "", nil, err
			}
			all = append(all, undo)
		}
		return "all servers", func() error {
			for _, undo := range all {
				if err := undo(); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
}

// How the descriptions of faults end that keep an agent from hearing the servers, and that of the one that does so to
// all of them.
const (
	byKill        = " killed"
	byPause       = " paused"
	byCut         = " cut from the servers"
	cutOfAllNodes = "all nodes" + byCut
)

func killed(_ *lab, m *machine, _ step) (string, func() error, error) {
	return m.name + byKill, m.revive, m.kill(nil)
}

// lossOfMachine ends the description of the fault that ends everything on a machine.
const lossOfMachine = " killed with everything on it"

func killedWhole(_ *lab, m *machine, _ step) (string, func() error, error) {
	return m.name + lossOfMachine, m.revive, m.kill(m.others)
}

func paused(_ *lab, m *machine, _ step) (string, func() error, error) {
	return m.name + byPause, func() error { return m.signal(syscall.SIGCONT) }, m.signal(syscall.SIGSTOP)
}

func addresses(machines []*machine) (all []string) {
	for _, m := range machines {
		all = append(all, m.address)
	}
	return all
}

func (l *lab) cut(what string, pairs []pair) (string, func() error, error) {
	return what, func() error { return l.network.heal(pairs) }, l.network.cut(pairs)
}

// cutFromServers cuts a server off from the others; clients and nodes still reach it.
func cutFromServers(l *lab, m *machine, _ step) (string, func() error, error) {
	return l.cut(m.name+byCut, both([]string{m.address}, addresses(l.servers)))
}

func isolated(l *lab, m *machine, _ step) (string, func() error, error) {
	all := append(addresses(l.machines()), clientsAddress)
	return l.cut(m.name+" cut from all others", both([]string{m.address}, all))
}

// mute is a server that the others do not hear.
func mute(l *lab, m *machine, _ step) (string, func() error, error) {
	return l.cut(m.name+" is not heard by the servers", oneWay([]string{m.address}, addresses(l.servers)))
}

// deaf is a server that does not hear the others.
func deaf(l *lab, m *machine, _ step) (string, func() error, error) {
	return l.cut(m.name+" does not hear the servers", oneWay(addresses(l.servers), []string{m.address}))
}

func cutNodes(_ context.Context, l *lab, _ step) (string, func() error, error) {
	return l.cut(cutOfAllNodes, both(addresses(l.nodes), addresses(l.servers)))
}

// filled leaves nothing, next to nothing, or less than the reserve of a server.
func filled(_ *lab, m *machine, s step) (string, func() error, error) {
	left := []uint64{0, 2 << 20, 40 << 20}[s.dice%3]
	return fmt.Sprintf("disk of %s filled up to %d MiB", m.name, left>>20), m.free, m.fill(left)
}

// slowed lets a machine write to its disk only a few times in a second, so that each fsync takes tenths of a second.
func slowed(_ *lab, m *machine, s step) (string, func() error, error) {
	writes := []int{50, 20, 8}[s.dice%3]
	if err := m.disk.limit(writes); err != nil {
		return fmt.Sprintf("disk of %s is as fast as ever: %v", m.name, err), func() error { return nil }, nil
	}
	return fmt.Sprintf("disk of %s slowed to %d writes a second", m.name, writes), func() error { return m.disk.limit(0) }, nil
}

// stranded takes the servers away from the node on which the singleton runs: the network is cut, or the agent hangs or
// is gone. The singleton itself could run on.
func stranded(_ context.Context, l *lab, s step) (string, func() error, error) {
	harm := []onMachine{cutFromServers, paused, killed}[s.dice%3]
	m := l.nodes[s.dice%uint64(len(l.nodes))]
	if name := l.census.home(); name != "" {
		m = l.nodes[slices.IndexFunc(l.nodes, func(m *machine) bool { return m.name == name })]
	}
	return harm(l, m, s)
}

func transfer(ctx context.Context, l *lab, s step) (string, func() error, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	to := l.servers[s.dice%uint64(len(l.servers))].name
	_, err := l.admin.Servers().TransferLeader(ctx, &v1.TransferLeaderRequest{To: to})
	return fmt.Sprintf("leadership handed to %s (%v)", to, err), func() error { return nil }, nil
}

// clockSet shifts the clocks of everything that runs on a node, back or forth. The agent's stays within what
// certificates tolerate; those of its shims, which timestamp lines of output, differ by hours.
func clockSet(_ *lab, m *machine, s step) (string, func() error, error) {
	by := time.Duration(1+s.dice%(6*3600)) * time.Second
	if s.dice%2 == 0 {
		by = -by
	}
	count, err := m.setClocks(by, by/10)
	undo := func() error {
		_, err := m.setClocks(0, 0)
		return err
	}
	return fmt.Sprintf("clocks of %d processes of %s set by %v", count, m.name, by), undo, err
}
