package app

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/peers"
)

// passport returns the credentials of a server, which authenticate it until its certificate expires, even after its
// removal.
func (s *testCluster) passport(o *testServer) peers.Config {
	s.t.Helper()
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(o.path, "server", "kek.json"))
	must.Succeed(s.t, err)
	ca, err := membership.OpenAuthority(filepath.Join(o.path, "server", "authority"), sealer)
	must.Succeed(s.t, err)
	id, err := identity.NewID(ca.Trust().Cluster(), identity.KindServer, s.uid(o.name))
	must.Succeed(s.t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(s.t, err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	must.Succeed(s.t, err)
	creds, err := identity.NewCredentials(key, chain)
	must.Succeed(s.t, err)
	return peers.Config{Trust: ca.Trust(), Certificate: creds.Certificate}
}

func (s *testCluster) uid(name string) string {
	s.t.Helper()
	uid := ""
	s.until(func(all map[string]*v1.ServerStatus) bool {
		uid = all[name].GetUid()
		return uid != ""
	})
	return uid
}

// speak opens a connection with one of the protocols between servers.
func (s *testCluster) speak(as peers.Config, to *testServer, protocol string) net.Conn {
	s.t.Helper()
	config := peers.TLS(as, "")
	config.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{Config: config}).DialContext(s.ctx, "tcp", to.address)
	must.Succeed(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// hungUp checks that the other side has closed a connection, or refused it.
func (s *testCluster) hungUp(conn net.Conn, what string) {
	s.t.Helper()
	deadline, _ := s.ctx.Deadline()
	must.Succeed(s.t, conn.SetReadDeadline(deadline))
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Errorf("%s stays open", what)
	}
}

func (s *testCluster) call(as peers.Config, to *testServer) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to.address, grpc.WithTransportCredentials(credentials.NewTLS(peers.TLS(as, ""))))
	must.Succeed(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func gossipKeyOf(ctx context.Context, conn *grpc.ClientConn) (*v1.GetGossipKeyResponse, error) {
	return v1.NewPeerServiceClient(conn).GetGossipKey(ctx, &v1.GetGossipKeyRequest{})
}

// TestRemovedServerIsCutOff: once the removal returns, no server accepts Raft, gossip or calls from the removed server.
// Its connections are closed, it cannot read streams that it relayed, and it does not get the new gossip key. A server
// that was only away gets the key, and finds the others from another address.
func TestRemovedServerIsCutOff(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	removed := s.join("s3")
	away := s.start("s4", t.TempDir(), freeAddress(t), s.token("server"))
	s.until(func(all map[string]*v1.ServerStatus) bool { return all["s4"].GetHealthy() })
	s.stop("s4")
	if s.leader() == "s3" {
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s1"})
		must.Succeed(t, err)
	}
	rest := []*testServer{s.running["s1"], s.running["s2"]}
	passport, staying := s.passport(removed), s.passport(rest[0])
	before, err := gossipKeyOf(s.ctx, s.call(passport, rest[0]))
	must.Succeed(t, err)

	conns := map[string]net.Conn{}
	for _, to := range rest {
		for _, protocol := range peers.Protocols() {
			conns[protocol+" with "+to.name] = s.speak(passport, to, protocol)
		}
	}
	watch, err := s.at(removed).Events().WatchEvents(s.ctx, &v1.WatchEventsRequest{})
	must.Succeed(t, err)
	_, err = watch.Header() // the watch has begun
	must.Succeed(t, err)

	_, err = s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s3"})
	must.Succeed(t, err)
	for _, to := range rest {
		if _, err := gossipKeyOf(s.ctx, s.call(passport, to)); err == nil {
			t.Errorf("server %s still answers the removed one", to.name)
		}
		for _, protocol := range peers.Protocols() {
			s.hungUp(s.speak(passport, to, protocol), "a new "+protocol+" with "+to.name)
		}
		after, err := gossipKeyOf(s.ctx, s.call(staying, to))
		must.Succeed(t, err)
		if after.GetVersion() <= before.GetVersion() || string(after.GetSealed()) == string(before.GetSealed()) {
			t.Errorf("server %s gossips with the key that the removed one knows", to.name)
		}
	}
	for what, conn := range conns {
		s.hungUp(conn, what)
	}
	must.Succeed(t, s.write(s.client, "secret"))
	for {
		event, err := watch.Recv()
		if err != nil {
			break
		}
		if event.GetSpec().GetObjectName() == "secret" {
			t.Error("the removed server has read what happened after its removal")
		}
	}
	s.removed("s3")

	address := freeAddress(t)
	s.start("s4", away.path, address, "")
	s.until(func(all map[string]*v1.ServerStatus) bool {
		return all["s4"].GetHealthy() && all["s4"].GetVoter() && all["s4"].GetAddress() == address
	})
	must.Succeed(t, s.write(s.at(s.running["s4"]), "back"))
}

// TestRemovedNodeIsCutOffAtEveryServer: once the removal returns, a node that is connected to a follower has lost its
// session and its image pull, and no server answers it any more.
func TestRemovedNodeIsCutOffAtEveryServer(t *testing.T) {
	t.Parallel()
	s := found(t)
	follower := s.join("s2")
	if s.leader() == "s2" {
		_, err := s.client.Servers().TransferLeader(s.ctx, &v1.TransferLeaderRequest{To: "s1"})
		must.Succeed(t, err)
	}
	creds, answer := s.enrollNode("worker")
	as := peers.Config{Trust: creds.Trust(), Certificate: creds.Certificate}
	session, err := v1.NewAgentServiceClient(s.call(as, follower)).Session(s.ctx)
	must.Succeed(t, err)
	must.Succeed(t, session.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: &v1.NodeStatus{
		Capacity: &v1.NodeResources{Cpu: "4", Memory: "8Gi"}, Drivers: []*v1.DriverInfo{{Name: "container"}},
	}}}}))
	_, err = session.Recv()
	must.Succeed(t, err)
	go func() { // a silent node gets no replica; ends with the session
		beat := &v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{Interval: "500ms"}}}
		for session.Send(beat) == nil {
			time.Sleep(500 * time.Millisecond)
		}
	}()
	pull := s.slowPull(creds, follower)

	_, err = s.client.Nodes().DeleteNode(s.ctx, &v1.DeleteNodeRequest{Name: answer.GetNode().GetMetadata().GetName(), Force: true})
	must.Succeed(t, err)
	for _, to := range s.running {
		_, err := v1.NewClusterServiceClient(s.call(as, to)).WhoAmI(s.ctx, &v1.WhoAmIRequest{})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("server %s answers the removed node with %v", to.name, err)
		}
		if _, removed := api.RemovedNode(err); !removed {
			t.Errorf("server %s does not tell the node that it was removed: %v", to.name, err)
		}
	}
	for err = nil; err == nil; {
		_, err = session.Recv()
	}
	if s.ctx.Err() != nil {
		t.Error("the session of the removed node goes on")
	}
	if _, err := io.Copy(io.Discard, pull); err == nil {
		t.Error("the removed node has pulled its image to the end")
	}
}

