package enroll

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/peering"
)

// forgetfulServer certifies every machine, but loses the first of its answers.
type forgetfulServer struct {
	v1.UnimplementedEnrollmentServiceServer
	ca *identity.CA
	// lost is what the first callers are told instead.
	lost []error
	// cut is called with the last of them, if it is there.
	cut func()
	// sealer seals what servers are given.
	sealer *identity.Sealer
	// keys are those of the requests so far.
	keys []string
	// expels is whether it knows no member.
	expels bool
}

func (s *forgetfulServer) Enroll(_ context.Context, request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	key, err := identity.RequestFingerprint(request.GetCsr())
	if err != nil {
		return nil, err
	}
	s.keys = append(s.keys, key)
	if len(s.keys) <= len(s.lost) {
		if len(s.keys) == len(s.lost) && s.cut != nil {
			s.cut()
		}
		return nil, s.lost[len(s.keys)-1]
	}
	if request.GetServer() != nil {
		return s.enrollServer(request)
	}
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindNode, "n-1")
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(request.GetCsr(), id, identity.IssueOptions{TTL: time.Hour, Client: true}, time.Now())
	return &v1.EnrollResponse{Node: &v1.Node{Metadata: &v1.Metadata{Uid: "n-1", Name: request.GetName()}}, Certificates: chain}, err
}

func (s *forgetfulServer) enrollServer(request *v1.EnrollRequest) (*v1.EnrollResponse, error) {
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindServer, "s-2")
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(request.GetCsr(), id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	if err != nil {
		return nil, err
	}
	handed, err := s.sealer.HandOver(request.GetServer().GetSealTo(), s.ca.Trust().Cluster())
	return &v1.EnrollResponse{
		Server: &v1.Server{Metadata: &v1.Metadata{Uid: "s-2", Name: request.GetName()}}, Certificates: chain,
		SealedKey: handed, SealedAuthority: []byte("sealed"), Servers: []string{"127.0.0.1:1"},
	}, err
}

// listen serves with a certificate of the CA and returns the address.
func (s *forgetfulServer) listen(t *testing.T) string {
	t.Helper()
	id, err := identity.NewID(s.ca.Trust().Cluster(), identity.KindServer, "s-1")
	must.Succeed(t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(t, err)
	chain, err := s.ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true}, time.Now())
	must.Succeed(t, err)
	creds, err := identity.NewCredentials(key, chain)
	must.Succeed(t, err)
	config := identity.ServerTLS(s.ca.Trust(), creds.Certificate)
	config.NextProtos = []string{"h2"}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	v1.RegisterEnrollmentServiceServer(server, s)
	if s.expels {
		v1.RegisterClusterServiceServer(server, memberlessServer{})
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must.Succeed(t, <-done)
	})
	return listener.Addr().String()
}

// memberlessServer is a server that knows no member.
type memberlessServer struct {
	v1.UnimplementedClusterServiceServer
}

func (memberlessServer) WhoAmI(context.Context, *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	return nil, status.Error(codes.Unauthenticated, "not a member of this cluster any more")
}

// A removed node learns of its removal from any server that answers, and becomes a new node.
func TestNodeHearsOfItsRemovalFromAnyServer(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	server := &forgetfulServer{ca: ca, expels: true}
	address := server.listen(t)
	f, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	memberSince(t, f, ca, time.Now())
	must.Succeed(t, f.WriteMembership(datadir.Membership{Servers: []string{"127.0.0.1:1", address}, Node: "n0"}))
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	must.Succeed(t, err)
	for _, first := range []string{"", "127.0.0.1:1"} {
		if !expelled(t.Context(), serversToAsk(f, first), creds) {
			t.Errorf("with %q as the first server, the node does not notice that it was removed", first)
		}
	}
}

// answersLost are the errors after which a cluster may have enrolled the machine.
func answersLost() []error {
	return []error{status.Error(codes.Unavailable, "the connection was cut"), status.Error(codes.Unknown, "leadership lost while committing log")}
}

// A machine whose answer was lost retries at once with the same request.
func TestMachineRetriesAtOnce(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	server := &forgetfulServer{ca: ca, lost: answersLost()}
	address := server.listen(t)
	f, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, joinAt(t.Context(), f, NodeOptions{Token: identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal(), Request: datadir.NodeRequest{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}, address))
	if len(server.keys) != 3 || server.keys[0] != server.keys[1] || server.keys[0] != server.keys[2] {
		t.Errorf("it asked with the keys %v", server.keys)
	}
}

