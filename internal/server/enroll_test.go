package server

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

func TestJoinTokenIsRefusedAfterItsLastUse(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleNode, Uses: 2})
	names, v4, v6 := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for range 2 {
		m, err := c.enroll("machine", token)
		must(t, err)
		names[m.node.GetMetadata().GetName()] = true
		v4[m.node.GetSpec().GetSubnetV4()] = true
		v6[m.node.GetSpec().GetSubnetV6()] = true
	}
	if !names["machine"] || !names["machine-2"] || len(v4) != 2 || len(v6) != 2 {
		t.Errorf("two machines of one name have names %v and subnets %v %v", names, v4, v6)
	}
	_, err := c.enroll("machine", token)
	wantCode(t, err, codes.Unauthenticated, "used up", "cloudless token create --role node")
	if used := c.Store.Snapshot().TokenByName("join").GetStatus().GetUsed(); used != 2 {
		t.Errorf("the token counts %d uses", used)
	}
	one := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	_, err = c.enroll("machine", one)
	must(t, err)
	_, err = c.enroll("machine", one)
	wantCode(t, err, codes.Unauthenticated)
}

// A machine whose LAN is inside of the cluster's ranges could not reach some services or replicas. It is refused before
// the token is spent.
func TestMachineWithANetworkInTheClustersRangesIsRefused(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleNode})
	join := func(network, link string) error {
		_, csr, err := identity.NewKeyAndCSR()
		must(t, err)
		_, err = c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{
			Token: token, Csr: csr, Name: "machine",
			Networks: []*v1.UsedNetwork{{Range: "192.168.1.0/24", Interface: "eth0"}, {Range: network, Interface: link}},
		})
		return err
	}
	ranges := c.Store.Snapshot().Cluster().GetSpec()
	wantCode(t, join("10.128.7.0/24", "wlan0"), codes.FailedPrecondition, "interface wlan0 of this machine leads to 10.128.7.0/24, inside of 10.128.0.0/16, the range of the cluster's services",
		"cloudless cluster config set serviceRangeV4=RANGE")
	wantCode(t, join("10.70.0.0/16", "tun0"), codes.FailedPrecondition, "interface tun0 of this machine leads to 10.70.0.0/16, inside of 10.64.0.0/10, the range of the cluster's nodes", "rangeV4=RANGE")
	wantCode(t, join(ranges.GetServiceRangeV6(), "eth1"), codes.FailedPrecondition, "the range of the cluster's services", "serviceRangeV6=RANGE")
	wantCode(t, join(ranges.GetRangeV6(), "eth1"), codes.FailedPrecondition, "the range of the cluster's nodes", "rangeV6=RANGE")
	if used := c.Store.Snapshot().TokenByName("join").GetStatus().GetUsed(); used != 0 {
		t.Errorf("the token counts %d uses", used)
	}
	must(t, join("10.0.0.0/8", "vpn0")) // routes to smaller networks win
}

// The answer to a machine that joins may be lost. If the machine asks again with the same token and key, it is the same
// node, even under another name.
func TestEnrollmentIsRepeatable(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleNode, Uses: 2})
	key, _, err := identity.NewKeyAndCSR()
	must(t, err)
	ask := func(name string) (*v1.EnrollResponse, error) {
		csr, err := identity.NewCSR(key)
		must(t, err)
		return c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Csr: csr, Name: name})
	}
	lost, err := ask("machine")
	must(t, err)
	again, err := ask("renamed")
	must(t, err)
	uid := lost.GetNode().GetMetadata().GetUid()
	if got := again.GetNode().GetMetadata(); got.GetUid() != uid || got.GetName() != "machine" {
		t.Errorf("asked again it is node %v, was %v", got, lost.GetNode().GetMetadata())
	}
	snap := c.Store.Snapshot()
	if n, used := snap.Count(state.KindNode), snap.TokenByName("join").GetStatus().GetUsed(); n != 1 || used != 1 {
		t.Errorf("there are %d nodes after %d uses of the token", n, used)
	}
	creds, err := identity.NewCredentials(key, again.GetCertificates())
	must(t, err)
	_, err = c.dial(creds, "").WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)

	// After its removal it is a new node, if the token has uses left.
	_, err = c.as(core.RoleAdmin).DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "machine", Force: true})
	must(t, err)
	rejoined, err := ask("machine")
	must(t, err)
	if rejoined.GetNode().GetMetadata().GetUid() == uid {
		t.Error("a node that was removed came back")
	}
	_, err = ask("machine") // the token is used up, but the key is known
	must(t, err)
	_, err = c.enroll("machine", token) // used up, with another key
	wantCode(t, err, codes.Unauthenticated, "used up")
	_, err = c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "join"})
	must(t, err)
	_, err = ask("machine")
	wantCode(t, err, codes.Unauthenticated)
}