// TestRemovedNodeStopsBeforeItJoinsAgain: while the agent of the removed node still runs, joining again is refused.
func TestRemovedNodeStopsBeforeItJoinsAgain(t *testing.T) {
	t.Parallel()
	s := found(t)
	creds, answer := s.enrollNode("worker")
	f, err := datadir.Open(t.TempDir()) // as its agent does
	must.Succeed(t, err)
	defer f.Release()
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	must.Succeed(t, creds.Save(f.CredentialsPath()))
	again := func() error {
		return join(s.ctx, local.JoinOptions{
			Process: local.Process{DataDir: f.Path(), Log: io.Discard, Progress: quiet, Ready: quiet},
			Address: s.running["s1"].address, Token: s.token("node"),
		})
	}
	if _, ok := errors.AsType[*datadir.AlreadyRunningError](again()); !ok {
		t.Error("the node runs, and that is not said")
	}
	_, err = s.client.Nodes().DeleteNode(s.ctx, &v1.DeleteNodeRequest{Name: answer.GetNode().GetMetadata().GetName(), Force: true})
	must.Succeed(t, err)
	if err := again(); err == nil || !strings.Contains(err.Error(), "it was removed from the cluster: stop it first") {
		t.Errorf("joined: %v", err)
	}
}

// TestUnreachableServerLearnsOfItsRemoval: the server has joined but never received the state, because the others have a
// wrong address for it. It exits with the same error as every removed server.
func TestUnreachableServerLearnsOfItsRemoval(t *testing.T) {
	t.Parallel()
	s := found(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	token := s.token("server")
	go func() {
		ended <- join(ctx, local.JoinOptions{
			Process: local.Process{DataDir: t.TempDir(), Version: "test", Log: testLog(t), Progress: quiet, Ready: quiet},
			Address: s.running["s1"].address, Token: token, Role: "server", NoNode: true,
			Reach: local.Reach{APIAddr: freeAddress(t), Advertise: freeAddress(t), Name: "s2"},
		})
	}()
	s.uid("s2")
	_, err := s.client.Servers().DeleteServer(s.ctx, &v1.DeleteServerRequest{Name: "s2"})
	must.Succeed(t, err)
	select {
	case err := <-ended:
		if !errors.Is(err, membership.ErrRemoved) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on")
		cancel()
		<-ended
	}
}

// enrollNode makes a machine a node, as its agent would.
func (s *testCluster) enrollNode(name string) (*identity.Credentials, *v1.EnrollResponse) {
	s.t.Helper()
	secret := s.token("node")
	token, err := identity.ParseJoinToken(secret)
	must.Succeed(s.t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(s.t, err)
	conn, err := grpc.NewClient("passthrough:///"+s.running["s1"].address, grpc.WithTransportCredentials(credentials.NewTLS(identity.JoinTLS(token.CA()))))
	must.Succeed(s.t, err)
	defer conn.Close()
	answer, err := v1.NewEnrollmentServiceClient(conn).Enroll(s.ctx, &v1.EnrollRequest{Token: secret, Csr: csr, Name: name})
	must.Succeed(s.t, err)
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	must.Succeed(s.t, err)
	return creds, answer
}

// slowPull pushes a large image and lets a node pull its layer from a server, but reads only the beginning.
func (s *testCluster) slowPull(creds *identity.Credentials, from *testServer) io.Reader {
	s.t.Helper()
	// More than sockets buffer, and without compression.
	layer := static.NewLayer(make([]byte, 64<<20), types.OCIUncompressedLayer)
	pushed, err := mutate.AppendLayers(empty.Image, layer)
	must.Succeed(s.t, err)
	name, err := image.ParseName("large:1")
	must.Succeed(s.t, err)
	_, err = image.Push(s.ctx, pushed, name, image.PushOptions{Transport: s.client.HTTPTransport()})
	must.Succeed(s.t, err)
	// A node pulls only what it runs.
	_, err = s.client.Workloads().CreateWorkload(s.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "large"}, Spec: &v1.WorkloadSpec{Image: "large:1", Network: "none", Replicas: proto.Int32(1)},
	}})
	must.Succeed(s.t, err)
	digest, err := layer.Digest()
	must.Succeed(s.t, err)
	config := identity.ClientTLS(creds.Trust(), creds.Certificate)
	config.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", from.address)
	}}
	s.t.Cleanup(transport.CloseIdleConnections)
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "https://"+from.address+"/v2/large/blobs/"+digest.String(), nil)
	must.Succeed(s.t, err)
	var body io.ReadCloser
	for body == nil { // the replica may not be placed yet, and the image not be copied to this server
		response, err := (&http.Client{Transport: transport}).Do(request)
		must.Succeed(s.t, err)
		if response.StatusCode == http.StatusOK {
			body = response.Body
			break
		}
		_ = response.Body.Close()
		if s.ctx.Err() != nil {
			s.t.Fatalf("the image is not to be had: %s", response.Status)
		}
	}
	s.t.Cleanup(func() { _ = body.Close() })
	_, err = io.ReadFull(body, make([]byte, 1<<10))
	must.Succeed(s.t, err)
	return body
}

// TestConfigurationSetsTheNumberOfVoters, at once and without a restart.
func TestConfigurationSetsTheNumberOfVoters(t *testing.T) {
	t.Parallel()
	s := found(t)
	s.join("s2")
	s.join("s3")
	for _, want := range []int32{1, 3} {
		current, err := s.client.Cluster().GetConfiguration(s.ctx, &v1.GetConfigurationRequest{})
		must.Succeed(t, err)
		current.Spec.Cluster.DesiredVoters = &want
		_, err = s.client.Cluster().SetConfiguration(s.ctx, &v1.SetConfigurationRequest{Configuration: current})
		must.Succeed(t, err)
		s.until(func(all map[string]*v1.ServerStatus) bool {
			voters := int32(0)
			for _, one := range all {
				if one.GetVoter() {
					voters++
				}
			}
			return len(all) == 3 && voters == want
		})
	}
}