// A machine that was interrupted before an answer keeps the key and the folder. Joining again repeats the request.
func TestMachineRetriesWithTheSameKey(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	interrupted, interrupt := context.WithCancel(t.Context())
	server := &forgetfulServer{ca: ca, lost: answersLost(), cut: interrupt}
	address := server.listen(t)
	token := identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal()
	path := filepath.Join(t.TempDir(), "data")
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	err = joinAt(interrupted, f, NodeOptions{Token: token, Request: datadir.NodeRequest{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}, address)
	if err == nil || !strings.Contains(err.Error(), "join again with the same token and data folder") {
		t.Fatalf("the lost answer ended with %v", err)
	}
	f.RemoveIfNew()
	f.Release()
	if got := must.List(t, filepath.Join(path, "agent")); got != "joining.pem" {
		t.Errorf("the machine keeps %q", got)
	}

	f, err = datadir.Open(path)
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, joinAt(t.Context(), f, NodeOptions{Token: token, Request: datadir.NodeRequest{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}, address))
	if len(server.keys) != 3 || server.keys[0] != server.keys[2] {
		t.Errorf("it asked with the keys %v", server.keys)
	}
	if _, err := identity.LoadCredentials(f.CredentialsPath()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.JoiningKeyPath()); !os.IsNotExist(err) {
		t.Errorf("the key of a machine that has joined is still apart: %v", err)
	}
}

// So does a server whose answer was lost. A refused join leaves nothing behind.
func TestServerRetriesWithTheSameKey(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	must.Succeed(t, err)
	interrupted, interrupt := context.WithCancel(t.Context())
	server := &forgetfulServer{ca: ca, sealer: sealer, lost: answersLost(), cut: interrupt}
	token := identity.NewJoinToken(ca.Trust().Fingerprint())
	o := ServerOptions{Address: server.listen(t), Token: token.Reveal(), Name: "s2"}
	path := filepath.Join(t.TempDir(), "data")
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	err = becomeServer(interrupted, f, o, token, "127.0.0.1:2")
	if err == nil || !strings.Contains(err.Error(), "join again with the same token and data folder") {
		t.Fatalf("the lost answer ended with %v", err)
	}
	f.RemoveIfNew()
	f.Release()
	if got := must.List(t, filepath.Join(path, "server")); got != "joining.pem" {
		t.Errorf("the machine keeps %q", got)
	}

	f, err = datadir.Open(path)
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, becomeServer(t.Context(), f, o, token, "127.0.0.1:2"))
	if len(server.keys) != 3 || server.keys[0] != server.keys[2] {
		t.Errorf("it asked with the keys %v", server.keys)
	}
	if f.ServerUID != "s-2" || f.Founds() {
		t.Errorf("the folder is that of %+v", f.Record)
	}
	if _, err := os.Stat(f.JoiningServerPath()); !os.IsNotExist(err) {
		t.Errorf("the key of a server that has joined is still there: %v", err)
	}
}

// A machine that reaches no server keeps nothing.
func TestMachineThatReachesNoServerKeepsNothing(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	path := filepath.Join(t.TempDir(), "data")
	f, err := datadir.Open(path)
	must.Succeed(t, err)
	defer f.Release()
	err = joinAt(t.Context(), f, NodeOptions{Token: identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal(), Request: datadir.NodeRequest{Name: "n1"}, Logger: slog.New(slog.DiscardHandler)}, "127.0.0.1:1")
	if err == nil || strings.Contains(err.Error(), "join again with the same") {
		t.Errorf("ended with %v", err)
	}
	f.RemoveIfNew()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the data folder is still there: %v", err)
	}
}

// memberSince makes the folder that of a node with a certificate of one hour, issued at the given time.
func memberSince(t *testing.T, f *datadir.Folder, ca *identity.CA, issued time.Time) {
	t.Helper()
	id, err := identity.NewID(ca.Trust().Cluster(), identity.KindNode, "n-0")
	must.Succeed(t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(t, err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Client: true}, issued)
	must.Succeed(t, err)
	creds, err := identity.NewCredentials(key, chain)
	must.Succeed(t, err)
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	must.Succeed(t, creds.Save(f.CredentialsPath()))
	must.Succeed(t, f.WriteMembership(datadir.Membership{Servers: []string{"127.0.0.1:1"}, Node: "n0"}))
}

