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
func NewEnrollment(stopping context.Context, m *Membership, a *auth.Authenticator) *Enrollment {
	return &Enrollment{Membership: m, auth: a, admissions: newAdmissions(), stopping: stopping}
}

// Enroll makes a machine a node or a server. It is the only call without an identity: the
// join token authenticates it. All refusals of a token read the same, so that they do not
// reveal which tokens exist. A machine that has not received the answer may repeat the call
// with the same token and key. It becomes the same member and uses the token only once.
func (s *Enrollment) Enroll(ctx context.Context, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	secret, err := identity.ParseJoinToken(request.GetToken())
	if err != nil {
		return nil, core.Refuse(codes.Unauthenticated, "%s", err)
	}
	role := core.RoleNode
	if request.GetServer() != nil {
		role = core.RoleServer
	}
	if err := s.auth.CheckJoinToken(ctx, request.GetToken(), secret, role); err != nil { // before any other work for an unknown caller
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

// EnrollOwnNode makes the machine of a server a node. It needs no token, because servers
// hold the key of the authority. A repeated call with the same key returns the same node.
func (s *Enrollment) EnrollOwnNode(ctx context.Context, request *v1.EnrollOwnNodeRequest) (*v1.EnrollResponse, error) {
	by := core.Caller(ctx).ID.Name()
	return s.enrollNode(ctx, &admission{server: by, request: &v1.EnrollRequest{
		Csr: request.GetCsr(), Name: request.GetName(), Labels: request.GetLabels(), Used: request.GetUsed(), Networks: request.GetNetworks(),
	}}, by)
}

// enrollNode admits a machine and issues its certificate. The machine is identified by its
// proof, which is the id of a token or the uid of a server, and by its key.
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

// enrollmentReceipt identifies a repeated enrollment by the proof and the key. The rest of
// the request may differ when the machine asks again.
func enrollmentReceipt(proof string, csr []byte) (core.Receipt, error) {
	key, err := identity.RequestFingerprint(csr)
	if err != nil {
		return core.Receipt{}, core.Refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	name := sha256.Sum256([]byte(v1.EnrollmentService_Enroll_FullMethodName + "\x00" + proof + "\x00" + key))
	return core.Receipt{Name: hex.EncodeToString(name[:])}, nil
}

// admitNode creates a node and counts one use of the join token, if there is one.
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
	if err := checkNetworks(snap, a.request.GetNetworks()); err != nil {
		return nil, err
	}
	request, err := fixedBy(token, a.request)
	if err != nil {
		return nil, err
	}
	if err := nameFree(token, snap.NodeByName(token.GetSpec().GetNodeName()) != nil || l.names[token.GetSpec().GetNodeName()], "node"); err != nil {
		return nil, err
	}
	node, err := s.newNode(snap, l, request)
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

// DefaultCertificateTTL lets a machine be off for weeks. It does not delay a removal: servers
// refuse a removed member at once, even if its certificate is still valid.
const DefaultCertificateTTL = 30 * 24 * time.Hour

// Certify issues a certificate to an existing node.
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

// Renew issues a new certificate to the calling node, for the same identity.
func (s *Enrollment) Renew(ctx context.Context, request *v1.RenewRequest) (*v1.RenewResponse, error) {
	chain, err := s.Certify(request.GetCsr(), core.Caller(ctx).ID.Name())
	if err != nil {
		return nil, err
	}
	return &v1.RenewResponse{Certificates: chain, Authorities: s.ca.Trust().DERs()}, nil
}
