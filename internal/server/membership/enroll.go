package membership

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Enrollment is the EnrollmentService.
type Enrollment struct {
	v1.UnsafeEnrollmentServiceServer
	*Membership
	auth       *auth.Authenticator
	admissions *admissions
	stopping   context.Context
}

// NewEnrollment makes the EnrollmentService of a server, whose calls end with stopping.
func NewEnrollment(m *Membership, a *auth.Authenticator, stopping context.Context) *Enrollment {
	return &Enrollment{Membership: m, auth: a, admissions: newAdmissions(), stopping: stopping}
}

// Enroll makes a machine a node. It is the only call without an identity: the
// join token in it is the proof. All refusals of a token read the same, so that
// nobody learns which tokens exist. A machine whose answer was lost asks again
// with the same token and key: it is the same node and spends no second use.
func (s *Enrollment) Enroll(ctx context.Context, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	secret, err := identity.ParseJoinToken(request.GetToken())
	if err != nil {
		return nil, core.Refuse(codes.Unauthenticated, "%s", err)
	}
	role := core.RoleNode
	if request.GetServer() != nil {
		role = core.RoleServer
	}
	if err := s.auth.CheckJoinToken(ctx, request.GetToken(), secret, role); err != nil { // before anything else is done for a stranger
		return nil, err
	}
	oneport.StrangerOf(ctx).Authenticated()
	if err := spec.Validate(request); err != nil {
		return nil, err
	}
	if request.GetServer() != nil {
		return s.enrollServer(ctx, request, secret)
	}
	return s.enrollNode(ctx, &admission{request: request, secret: secret}, secret.ID())
}

// EnrollOwnNode makes the machine of a server a node. Servers hold the keys of the
// authority, so that a token would prove nothing more. Asked again with the same
// key, it is the same node.
func (s *Enrollment) EnrollOwnNode(ctx context.Context, request *v1.EnrollOwnNodeRequest) (*v1.EnrollResponse, error) {
	by := core.Caller(ctx).ID.Name()
	return s.enrollNode(ctx, &admission{server: by, request: &v1.EnrollRequest{
		Csr: request.GetCsr(), Name: request.GetName(), Labels: request.GetLabels(), Used: request.GetUsed(),
	}}, by)
}

// enrollNode admits a machine and certifies it. What it proves itself with, and
// its key, tell it from all others.
func (s *Enrollment) enrollNode(ctx context.Context, a *admission, proof string) (*v1.EnrollResponse, error) {
	var err error
	if a.receipt, err = enrollmentReceipt(proof, a.request.GetCsr()); err != nil {
		return nil, err
	}
	a.ctx, a.done = ctx, make(chan struct{})
	s.admissions.add(a)
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.stopping.Done():
		return nil, core.Refuse(codes.Unavailable, "%s", core.ErrStopping)
	}
	if a.err != nil {
		return nil, a.err
	}
	chain, err := s.certify(a.request.GetCsr(), a.node)
	if err != nil {
		return nil, err
	}
	return &v1.EnrollResponse{Node: a.node, ClusterId: s.ca.Trust().Cluster(), Certificates: chain, Servers: s.addresses(s.Store.Snapshot())}, nil
}

// enrollmentReceipt remembers who has joined, by its key and by what it proved
// itself with, which is the id of a token or the uid of a server: what else the
// machine says about itself may differ the next time it asks.
func enrollmentReceipt(proof string, csr []byte) (core.Receipt, error) {
	key, err := identity.RequestFingerprint(csr)
	if err != nil {
		return core.Receipt{}, core.Refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	name := sha256.Sum256([]byte(v1.EnrollmentService_Enroll_FullMethodName + "\x00" + proof + "\x00" + key))
	return core.Receipt{Name: hex.EncodeToString(name[:])}, nil
}

// admitNode makes a new node and counts one use of its join token, if it has one.
func (s *Enrollment) admitNode(snap *state.Snapshot, l *ledger, b *state.Batch, a *admission, token *v1.Token) (*v1.Node, error) {
	how := "on the machine of server " + snap.Server(a.server).GetMetadata().GetName()
	if token != nil {
		if token = l.token(token); token.GetStatus().GetUsed() >= token.GetSpec().GetUses() {
			return nil, auth.UnknownJoinToken(core.RoleNode)
		}
		how = "with token " + token.GetMetadata().GetName()
	}
	if err := checkNodeLimit(snap, len(l.nodes)); err != nil {
		return nil, err
	}
	node, err := s.newNode(snap, l, a.request)
	if err != nil {
		return nil, err
	}
	if token != nil {
		l.spend(token)
	}
	b.Create(node)
	b.Create(s.Event(a.ctx, node, "Enrolled", how))
	return node, nil
}

func (s *Enrollment) newNode(snap *state.Snapshot, l *ledger, request *v1.EnrollRequest) (*v1.Node, error) {
	v4, v6, err := l.nextSubnets(snap, request.GetUsed())
	if err != nil {
		return nil, err
	}
	return &v1.Node{
		ApiVersion: spec.APIVersion,
		Kind:       "Node",
		Metadata:   &v1.Metadata{Uid: state.NewUID(), Name: l.name(snap, request.GetName()), Labels: request.GetLabels()},
		Spec:       &v1.NodeSpec{SubnetV4: v4.String(), SubnetV6: v6.String()},
		Status:     &v1.NodeStatus{State: spec.NodeEnrolling},
	}, nil
}

// DefaultCertificateTTL bears a machine that rests for weeks. A removed node is cut
// off by the state at once, however long its certificate would last.
const DefaultCertificateTTL = 30 * 24 * time.Hour

// Certify issues a certificate to a node that is known.
func (s *Membership) Certify(csr []byte, nodeUID string) ([][]byte, error) {
	node := s.Store.Snapshot().Node(nodeUID)
	if node == nil {
		return nil, core.NotFound("node", "", nodeUID)
	}
	return s.certify(csr, node)
}

func (s *Membership) certify(csr []byte, node *v1.Node) ([][]byte, error) {
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindNode, node.GetMetadata().GetUid())
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(csr, id, identity.IssueOptions{TTL: s.certificateTTL, Client: true}, s.Now())
	if err != nil {
		return nil, core.Refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	return chain, nil
}

// Renew gives a member a new certificate for the identity it has proved.
func (s *Enrollment) Renew(ctx context.Context, request *v1.RenewRequest) (*v1.RenewResponse, error) {
	chain, err := s.Certify(request.GetCsr(), core.Caller(ctx).ID.Name())
	if err != nil {
		return nil, err
	}
	return &v1.RenewResponse{Certificates: chain}, nil
}
