package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	v1.UnsafeEnrollmentServiceServer
	*Server
}

// Enroll makes a machine a node. It is the only call without an identity: the
// join token in it is the proof. All refusals of a token read the same, so that
// nobody learns which tokens exist. A machine whose answer was lost asks again
// with the same token and key: it is the same node and spends no second use.
func (s *enrollment) Enroll(ctx context.Context, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	secret, err := identity.ParseJoinToken(request.GetToken())
	if err != nil {
		return nil, refuse(codes.Unauthenticated, "%s", err)
	}
	if request.GetServer() != nil {
		return s.enrollServer(ctx, request, secret)
	}
	var node *v1.Node
	var chain [][]byte
	_, err = s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		token, err := s.prove(snap, secret, roleNode)
		if err != nil {
			return err
		}
		receipt, err := enrollmentReceipt(secret, request.GetCsr())
		if err != nil {
			return err
		}
		earlier := snap.Receipt(receipt.name)
		if node = snap.Node(earlier.GetObjectUid()); node == nil {
			if node, err = s.admitNode(ctx, snap, b, token, request); err != nil {
				return err
			}
			if earlier != nil { // the node has been removed since
				b.Delete(state.KindReceipt, earlier.GetMetadata().GetUid())
			}
			receipt.keep(b, node.GetMetadata().GetUid(), "")
		}
		chain, err = s.certify(request.GetCsr(), node)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &v1.EnrollResponse{Node: node, ClusterId: s.ca.Trust().Cluster(), Certificates: chain, Servers: s.addresses(s.store.Snapshot())}, nil
}

// errJoinToken is a function because a refusal is not to be shared.
func errJoinToken() error {
	return refuse(codes.Unauthenticated, "the join token is not valid: it is unknown, used up, revoked or has expired; create a new one with: cloudless token create --role node")
}

// prove returns the join token with a secret, be it used up or not.
func (s *enrollment) prove(snap *state.Snapshot, secret identity.JoinToken, role string) (*v1.Token, error) {
	credential := snap.Credential(secret.ID())
	if credential == nil || !secret.Matches(credential.GetHash()) {
		return nil, errJoinToken()
	}
	token := snap.Token(credential.GetTokenUid())
	if token == nil || !s.now().Before(token.GetSpec().GetExpireTime().AsTime()) {
		return nil, errJoinToken()
	}
	if have := token.GetSpec().GetRole(); have != role {
		return nil, refuse(codes.InvalidArgument, "this token lets a machine join as %s, not as %s: join with --role %s, or create another with: cloudless token create --role %s", have, role, have, role)
	}
	return token, nil
}

// enrollmentReceipt remembers who has joined by token and key: what else the
// machine says about itself may differ the next time it asks.
func enrollmentReceipt(secret identity.JoinToken, csr []byte) (receipt, error) {
	key, err := identity.RequestFingerprint(csr)
	if err != nil {
		return receipt{}, refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	name := sha256.Sum256([]byte(v1.EnrollmentService_Enroll_FullMethodName + "\x00" + secret.ID() + "\x00" + key))
	return receipt{name: hex.EncodeToString(name[:])}, nil
}

// admitNode makes a new node and counts one use of its join token.
func (s *enrollment) admitNode(ctx context.Context, snap *state.Snapshot, b *state.Batch, token *v1.Token, request *v1.EnrollRequest) (*v1.Node, error) {
	if token.GetStatus().GetUsed() >= token.GetSpec().GetUses() {
		return nil, errJoinToken()
	}
	if err := nodeAllowed(snap); err != nil {
		return nil, err
	}
	node, err := s.newNode(snap, request)
	if err != nil {
		return nil, err
	}
	used := proto.CloneOf(token)
	used.Status.Used++
	b.Update(used, token.GetMetadata().GetVersion())
	b.Create(node)
	b.Create(s.event(ctx, node, "Enrolled", fmt.Sprintf("with token %s", token.GetMetadata().GetName())))
	return node, nil
}

func (s *enrollment) newNode(snap *state.Snapshot, request *v1.EnrollRequest) (*v1.Node, error) {
	v4, v6, err := nextSubnets(snap, request.GetUsed())
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

// nextSubnets gives a new node its own address ranges, if it can be such that the
// machine does not use yet. Where it uses all there are, ours are the smaller
// ones, and smaller ranges win.
func nextSubnets(snap *state.Snapshot, used []string) (v4, v6 netip.Prefix, err error) {
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
	foreign4, foreign6 := slices.Clone(used4), slices.Clone(used6)
	for _, text := range used {
		switch p, err := netip.ParsePrefix(text); {
		case err != nil: // what cannot be read cannot be avoided
		case p.Addr().Is4():
			foreign4 = append(foreign4, p)
		default:
			foreign6 = append(foreign6, p)
		}
	}
	for _, taken := range [][2][]netip.Prefix{{foreign4, foreign6}, {foreign4, used6}, {used4, foreign6}, {used4, used6}} {
		if v4, v6, err = ipam.NextSubnets(range4, range6, taken[0], taken[1]); !errors.Is(err, ipam.ErrExhausted) {
			break
		}
	}
	return v4, v6, err
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