// The same for servers: one that asks again is the same server, at its new address, and uses the token only once.
func TestEnrollmentOfAServerIsRepeatable(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		var err error
		o.Sealer, err = identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
		must(t, err)
	})
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleServer, Uses: 1})
	key, _, err := identity.NewKeyAndCSR()
	must(t, err)
	ask := func(key crypto.Signer, name, address string) (*v1.EnrollResponse, error) {
		csr, err := identity.NewCSR(key)
		must(t, err)
		handover, err := identity.NewHandover() // a new one for each call
		must(t, err)
		return c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{
			Token: token, Csr: csr, Name: name, Server: &v1.EnrollServer{Address: address, SealTo: handover.PublicKey()},
		})
	}
	lost, err := ask(key, "second", "127.0.0.1:1001")
	must(t, err)
	again, err := ask(key, "renamed", "127.0.0.1:1001")
	must(t, err)
	uid := lost.GetServer().GetMetadata().GetUid()
	if got := again.GetServer().GetMetadata(); got.GetUid() != uid || got.GetName() != "second" {
		t.Errorf("asked again it is server %v, was %v", got, lost.GetServer().GetMetadata())
	}
	if len(again.GetSealedKey()) == 0 || len(again.GetSealedAuthority()) == 0 || len(again.GetCertificates()) == 0 {
		t.Errorf("asked again it is given %v", again)
	}
	_, err = ask(key, "second", "127.0.0.1:1002")
	must(t, err)
	snap := c.Store.Snapshot()
	if got := snap.Server(uid).GetSpec().GetAddress(); got != "127.0.0.1:1002" {
		t.Errorf("the server that moved before it came is at %s", got)
	}
	if n, used := snap.Count(state.KindServer), snap.TokenByName("join").GetStatus().GetUsed(); n != 1 || used != 1 {
		t.Errorf("there are %d servers after %d uses of the token", n, used)
	}
	other, _, err := identity.NewKeyAndCSR()
	must(t, err)
	_, err = ask(key, "second", "10.64.0.12:7700") // in the range of the nodes
	wantCode(t, err, codes.InvalidArgument, "10.64.0.12 of the new server is in 10.64.0.0/10", "--advertise", "config set rangeV4=RANGE")
	c.membership.Lookup = resolves("box.invalid", "10.64.0.13")
	_, err = ask(key, "second", "box.invalid:7700") // a name that resolves to such an address
	wantCode(t, err, codes.InvalidArgument, "10.64.0.13 of the new server is in 10.64.0.0/10")
	_, err = ask(other, "third", "127.0.0.1:1003") // used up, with another key
	wantCode(t, err, codes.Unauthenticated, "used up", "token create --role server")

	// After its removal the token is used up.
	c.change(func(_ *state.Snapshot, b *state.Batch) { b.Delete(state.KindServer, uid) })
	_, err = ask(key, "second", "127.0.0.1:1002")
	wantCode(t, err, codes.Unauthenticated, "used up")
}

