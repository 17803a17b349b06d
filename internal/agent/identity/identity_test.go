package identity_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	agent "github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/identity"
)

const cluster = "home"

// server issues identities as the servers of a cluster do, in the place of a connection to one.
type server struct {
	t        *testing.T
	mu       sync.Mutex
	cas      []*identity.CA // the one that signs first
	keys     map[string]*ecdsa.PrivateKey
	signs    string
	away     bool
	names    map[string]string // workloads by the uids of their replicas
	ttl      time.Duration
	requests int
}

func newServer(t *testing.T, ttl time.Duration, names map[string]string) *server {
	s := &server{t: t, keys: map[string]*ecdsa.PrivateKey{}, names: names, ttl: ttl}
	s.rotateCA()
	s.rotateKey("one")
	return s
}

// rotateCA makes another authority that signs from now on, and is trusted beside the earlier ones.
func (s *server) rotateCA() {
	ca, err := identity.NewCA(cluster, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cas = append([]*identity.CA{ca}, s.cas...)
}

func (s *server) rotateKey(id string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[id], s.signs = key, id
}

func (s *server) leave(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *server) bundle() (der [][]byte) {
	for _, ca := range s.cas {
		der = append(der, ca.Trust().DER())
	}
	return der
}

// idOf is the identity of a replica. The caller holds s.mu.
func (s *server) idOf(uid string) (identity.ID, error) {
	s.requests++
	if s.away {
		return identity.ID{}, status.Error(codes.Unavailable, "no server can be reached")
	}
	if s.names[uid] == "" {
		return identity.ID{}, status.Error(codes.PermissionDenied, "replica is not assigned to this node")
	}
	return identity.NewID(cluster, identity.KindWorkload, "default", s.names[uid])
}

func (s *server) IssueX509(_ context.Context, request *v1.IssueX509Request, _ ...grpc.CallOption) (*v1.IssueX509Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.idOf(request.GetReplicaUid())
	if err != nil {
		return nil, err
	}
	chain, err := s.cas[0].Issue(request.GetCsr(), id, identity.IssueOptions{TTL: s.ttl, Server: true, Client: true}, time.Now())
	return &v1.IssueX509Response{Certificates: chain, Bundle: s.bundle()}, err
}

func (s *server) IssueJwt(_ context.Context, request *v1.IssueJwtRequest, _ ...grpc.CallOption) (*v1.IssueJwtResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.idOf(request.GetReplicaUid())
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.keys[s.signs], KeyID: s.signs}}, nil)
	if err != nil {
		return nil, err
	}
	expires := time.Now().Add(s.ttl)
	token, err := jwt.Signed(signer).Claims(jwt.Claims{Subject: id.String(), Audience: request.GetAudience(), Expiry: jwt.NewNumericDate(expires)}).Serialize()
	return &v1.IssueJwtResponse{Token: token, ExpireTime: timestamppb.New(expires)}, err
}

func (s *server) GetWorkloadKeys(context.Context, *v1.GetWorkloadKeysRequest, ...grpc.CallOption) (*v1.GetWorkloadKeysResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, status.Error(codes.Unavailable, "no server can be reached")
	}
	var set jose.JSONWebKeySet
	for id, key := range s.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"})
	}
	data, err := json.Marshal(set)
	return &v1.GetWorkloadKeysResponse{Jwks: data}, err
}

// node is the agent's side: the sockets of replicas.
type node struct {
	*agent.Service
	t   *testing.T
	ttl time.Duration
	end func()
}

func startNode(t *testing.T, dir string, s *server) *node {
	n := &node{t: t, ttl: s.ttl, Service: agent.New(agent.Options{
		Dir: dir, Client: s, Cluster: cluster, Authorities: s.bundle()[:1], Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx)
	}()
	n.end = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(n.end)
	return n
}

// shortDir is a folder whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "spiffe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// open opens the socket of a replica and returns its address as programs see it.
func (n *node) open(uid, name string) workloadapi.ClientOption {
	n.t.Helper()
	dir, err := n.Open(agent.Subject{UID: uid, Namespace: "default", Workload: name, TTL: n.ttl})
	if err != nil {
		n.t.Fatal(err)
	}
	return workloadapi.WithAddr("unix://" + filepath.Join(dir, "workload.sock"))
}

func (n *node) source(socket workloadapi.ClientOption) *workloadapi.X509Source {
	n.t.Helper()
	source, err := workloadapi.NewX509Source(n.t.Context(), workloadapi.WithClientOptions(socket))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = source.Close() })
	return source
}

// serialOf is the number of the certificate that a program has now.
func serialOf(t *testing.T, source *workloadapi.X509Source) string {
	t.Helper()
	have, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	return have.Certificates[0].SerialNumber.String()
}

func idOf(t *testing.T, name string) spiffeid.ID {
	t.Helper()
	return spiffeid.RequireFromString("spiffe://" + cluster + "/workload/default/" + name)
}

