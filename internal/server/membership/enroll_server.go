package membership

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// enrollServer makes a machine a server: it gets an identity and the keys that every server
// has. The leader later adds it to Raft and lets it vote. Like a node, it may repeat the
// call with the same token and key: it is the same server, at the address of the new call.
func (s *Enrollment) enrollServer(ctx context.Context, request *v1.EnrollRequest, secret identity.JoinToken) (*v1.EnrollResponse, error) {
	requested := request.GetServer()
	if _, port, err := net.SplitHostPort(requested.GetAddress()); err != nil || port == "" || port == "0" {
		return nil, core.Refuse(codes.InvalidArgument, "the address %q of the new server is not of the form host:port", requested.GetAddress())
	}
	if s.sealer == nil {
		return nil, core.Refuse(codes.FailedPrecondition, "this cluster cannot have more servers: the one that leads does not hold the key-encryption key")
	}
	handed, err := s.sealer.HandOver(requested.GetSealTo(), s.ca.Trust().Cluster())
	if err != nil {
		return nil, core.Refuse(codes.InvalidArgument, "%s", err)
	}
	receipt, err := enrollmentReceipt(secret.ID(), request.GetCsr())
	if err != nil {
		return nil, err
	}
	answer := &v1.EnrollResponse{ClusterId: s.ca.Trust().Cluster(), SealedKey: handed}
	hosts := s.ResolveHosts(ctx, requested.GetAddress())
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		token, err := s.auth.JoinToken(snap, secret, core.RoleServer)
		if err != nil {
			return err
		}
		if err := addressFree(snap, requested.GetAddress(), snap.ReceiptByName(receipt.Name).GetObjectUid()); err != nil {
			return err
		}
		if err := outsideRanges(snap, hosts, requested.GetAddress()); err != nil {
			return err
		}
		if answer.Server, err = s.admitServer(ctx, snap, b, token, receipt, request); err != nil {
			return err
		}
		answer.Certificates, err = s.certifyServer(request.GetCsr(), answer.GetServer())
		return err
	})
	if err != nil {
		return nil, err
	}
	answer.SealedAuthority = snap.Authority().GetSealedKey()
	if answer.Authority, err = proto.Marshal(snap.Authority()); err != nil {
		return nil, err
	}
	answer.Servers = s.addresses(snap)
	return answer, nil
}

// admitServer creates a server and counts one use of the join token, unless the machine
// already is a server.
func (s *Enrollment) admitServer(ctx context.Context, snap *state.Snapshot, b *state.Batch, token *v1.Token, receipt core.Receipt, request *v1.EnrollRequest) (*v1.Server, error) {
	earlier := snap.ReceiptByName(receipt.Name)
	requested := request.GetServer()
	if known := snap.Server(earlier.GetObjectUid()); known != nil {
		if known.GetSpec().GetAddress() == requested.GetAddress() {
			return known, nil
		}
		moved := proto.CloneOf(known)
		moved.Spec.Address = requested.GetAddress()
		b.Update(moved, known.GetMetadata().GetVersion())
		return moved, nil
	}
	if token.GetStatus().GetUsed() >= token.GetSpec().GetUses() {
		return nil, auth.UnknownJoinToken(core.RoleServer)
	}
	request, err := fixedBy(token, request)
	if err != nil {
		return nil, err
	}
	if err := nameFree(token, snap.ServerByName(token.GetSpec().GetNodeName()) != nil, "server"); err != nil {
		return nil, err
	}
	used := proto.CloneOf(token)
	used.Status.Used++
	b.Update(used, token.GetMetadata().GetVersion())
	made := s.newServer(snap, request)
	b.Create(made)
	b.Create(s.Event(ctx, made, "Enrolled", fmt.Sprintf("with token %s, at %s", token.GetMetadata().GetName(), requested.GetAddress())))
	if earlier != nil { // its server was removed
		b.Delete(state.KindReceipt, earlier.GetMetadata().GetUid())
	}
	receipt.Keep(b, made.GetMetadata().GetUid(), "")
	return made, nil
}

// addressFree refuses an address that another server than the asking one has.
func addressFree(snap *state.Snapshot, address, asking string) error {
	for one := range snap.Servers("") {
		if one.GetSpec().GetAddress() == address && one.GetMetadata().GetUid() != asking {
			return core.Refuse(codes.AlreadyExists, "server %s has the address %s: choose another with --api-addr, or remove that server with: cloudless server rm %s",
				one.GetMetadata().GetName(), address, one.GetMetadata().GetName())
		}
	}
	return nil
}

// outsideRanges refuses a server whose address is in the ranges of the nodes or services: a node whose
// subnet contained the address could not reach the server.
func outsideRanges(snap *state.Snapshot, hosts Hosts, address string) error {
	ranges := snap.Cluster().GetSpec()
	services4, services6 := spec.ServiceRanges(ranges)
	for setting, text := range map[string]string{
		"rangeV4": ranges.GetRangeV4(), "rangeV6": ranges.GetRangeV6(), "serviceRangeV4": services4.String(), "serviceRangeV6": services6.String(),
	} {
		all, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		if a, inside := hosts.In(all, address); inside {
			whose := "nodes"
			if strings.HasPrefix(setting, "service") {
				whose = "services"
			}
			return core.Refuse(codes.InvalidArgument, "the address %s of the new server is in %s, the range that the cluster's %s get their addresses from: "+
				"choose another with --api-addr or --advertise, or give the %s another range first with: cloudless cluster config set %s=RANGE", a, all, whose, whose, setting)
		}
	}
	return nil
}

func (s *Enrollment) newServer(snap *state.Snapshot, request *v1.EnrollRequest) *v1.Server {
	name := request.GetName()
	for i := 2; snap.ServerByName(name) != nil; i++ {
		name = fmt.Sprintf("%.58s-%d", request.GetName(), i)
	}
	requested := request.GetServer()
	return &v1.Server{
		ApiVersion: spec.APIVersion,
		Kind:       "Server",
		Metadata:   &v1.Metadata{Uid: state.NewUID(), Name: name, Labels: request.GetLabels()},
		Spec:       &v1.ServerSpec{Address: requested.GetAddress(), Zone: requested.GetZone(), Version: requested.GetVersion()},
	}
}

func (s *Enrollment) certifyServer(csr []byte, server *v1.Server) ([][]byte, error) {
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindServer, server.GetMetadata().GetUid())
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(csr, id, identity.IssueOptions{TTL: s.certificateTTL, Server: true, Client: true}, s.Now())
	if err != nil {
		return nil, core.Refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	return chain, nil
}