func TestAllRefusedJoinTokensReadTheSame(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	revoked := c.newTokenSecret(&v1.CreateTokenRequest{Name: "revoked", Role: core.RoleNode})
	_, err := c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "revoked"})
	must(t, err)
	words := map[string]bool{}
	for _, token := range []string{
		revoked,
		c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Ttl: "1ms"}),
		other.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode}),
		identity.NewJoinToken(c.ca.Trust().Fingerprint()).Reveal(),
	} {
		_, err := c.enroll("machine", token)
		wantCode(t, err, codes.Unauthenticated)
		words[status.Convert(err).Message()] = true
	}
	if len(words) != 1 {
		t.Errorf("refusals tell tokens apart: %v", words)
	}
	_, err = c.enroll("machine", c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin}))
	wantCode(t, err, codes.Unauthenticated)
	if n := c.Store.Snapshot().Count(state.KindNode); n != 0 {
		t.Errorf("%d nodes joined with refused tokens", n)
	}
}

func TestConcurrentMachinesCannotOveruseAToken(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 10})
	var mu sync.Mutex
	var all sync.WaitGroup
	joined := 0
	for range 20 {
		all.Go(func() {
			_, err := c.enroll("machine", token)
			mu.Lock()
			defer mu.Unlock()
			switch status.Code(err) {
			case codes.OK:
				joined++
			case codes.Unauthenticated:
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	subnets := map[string]bool{}
	for n := range c.Store.Snapshot().Nodes("") {
		subnets[n.GetSpec().GetSubnetV4()] = true
	}
	if joined != 10 || len(subnets) != 10 || c.Store.Snapshot().NodeByName("machine-10") == nil {
		t.Errorf("%d machines joined with %d subnets, want 10", joined, len(subnets))
	}
}

func TestInvalidEnrollmentDoesNotUseTheToken(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleNode})
	_, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Name: "machine", Csr: []byte("not a request")})
	wantCode(t, err, codes.InvalidArgument, "certificate request")
	_, err = c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Name: "Not A Name", Csr: []byte("x")})
	wantCode(t, err, codes.InvalidArgument, "name")
	if used := c.Store.Snapshot().TokenByName("join").GetStatus().GetUsed(); used != 0 {
		t.Errorf("refused requests used the token %d times", used)
	}
}

func TestLongNamesGetASuffixThatFits(t *testing.T) {
	c := newCluster(t)
	long := strings.Repeat("a", 63)
	for i := range 3 {
		name := c.join(long).node.GetMetadata().GetName()
		if len(name) > 63 {
			t.Errorf("machine %d is called %q, which is too long", i, name)
		}
	}
}

func TestRenewalKeepsTheIdentity(t *testing.T) {
	c := newCluster(t)
	a, b := c.join("a"), c.join("b")
	key, csr, err := identity.NewKeyAndCSR()
	must(t, err)
	answer, err := a.Renew(c.ctx, &v1.RenewRequest{Csr: csr})
	must(t, err)
	renewed, err := identity.NewCredentials(key, answer.GetCertificates())
	must(t, err)
	if renewed.ID() != a.creds.ID() || renewed.ID() == b.creds.ID() {
		t.Errorf("the new certificate is for %s, want %s", renewed.ID(), a.creds.ID())
	}
	me, err := c.dial(renewed, "").WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if want := fmt.Sprintf("/node/%s", a.uid()); !strings.HasSuffix(me.GetId(), want) {
		t.Errorf("the renewed certificate authenticates %s, want %s", me.GetId(), want)
	}
}

// resolves is a resolver that knows one name.
func resolves(name, to string) func(context.Context, string, string) ([]netip.Addr, error) {
	return func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host != name {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr(to)}, nil
	}
}

// A caller without a valid token cannot make the server look up names.
func TestNoLookupForAnInvalidToken(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		var err error
		o.Sealer, err = identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
		must(t, err)
	})
	c.membership.Lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		t.Errorf("%s was looked up", host)
		return nil, nil
	}
	handover, err := identity.NewHandover()
	must(t, err)
	_, csr, err := identity.NewKeyAndCSR()
	must(t, err)
	_, err = c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{
		Token: identity.NewJoinToken(c.ca.Trust().Fingerprint()).Reveal(), Csr: csr, Name: "box",
		Server: &v1.EnrollServer{Address: "box.invalid:7700", SealTo: handover.PublicKey()},
	})
	wantCode(t, err, codes.Unauthenticated, "the join token is not valid")
}

