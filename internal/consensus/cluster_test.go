package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// member is one of several servers in this process.
type member struct {
	*consensus.Consensus
	id        string
	options   consensus.Options
	addresses *directory
}

// directory is where servers look up each other's addresses, which change with every start.
type directory struct {
	mu  sync.Mutex
	all map[string]string
}

func (d *directory) set(id, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[id] = address
}

func (d *directory) get(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[id]
}

// loopback is a network without authentication.
type loopback struct{ net.Listener }

func (loopback) Dial(_, address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// newMember is a server that is not open yet.
func newMember(t *testing.T, number int, addresses *directory) *member {
	t.Helper()
	id := fmt.Sprintf("server-%d", number)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	addresses.set(id, address)
	return &member{id: id, addresses: addresses, options: consensus.Options{
		Dir: t.TempDir(), ServerID: id, Address: address, Network: loopback{listener}, Addresses: addresses.get,
		Store: state.New(), Logger: slog.New(slog.DiscardHandler), Bootstrap: number == 1,
		ElectionTimeout: 3 * consensus.MinElectionTimeout, // the tests' machines may be slow
	}}
}

// open opens the server and closes it with the test.
func (m *member) open(t *testing.T) {
	t.Helper()
	opened, err := consensus.Open(t.Context(), m.options)
	if err != nil {
		t.Fatal(err)
	}
	m.Consensus = opened
	t.Cleanup(func() { closed(t, opened) })
}

// cluster starts servers that talk over loopback: the first one bootstraps the cluster, the others are added to it.
func cluster(t *testing.T, size int, change ...func(*consensus.Options)) []*member {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for elections; make test runs it")
	}
	addresses := &directory{all: map[string]string{}}
	members := make([]*member, size)
	for i := range members {
		members[i] = newMember(t, i+1, addresses)
		for _, f := range change {
			f(&members[i].options)
		}
	}
	for _, m := range members {
		m.open(t)
	}
	if err := members[0].WaitLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range members[1:] {
		if err := members[0].Raft().AddVoter(raft.ServerID(m.id), raft.ServerAddress(m.options.Address), 0, 0).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members[1:] {
		if err := m.WaitLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return members
}

func TestFollowerNamesTheLeader(t *testing.T) {
	members := cluster(t, 3)
	propose(t, members[0].Consensus, 0, 5)
	_, err := members[1].Propose(t.Context(), numbered(5))
	refusal, ok := errors.AsType[*consensus.NotLeaderError](err)
	if !ok || !errors.Is(err, consensus.ErrNotLeader) || refusal.Leader.ID != "server-1" {
		t.Fatalf("got %v", err)
	}
	if _, err := members[2].Read(t.Context()); !errors.Is(err, consensus.ErrNotLeader) {
		t.Fatalf("got %v", err)
	}
	if servers := members[2].Servers(); len(servers) != 3 || !servers[2].Voter {
		t.Fatalf("got %+v", servers)
	}
}

// Followers receive what the leader acknowledged.
func TestFollowersConverge(t *testing.T) {
	members := cluster(t, 3)
	propose(t, members[0].Consensus, 0, 20)
	for _, m := range members {
		snapshot, feed := m.Store().Subscribe()
		for snapshot.Count(state.KindNode) < 20 {
			_, err := feed.Next(t.Context())
			if errors.Is(err, state.ErrLagged) { // it was brought up to date by a snapshot
				_, feed = m.Store().Subscribe()
			} else if err != nil {
				t.Fatal(err)
			}
			snapshot = m.Stale()
		}
		if string(saved(t, m.Stale())) != string(saved(t, members[0].Stale())) {
			t.Fatalf("%s has another state", m.id)
		}
	}
}

// The same loop runs on three servers. When the leader stops, the loop must start on another server, and only there,
// with everything that the first one did.
func TestLeadMoves(t *testing.T) {
	members := cluster(t, 3)
	type start struct {
		member int
		seen   []int
	}
	starts := make(chan start, len(members))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends := make(chan error, len(members))
	for i, m := range members {
		go func() {
			ends <- m.Lead(ctx, func(ctx context.Context) error {
				starts <- start{i, numbers(m.Stale())}
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
	}
	if first := <-starts; first.member != 0 {
		t.Fatalf("server %d leads", first.member+1)
	}
	propose(t, members[0].Consensus, 0, 10)
	closed(t, members[0].Consensus)
	if err := <-ends; !errors.Is(err, consensus.ErrShutdown) {
		t.Fatalf("Lead on the stopped server returned %v", err)
	}
	second := <-starts
	if second.member == 0 || !slices.Equal(second.seen, upTo(10)) {
		t.Fatalf("got %+v", second)
	}
	leader := members[second.member]
	if _, err := leader.Propose(t.Context(), numbered(10)); err != nil {
		t.Fatal(err)
	}
	read, err := leader.Read(t.Context())
	if err != nil || !slices.Equal(numbers(read), upTo(11)) {
		t.Fatalf("got %v, %v", numbers(read), err)
	}
	cancel()
	for range members[1:] {
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Fatalf("Lead returned %v", err)
		}
	}
	if len(starts) > 0 {
		t.Fatalf("the loop also ran as %+v", <-starts)
	}
}

// A server is elected while raft still tries to transfer leadership to a hanging server. Raft refuses everything until
// it gives up; then the server leads.
func TestHangingTransferDoesNotPreventLeading(t *testing.T) {
	members := cluster(t, 3)
	hung, err := net.Listen("tcp", "127.0.0.1:0") // connections succeed, without an answer
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	leader, other := members[0], members[1]
	leader.addresses.set(other.id, hung.Addr().String())
	transfer := leader.Raft().LeadershipTransferToServer(raft.ServerID(other.id), raft.ServerAddress(hung.Addr().String()))
	eventually(t, "the transfer is tried", func() bool {
		return errors.Is(leader.Raft().Barrier(0).Error(), raft.ErrLeadershipTransferInProgress)
	})
	leader.LeadAgain()
	if !leader.IsLeader() {
		t.Fatal("the server that raft has elected does not lead")
	}
	if err := transfer.Error(); err == nil {
		t.Error("the transfer has succeeded")
	}
	propose(t, leader.Consensus, 0, 1)
}

// A leader that is cut off must stop its loop and acknowledge nothing.
func TestLeaderWithoutMajorityStepsDown(t *testing.T) {
	members := cluster(t, 3)
	led := make(chan error)
	go func() {
		_ = members[0].Lead(t.Context(), func(ctx context.Context) error {
			led <- nil
			<-ctx.Done()
			led <- context.Cause(ctx)
			return nil
		})
	}()
	<-led
	closed(t, members[1].Consensus)
	closed(t, members[2].Consensus)
	if _, err := members[0].Propose(t.Context(), numbered(0)); !errors.Is(err, consensus.ErrUncertain) && !errors.Is(err, consensus.ErrNotLeader) {
		t.Fatalf("got %v", err)
	}
	if reason := <-led; !errors.Is(reason, consensus.ErrNotLeader) {
		t.Fatalf("the loop ended because of %v", reason)
	}
	if members[0].IsLeader() {
		t.Fatal("it still leads")
	}
}

// A server knows for how long there has been no leader.
func TestLeaderlessTimeIsKnown(t *testing.T) {
	members := cluster(t, 3)
	for _, m := range members {
		if since := m.Leaderless(); since != 0 {
			t.Errorf("%s has had no leader for %s, but one leads", m.id, since)
		}
	}
	closed(t, members[0].Consensus)
	closed(t, members[1].Consensus)
	last := members[2]
	for last.Leaderless() == 0 {
		changed := last.Changed()
		if last.Leaderless() == 0 {
			<-changed
		}
	}
	if leader, led := last.Leader(); led {
		t.Errorf("%s leads without the others", leader.ID)
	}
}
