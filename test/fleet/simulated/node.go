package simulated

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
)

// The retry pauses are those of an agent.
const (
	retryFirst = 50 * time.Millisecond
	retryMax   = 5 * time.Second
	dialTime   = 15 * time.Second
)

// Node is one simulated node.
type Node struct {
	fleet       *Fleet
	index       int
	uid, name   string
	key         crypto.Signer
	certificate []byte
	source      netip.Addr

	// ticket resumes the last TLS session; nil if there is none.
	ticket atomic.Pointer[tls.ClientSessionState]

	// interval is how often the node reports. It is read with the lock of its shard held, under which the node's lock
	// must not be taken.
	interval atomic.Int64

	mu       sync.Mutex
	link     *link // nil while there is none
	worked   bool  // the session has got its assignments
	servers  []string
	epoch    uint64
	replicas map[uuid.UUID]replica
	// unsaid are the replicas with unreported changes.
	unsaid []uuid.UUID
	// applied are the secrets that were not acknowledged yet.
	applied []*v1.SecretApplied
	// away is not nil while the node is killed or silent, and is closed when it is back.
	away   chan struct{}
	killed bool
	over   bool // the fleet has ended
}

// replica is what a node stores of one.
type replica struct {
	since   int64 // in seconds
	stopped bool
}

func newNode(f *Fleet, i int, key crypto.Signer, certificate []byte, answer *v1.EnrollResponse) *Node {
	servers := slices.Clone(f.options.Join)
	for _, address := range answer.GetServers() {
		if !slices.Contains(servers, address) {
			servers = append(servers, address)
		}
	}
	m := answer.GetNode().GetMetadata()
	n := &Node{
		fleet: f, index: i, uid: m.GetUid(), name: m.GetName(), key: key, certificate: certificate,
		source: f.options.Source(i), servers: servers,
	}
	n.setPace(f.options.Heartbeat)
	return n
}

// Get is the node's last TLS session. All servers of a cluster accept it.
func (n *Node) Get(string) (*tls.ClientSessionState, bool) {
	ticket := n.ticket.Load()
	return ticket, ticket != nil
}

// Put stores a TLS session for the next connection.
func (n *Node) Put(_ string, ticket *tls.ClientSessionState) { n.ticket.Store(ticket) }

// UID identifies the node in the cluster.
func (n *Node) UID() string { return n.uid }

// Name is the node's.
func (n *Node) Name() string { return n.name }

// Source is where the node connects from; invalid if that is left to the kernel.
func (n *Node) Source() netip.Addr { return n.source }

// DefaultStatus is that of a machine with 16 cores.
func DefaultStatus(i int) *v1.NodeStatus {
	return &v1.NodeStatus{
		Capacity:   &v1.NodeResources{Cpu: "16", Memory: "64Gi", Disk: "500Gi", Pids: 100_000},
		Info:       &v1.NodeInfo{BootId: fmt.Sprintf("simulated-%d", i), Hostname: fmt.Sprintf("simulated-%d", i), Os: "linux", Arch: "amd64", Version: "simulated"},
		Drivers:    []*v1.DriverInfo{{Name: "container", Version: "simulated"}},
		Conditions: []*v1.Condition{{Type: "Ready", Status: true, ChangeTime: &timestamppb.Timestamp{Seconds: 1}}},
	}
}

func (n *Node) status() *v1.NodeStatus {
	status := n.fleet.options.Status(n.index)
	if n.source.IsValid() {
		status.Interfaces = append(status.Interfaces, &v1.Interface{
			Name: "eth0", Mtu: 1500, Up: true, Addresses: []string{netip.PrefixFrom(n.source, n.source.BitLen()).String()},
		})
	}
	return status
}

// Kill breaks the node's connection without notice. The node stays away until [Node.Return].
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leave()
	n.killed = true
	if n.link != nil {
		n.link.cut()
	}
}

// Pause makes the node silent: its session stays open, but it neither sends nor reads anything, until [Node.Return].
func (n *Node) Pause() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leave()
}

func (n *Node) leave() {
	if n.away == nil {
		n.away = make(chan struct{})
	}
}

// Return brings back a killed or silent node.
func (n *Node) Return() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away != nil {
		close(n.away)
		n.away, n.killed = nil, false
	}
}

func (n *Node) well() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.away == nil
}

// await returns when the node is neither killed nor silent, or the fleet has ended.
func (n *Node) await() {
	for {
		n.mu.Lock()
		away := n.away
		over := n.over
		n.mu.Unlock()
		if away == nil || over {
			return
		}
		<-away
	}
}

// hangUp ends the node for good.
func (n *Node) hangUp() {
	n.mu.Lock()
	n.over = true
	open := n.link
	if n.away != nil {
		close(n.away)
		n.away = nil
	}
	n.mu.Unlock()
	if open != nil {
		open.close()
	}
}

// live keeps the node connected until ctx ends.
func (n *Node) live(ctx context.Context) {
	pause := retryFirst
	for {
		n.await()
		if ctx.Err() != nil {
			return
		}
		worked, err := n.connected(ctx)
		if worked {
			pause = retryFirst
		}
		if ctx.Err() != nil {
			return
		}
		n.fleet.counts.failed(err)
		n.fleet.options.Logger.DebugContext(ctx, "no session", "node", n.name, "error", err)
		n.moveOn()
		if sleep.For(ctx, pause/2+rand.N(pause/2+1)) != nil {
			return
		}
		pause = min(2*pause, retryMax)
	}
}

// connected runs one connection and the sessions on it, and reports whether one of them worked.
func (n *Node) connected(ctx context.Context) (worked bool, err error) {
	l, err := n.dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		n.mu.Lock()
		n.link = nil
		n.mu.Unlock()
		l.close()
	}()
	for pause := retryFirst; ; pause = min(2*pause, retryMax) {
		ended, err := n.session(l)
		worked = worked || ended
		if ended {
			pause = retryFirst
		}
		n.fleet.counts.failed(err)
		if _, alive := errors.AsType[*streamEnded](err); !alive || l.leaving || client.NoLeader(err) {
			return worked, err
		}
		if sleep.For(ctx, pause/2+rand.N(pause/2+1)) != nil {
			return worked, context.Cause(ctx)
		}
	}
}

// dial connects to the next server. It limits how many nodes do so at once.
func (n *Node) dial(ctx context.Context) (*link, error) {
	select {
	case n.fleet.handshakes <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-n.fleet.handshakes }()
	dialer := &net.Dialer{}
	if n.source.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: n.source.AsSlice()}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	n.mu.Lock()
	address := n.servers[0]
	n.mu.Unlock()
	l, err := dialLink(ctx, dialer, address, n.fleet.config(n))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.killed || n.over {
		l.cut()
		return nil, errors.New("the node was killed")
	}
	n.link = l
	return l, nil
}

// moveOn makes the next server the one to try.
func (n *Node) moveOn() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers = append(n.servers[1:len(n.servers):len(n.servers)], n.servers[0])
}