// Only a confirmed leader refuses a token: another server may know a token that was just created.
func TestOnlyAConfirmedLeaderRefusesAToken(t *testing.T) {
	leader, follower := pair(t)
	votes(t, leader, follower)
	leader.router.Patience = time.Second
	must(t, follower.Consensus.Close())
	_, err := leader.enroll("n1", identity.NewJoinToken(leader.ca.Trust().Fingerprint()).Reveal())
	wantCode(t, err, codes.Unavailable)
}

// The server does not validate the message of a machine without a valid token.
func TestEnrollChecksTheTokenBeforeTheMessage(t *testing.T) {
	c := newCluster(t)
	unknown := c.newTokenSecret(&v1.CreateTokenRequest{Name: "gone", Role: core.RoleNode})
	_, err := c.as(core.RoleAdmin).DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"})
	must(t, err)
	for _, token := range []string{"", "nonsense", unknown} {
		_, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Name: "-", Labels: map[string]string{"-": "-"}})
		wantCode(t, err, codes.Unauthenticated)
	}
	known := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	_, err = c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: known, Name: "-"})
	wantCode(t, err, codes.InvalidArgument, "csr: is missing", "name: must be")
}

func TestLongEnrollMessageIsRefused(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	_, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: token, Name: "machine", Csr: make([]byte, 65<<10)})
	wantCode(t, err, codes.InvalidArgument, "65536 bytes")
}

// The machine of a server becomes a node without a token. A repeated call with the same key returns the same node. A
// server that is not a member cannot enroll a node.
func TestServerEnrollsTheNodeOfItsMachine(t *testing.T) {
	c := newCluster(t)
	member := state.NewUID()
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: member, Name: "second"}, Spec: &v1.ServerSpec{Address: "127.0.0.1:1001"}})
	})
	key, _, err := identity.NewKeyAndCSR()
	must(t, err)
	ask := func(as *user, name string) (*v1.EnrollResponse, error) {
		csr, err := identity.NewCSR(key)
		must(t, err)
		return as.EnrollOwnNode(c.ctx, &v1.EnrollOwnNodeRequest{Csr: csr, Name: name, Labels: map[string]string{"zone": "east"}})
	}
	second := c.dial(c.certificateOf(identity.KindServer, member), "")
	first, err := ask(second, "box")
	must(t, err)
	if m := first.GetNode().GetMetadata(); m.GetName() != "box" || m.GetLabels()["zone"] != "east" {
		t.Errorf("the node is %v", m)
	}
	again, err := ask(second, "renamed")
	must(t, err)
	if again.GetNode().GetMetadata().GetUid() != first.GetNode().GetMetadata().GetUid() || c.Store.Snapshot().Count(state.KindNode) != 1 {
		t.Errorf("the repeated call returned %v", again.GetNode().GetMetadata())
	}
	creds, err := identity.NewCredentials(key, again.GetCertificates())
	must(t, err)
	who, err := c.dial(creds, "").WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if who.GetRole() != core.RoleNode {
		t.Errorf("the enrolled machine has the role %s", who.GetRole())
	}

	// After the removal of the node, its machine becomes a new node with the same name.
	_, err = c.as(core.RoleAdmin).DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "box", Force: true})
	must(t, err)
	rejoined, err := ask(second, "box")
	must(t, err)
	if m := rejoined.GetNode().GetMetadata(); m.GetName() != "box" || m.GetUid() == first.GetNode().GetMetadata().GetUid() {
		t.Errorf("the new node is %v", m)
	}

	stranger := c.dial(c.certificateOf(identity.KindServer, state.NewUID()), "")
	_, err = ask(stranger, "intruder")
	wantCode(t, err, codes.PermissionDenied, "is not a member of this cluster")
	_, err = ask(c.as(core.RoleAdmin), "intruder")
	wantCode(t, err, codes.PermissionDenied)
}
