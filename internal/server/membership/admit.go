package membership

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// admissions are the machines that wait to become nodes. Each takes a use of a token, a name
// and the lowest free subnets, so separate transactions for two machines would conflict.
// One transaction admits all machines that wait.
type admissions struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting []*admission
}

// admission is a machine that asks to become a node. Once done is closed, it has a node or
// an error.
type admission struct {
	ctx     context.Context // of the call
	request *v1.EnrollRequest
	// secret is the join token. It is not used if server is set: then the machine runs
	// the server with this uid.
	secret  identity.JoinToken
	server  string
	receipt core.Receipt

	done chan struct{}
	node *v1.Node
	err  error
}

// maxAdmissions bounds the size of a transaction, however many labels the machines have.
const maxAdmissions = 128

func newAdmissions() *admissions { return &admissions{wake: make(chan struct{}, 1)} }

func (q *admissions) add(a *admission) {
	q.mu.Lock()
	q.waiting = append(q.waiting, a)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *admissions) take() []*admission {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.waiting
	q.waiting = nil
	return taken
}

// Run admits the machines that wait, until ctx ends.
func (s *Enrollment) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.admissions.wake:
		}
		for part := range slices.Chunk(s.admissions.take(), maxAdmissions) {
			s.admitAll(ctx, part)
		}
	}
}

func (s *Enrollment) admitAll(ctx context.Context, all []*admission) {
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		l := &ledger{tokens: map[string]*v1.Token{}, nodes: map[string]*v1.Node{}, names: map[string]bool{}}
		for _, a := range all {
			a.node, a.err = s.admitOne(snap, l, b, a)
		}
		for uid, used := range l.tokens {
			b.Update(used, snap.Token(uid).GetMetadata().GetVersion())
		}
		return nil
	})
	for _, a := range all {
		if a.err == nil {
			a.err = err
		}
		close(a.done)
	}
}

// ledger is what the machines admitted earlier in the same transaction have taken.
type ledger struct {
	tokens  map[string]*v1.Token // by uid, with their uses so far
	nodes   map[string]*v1.Node  // by the names of their receipts
	names   map[string]bool
	subnets *subnets
}

// admitOne makes a machine a node, unless it already is one.
func (s *Enrollment) admitOne(snap *state.Snapshot, l *ledger, b *state.Batch, a *admission) (*v1.Node, error) {
	token, err := s.checkAdmission(snap, a)
	if err != nil {
		return nil, err
	}
	earlier := snap.ReceiptByName(a.receipt.Name)
	if node := snap.Node(earlier.GetObjectUid()); node != nil {
		return node, nil
	}
	if node := l.nodes[a.receipt.Name]; node != nil {
		return node, nil
	}
	node, err := s.admitNode(snap, l, b, a, token)
	if err != nil {
		return nil, err
	}
	if earlier != nil { // its node was removed
		b.Delete(state.KindReceipt, earlier.GetMetadata().GetUid())
	}
	a.receipt.Keep(b, node.GetMetadata().GetUid(), "")
	l.nodes[a.receipt.Name] = node
	return node, nil
}

// checkNodeLimit refuses a node that exceeds the limit.
func checkNodeLimit(snap *state.Snapshot, coming int) error {
	most := spec.MostNodes(snap.Cluster().GetSpec())
	if snap.Count(state.KindNode)+coming < most {
		return nil
	}
	return core.Refuse(codes.ResourceExhausted, "the cluster has %d nodes and allows no more; remove one with: cloudless node rm NAME, or allow more with: cloudless cluster config set limits.nodes=%d", most, most+1)
}

// checkAdmission returns the token that a machine joins with. It returns nil for the machine
// of a server, which must be a member. The leader is a member before the state says so.
func (s *Enrollment) checkAdmission(snap *state.Snapshot, a *admission) (*v1.Token, error) {
	if a.server == "" {
		return s.auth.JoinToken(snap, a.secret, core.RoleNode)
	}
	if a.server != s.UID && snap.Server(a.server) == nil {
		return nil, core.Refuse(codes.PermissionDenied, "server %s is not a member of this cluster, so its machine cannot be a node of it", a.server)
	}
	return nil, nil
}

// token returns a join token with its uses so far.
func (l *ledger) token(token *v1.Token) *v1.Token {
	if used := l.tokens[token.GetMetadata().GetUid()]; used != nil {
		return used
	}
	return token
}

// spend counts one use of a join token.
func (l *ledger) spend(token *v1.Token) {
	used := proto.CloneOf(token)
	if used.Status == nil {
		used.Status = &v1.TokenStatus{}
	}
	used.Status.Used++
	l.tokens[token.GetMetadata().GetUid()] = used
}

// name returns the requested name, with a suffix if it is taken.
func (l *ledger) name(snap *state.Snapshot, requested string) string {
	name := requested
	for i := 2; l.names[name] || snap.NodeByName(name) != nil; i++ {
		name = fmt.Sprintf("%.58s-%d", requested, i)
	}
	l.names[name] = true
	return name
}

// nextSubnets allocates the subnets of a new node.
func (l *ledger) nextSubnets(snap *state.Snapshot, used []string) (v4, v6 netip.Prefix, err error) {
	if l.subnets == nil {
		if l.subnets, err = newSubnets(snap); err != nil {
			return v4, v6, core.Refuse(codes.ResourceExhausted, "%s", err)
		}
	}
	v4, v6, err = l.subnets.next(used)
	if err != nil {
		return v4, v6, core.Refuse(codes.ResourceExhausted, "%s", err)
	}
	return v4, v6, nil
}
