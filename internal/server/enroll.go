package server

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// enrollment is the EnrollmentService.
type enrollment struct {
	v1.UnimplementedEnrollmentServiceServer
	*Server
}

// Enroll makes a machine a node. It is the only call without an identity: the
// join token in it is the proof. All refusals of a token read the same, so that
// nobody learns which tokens exist.
func (s *enrollment) Enroll(ctx context.Context, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	secret, err := identity.ParseJoinToken(request.GetToken())
	if err != nil {
		return nil, refuse(codes.Unauthenticated, "%s", err)
	}
	var node *v1.Node
	var chain [][]byte
	_, err = s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		token, err := s.redeem(snap, b, secret)
		if err != nil {
			return err
		}
		if node, err = s.newNode(snap, request); err != nil {
			return err
		}
		if chain, err = s.certify(request.GetCsr(), node); err != nil {
			return err
		}
		b.Create(node)
		b.Create(s.event(ctx, node, "Enrolled", fmt.Sprintf("with token %s", token.GetMetadata().GetName())))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.EnrollResponse{Node: node, ClusterId: s.ca.Trust().Cluster(), Certificates: chain, Servers: []string{s.address}}, nil
}

// redeem counts one use of a join token.
func (s *enrollment) redeem(snap *state.Snapshot, b *state.Batch, secret identity.JoinToken) (*v1.Token, error) {
	refused := refuse(codes.Unauthenticated, "the join token is not valid: it is unknown, used up, revoked or has expired; create a new one with: cloudless token create --role node")
	credential := snap.Credential(secret.ID())
	if credential == nil || !secret.Matches(credential.GetHash()) {
		return nil, refused
	}
	token := proto.CloneOf(snap.Token(credential.GetTokenUid()))
	spent := token.GetStatus().GetUsed() >= token.GetSpec().GetUses()
	if token == nil || token.GetSpec().GetRole() != roleNode || spent || !s.now().Before(token.GetSpec().GetExpireTime().AsTime()) {
		return nil, refused
	}
	token.Status.Used++
	b.Update(token, token.GetMetadata().GetVersion())
	return token, nil
}

func (s *enrollment) newNode(snap *state.Snapshot, request *v1.EnrollRequest) (*v1.Node, error) {
	v4, v6, err := nextSubnets(snap)
	if err != nil {
		return nil, refuse(codes.ResourceExhausted, "%s", err)
	}
	name := request.GetName()
	for i := 2; snap.NodeByName(name) != nil; i++ {
		name = fmt.Sprintf("%.58s-%d", request.GetName(), i)
	}
	return &v1.Node{
		ApiVersion: spec.APIVersion,
		Kind:       "Node",
		Metadata:   &v1.Metadata{Uid: s.newUID(), Name: name, Labels: request.GetLabels()},
		Spec:       &v1.NodeSpec{SubnetV4: v4.String(), SubnetV6: v6.String()},
		Status:     &v1.NodeStatus{State: "enrolling"},
	}, nil
}

// nextSubnets gives a new node its own address ranges.
func nextSubnets(snap *state.Snapshot) (v4, v6 netip.Prefix, err error) {
	ranges := snap.Cluster().GetSpec()
	range4, err := netip.ParsePrefix(ranges.GetRangeV4())
	if err != nil {
		return v4, v6, fmt.Errorf("range of the cluster: %w", err)
	}
	range6, err := netip.ParsePrefix(ranges.GetRangeV6())
	if err != nil {
		return v4, v6, fmt.Errorf("range of the cluster: %w", err)
	}
	var used4, used6 []netip.Prefix
	for n := range snap.Nodes("") {
		if p, err := netip.ParsePrefix(n.GetSpec().GetSubnetV4()); err == nil {
			used4 = append(used4, p)
		}
		if p, err := netip.ParsePrefix(n.GetSpec().GetSubnetV6()); err == nil {
			used6 = append(used6, p)
		}
	}
	return ipam.NextSubnets(range4, range6, used4, used6)
}

// certificateTTL bears a machine that rests for weeks. A removed node is cut
// off by the state at once, however long its certificate would last.
const certificateTTL = 30 * 24 * time.Hour

// Certify issues a certificate to a node that is known.
func (s *Server) Certify(csr []byte, nodeUID string) ([][]byte, error) {
	node := s.store.Snapshot().Node(nodeUID)
	if node == nil {
		return nil, notFound("node", "", nodeUID)
	}
	return s.certify(csr, node)
}

func (s *Server) certify(csr []byte, node *v1.Node) ([][]byte, error) {
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindNode, node.GetMetadata().GetUid())
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(csr, id, identity.IssueOptions{TTL: s.certificateTTL, Client: true}, s.now())
	if err != nil {
		return nil, refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	return chain, nil
}

// Renew gives a member a new certificate for the identity it has proved.
func (s *enrollment) Renew(ctx context.Context, request *v1.RenewRequest) (*v1.RenewResponse, error) {
	chain, err := s.Certify(request.GetCsr(), caller(ctx).ID.Name())
	if err != nil {
		return nil, err
	}
	return &v1.RenewResponse{Certificates: chain}, nil
}