// A node returns after its certificate has expired: its agent reports that and keeps replicas running. With a new token
// it joins again with the same folder.
func TestNodeWithAnExpiredCertificateJoinsAgain(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	server := &forgetfulServer{ca: ca, keys: []string{"an answer that was lost"}}
	address := server.listen(t)
	f, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	memberSince(t, f, ca, time.Now().Add(-7*24*time.Hour))

	var log strings.Builder
	must.Succeed(t, WarnExpired(f, slog.New(slog.NewTextHandler(&log, nil))))
	if said := log.String(); !strings.Contains(said, "the certificate of this node has ended") || !strings.Contains(said, "cloudless join ADDRESS with a new token") {
		t.Errorf("the agent says %q", said)
	}

	o := NodeOptions{
		Address: address, Token: identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal(),
		Progress: func(string) {}, Logger: slog.New(slog.DiscardHandler),
	}
	enrolls, err := Node(t.Context(), f, o)
	must.Succeed(t, err)
	must.Succeed(t, enrolls())
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	must.Succeed(t, err)
	if creds.ID().Name() != "n-1" || time.Now().After(creds.NotAfter()) {
		t.Errorf("it is %s until %s", creds.ID(), creds.NotAfter())
	}

	// Now that it is a node, joining again leaves the token unused, even if no server answers.
	o.Address = "127.0.0.1:1"
	asked := len(server.keys)
	enrolls, err = Node(t.Context(), f, o)
	must.Succeed(t, err)
	if enrolls != nil || len(server.keys) != asked {
		t.Error("it joined once more")
	}
	log.Reset()
	must.Succeed(t, WarnExpired(f, slog.New(slog.NewTextHandler(&log, nil))))
	if log.Len() > 0 {
		t.Errorf("a valid certificate is called %q", log.String())
	}
}

// A node returns after all servers that it knows are gone. Joining at a current server lets it find the cluster as the
// same node. An address without a server of its cluster changes nothing.
func TestNodeFindsNewerServers(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	server := &forgetfulServer{ca: ca}
	address := server.listen(t)
	f, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	must.Succeed(t, err)
	defer f.Release()
	memberSince(t, f, ca, time.Now())
	o := NodeOptions{Token: identity.NewJoinToken(ca.Trust().Fingerprint()).Reveal(), Logger: slog.New(slog.DiscardHandler)}
	for _, o.Address = range []string{address, "127.0.0.1:1", ""} {
		enrolls, err := Node(t.Context(), f, o)
		must.Succeed(t, err)
		if enrolls != nil {
			t.Error("it joins once more")
		}
		about, err := f.ReadMembership()
		must.Succeed(t, err)
		if all := peering.NewServerList(about, nil).Addresses(); !slices.Equal(all, []string{"127.0.0.1:1", address}) {
			t.Errorf("after joining at %q it looks for servers at %v", o.Address, all)
		}
	}
}

// TestServerListensTowardsTheJoinedServer, unless a flag names the address. test/e2e tests it between machines.
func TestServerListensTowardsTheJoinedServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, other, want string }{
		{"", "127.0.0.1:4711", "127.0.0.1:7700"},
		{"192.0.2.7:1", "127.0.0.1:4711", "192.0.2.7:1"},
	} {
		if e, err := listenTowards(t.Context(), c.other, datadir.Endpoint{Listen: c.given}, "7700"); err != nil || e.Listen != c.want {
			t.Errorf("towards %s with %q it listens on %s (%v), want %s", c.other, c.given, e.Listen, err, c.want)
		}
	}
	if _, err := listenTowards(t.Context(), "nobody.invalid:7700", datadir.Endpoint{}, "7700"); err == nil || !strings.Contains(err.Error(), "name it with --api-addr") {
		t.Errorf("towards nobody: %v", err)
	}
}

func TestNameIsNormalized(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"web":                                    "web",
		"Bob's Laptop":                           "bob-s-laptop",
		"host.example.com":                       "host-example-com",
		"---":                                    "node",
		"ümlaut":                                 "mlaut",
		strings.Repeat("a", 62) + ".example.com": strings.Repeat("a", 62),
		strings.Repeat("a", 100):                 strings.Repeat("a", 63),
	} {
		if got := Name(from); got != want {
			t.Errorf("Name(%q) = %q, want %q", from, got, want)
		}
	}
	if Name("") == "" {
		t.Error("a machine that asks for no name has none")
	}
}