// greet makes one TLS connection between two workloads, of which each accepts only the id that it expects.
func greet(t *testing.T, server, client *workloadapi.X509Source, clientID, serverID spiffeid.ID) error {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", tlsconfig.MTLSServerConfig(server, server, tlsconfig.AuthorizeID(clientID)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
		served <- err
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), tlsconfig.MTLSClientConfig(client, client, tlsconfig.AuthorizeID(serverID)))
	if err == nil {
		_, err = io.ReadAll(conn)
		_ = conn.Close()
	} else {
		_ = listener.Close()
	}
	return errors.Join(err, <-served)
}

// Two workloads speak mutual TLS with the certificates from their sockets. A third is refused by its id.
func TestWorkloadsSpeakMutualTLS(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front", "u2": "back", "u3": "other"})
	n := startNode(t, shortDir(t), s)
	front, back, other := n.source(n.open("u1", "front")), n.source(n.open("u2", "back")), n.source(n.open("u3", "other"))
	if err := greet(t, back, front, idOf(t, "front"), idOf(t, "back")); err != nil {
		t.Errorf("front and back: %v", err)
	}
	if err := greet(t, back, other, idOf(t, "front"), idOf(t, "back")); err == nil || !strings.Contains(err.Error(), "unexpected ID") {
		t.Errorf("back accepted a workload with another id: %v", err)
	}
	if err := greet(t, other, front, idOf(t, "front"), idOf(t, "back")); err == nil {
		t.Error("front accepted a server with another id")
	}
}

// Certificates are replaced after half of their life, and the source of a program hears of it on its open stream.
func TestCertificateIsReplacedAfterHalfOfItsLife(t *testing.T) {
	s := newServer(t, 2*time.Second, map[string]string{"u1": "front"})
	n := startNode(t, shortDir(t), s)
	source := n.source(n.open("u1", "front"))
	first, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	for serialOf(t, source) == first.Certificates[0].SerialNumber.String() {
		<-source.Updated()
	}
	next, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	if first.PrivateKey.Public().(*ecdsa.PublicKey).Equal(next.PrivateKey.Public()) {
		t.Error("the next certificate has the same key")
	}
	if len(next.Certificates) != 1 {
		t.Errorf("the chain has %d certificates: the authority belongs to the bundle", len(next.Certificates))
	}
}

// updates are what the socket sends to a program on its open stream.
type updates chan *workloadapi.X509Context

func (u updates) OnX509ContextUpdate(c *workloadapi.X509Context) { u <- c }
func (updates) OnX509ContextWatchError(error)                    {}

// watch opens a stream for a program.
func (n *node) watch(socket workloadapi.ClientOption) updates {
	u := make(updates, 100)
	var watching sync.WaitGroup
	watching.Go(func() { _ = workloadapi.WatchX509Context(n.t.Context(), u, socket) })
	n.t.Cleanup(watching.Wait)
	return u
}

// until reads updates until one has a certificate of this authority, and trusts as many authorities.
func (u updates) until(t *testing.T, signer *identity.CA, trusted int) *x509bundle.Bundle {
	t.Helper()
	root, err := x509.ParseCertificate(signer.Trust().DER())
	if err != nil {
		t.Fatal(err)
	}
	for {
		now := <-u
		bundle, ok := now.Bundles.Get(spiffeid.RequireTrustDomainFromString(cluster))
		if ok && now.DefaultSVID().Certificates[0].CheckSignatureFrom(root) == nil && len(bundle.X509Authorities()) == trusted {
			return bundle
		}
	}
}

// When the authority rotates, programs trust both, and get certificates of the new one at once. When the old one is
// dropped, so is the trust in it.
func TestRotationOfTheAuthorityReachesPrograms(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front", "u2": "back"})
	n := startNode(t, shortDir(t), s)
	socket := n.open("u1", "front")
	told := n.watch(socket)
	told.until(t, s.cas[0], 1)
	s.rotateCA()
	n.SetAuthorities(s.bundle())
	told.until(t, s.cas[0], 2)
	front, back := n.source(socket), n.source(n.open("u2", "back"))
	if err := greet(t, back, front, idOf(t, "front"), idOf(t, "back")); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	n.SetAuthorities(s.bundle()[:1])
	left := told.until(t, s.cas[0], 1)
	if !bytes.Equal(left.X509Authorities()[0].Raw, s.cas[0].Trust().DER()) {
		t.Error("front trusts the authority that was dropped")
	}
}

// One workload verifies the token of another, by the keys that it gets or by asking. A token for others is refused.
func TestTokensAreVerified(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front", "u2": "back"})
	n := startNode(t, shortDir(t), s)
	front, err := workloadapi.New(t.Context(), n.open("u1", "front"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = front.Close() }()
	backSocket := n.open("u2", "back")
	keys, err := workloadapi.NewJWTSource(t.Context(), workloadapi.WithClientOptions(backSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = keys.Close() }()
	back, err := workloadapi.New(t.Context(), backSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = back.Close() }()

	token, err := front.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "back"})
	if err != nil {
		t.Fatal(err)
	}
	verified, err := jwtsvid.ParseAndValidate(token.Marshal(), keys, []string{"back"})
	if err != nil || verified.ID != idOf(t, "front") {
		t.Errorf("back verified the token itself as %v: %v", verified, err)
	}
	if asked, err := back.ValidateJWTSVID(t.Context(), token.Marshal(), "back"); err != nil || asked.ID != idOf(t, "front") {
		t.Errorf("the socket verified the token as %v: %v", asked, err)
	}
	if _, err := back.ValidateJWTSVID(t.Context(), token.Marshal(), "other"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a token for back was accepted by another: %v", err)
	}
	forged := token.Marshal()[:len(token.Marshal())-4] + "AAAA"
	if _, err := back.ValidateJWTSVID(t.Context(), forged, "back"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a forged token was accepted: %v", err)
	}
	// A token of a key that the node does not know yet: it asks for newer ones.
	s.rotateKey("two")
	fresh, err := front.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := back.ValidateJWTSVID(t.Context(), fresh.Marshal(), "elsewhere"); err != nil {
		t.Errorf("a token of a new key: %v", err)
	}
}

// Without servers, programs keep what they have, also in new calls. What the node does not have is explained.
func TestIdentityWithoutServers(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front"})
	n := startNode(t, shortDir(t), s)
	socket := n.open("u1", "front")
	client, err := workloadapi.New(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.FetchX509SVID(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "back"}); err != nil {
		t.Fatal(err)
	}
	s.leave(true)
	if _, err := client.FetchX509SVID(t.Context()); err != nil {
		t.Errorf("the certificate in memory: %v", err)
	}
	if _, err := client.FetchX509Bundles(t.Context()); err != nil {
		t.Errorf("the authorities: %v", err)
	}
	if _, err := client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "back"}); err != nil {
		t.Errorf("the token in memory: %v", err)
	}
	_, err = client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "another"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no server can be reached") {
		t.Errorf("a new token: %v", err)
	}
}

// A replica that the servers give no identity learns why at once.
func TestRefusalReachesTheProgram(t *testing.T) {
	n := startNode(t, shortDir(t), newServer(t, time.Hour, nil))
	client, err := workloadapi.New(t.Context(), n.open("u9", "front"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.FetchX509SVID(t.Context()); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not assigned to this node") {
		t.Errorf("got %v", err)
	}
}

// After a restart of the agent the sockets are there again, in the same folder that containers have mounted, and programs
// get new certificates without doing anything. Folders of replicas that are gone are removed.
func TestSocketsComeBackAfterRestart(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front", "u2": "back"})
	dir := shortDir(t)
	n := startNode(t, dir, s)
	front := n.source(n.open("u1", "front"))
	first := serialOf(t, front)
	n.open("u2", "back")
	before, err := os.Stat(filepath.Join(dir, "u1"))
	if err != nil {
		t.Fatal(err)
	}
	n.end()
	again := startNode(t, dir, s)
	if err := again.Retain(func(uid string) bool { return uid == "u1" }); err != nil {
		t.Fatal(err)
	}
	again.open("u1", "front")
	for serialOf(t, front) == first {
		<-front.Updated() // the source has reconnected
	}
	after, err := os.Stat(filepath.Join(dir, "u1"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the folder was replaced, so the container sees the old one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "u2")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a replica that is gone is there still: %v", err)
	}
	if err := again.Close("u1"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A call without the header of the Workload API is refused, and so are calls of a replica that calls too often. Others do
// not notice.
func TestCallsAreLimited(t *testing.T) {
	s := newServer(t, time.Hour, map[string]string{"u1": "front", "u2": "back"})
	n := startNode(t, shortDir(t), s)
	n.open("u1", "front")
	n.open("u2", "back")
	dial := func(uid string) workload.SpiffeWorkloadAPIClient {
		conn, err := grpc.NewClient("passthrough:///"+uid, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, uid string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.Dir, uid, "workload.sock"))
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return workload.NewSpiffeWorkloadAPIClient(conn)
	}
	request := &workload.JWTSVIDRequest{Audience: []string{"back"}}
	if _, err := dial("u1").FetchJWTSVID(t.Context(), request); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a call without the header: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "workload.spiffe.io", "true")
	client := dial("u1")
	refused := false
	for range 2000 {
		if _, err := client.FetchJWTSVID(ctx, request); status.Code(err) == codes.ResourceExhausted {
			refused = true
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !refused {
		t.Error("2000 calls at once were answered")
	}
	if _, err := dial("u2").FetchJWTSVID(ctx, request); err != nil {
		t.Errorf("another replica: %v", err)
	}
	if s.requests > 2 {
		t.Errorf("servers were asked %d times for the same two tokens", s.requests)
	}
}
