package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/nodes"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// pair returns a leader and a follower without a vote, so that the leader never changes.
func pair(t *testing.T, change ...func(*Options)) (leader, follower *cluster) {
	t.Helper()
	book := &addressBook{all: map[string]string{}}
	dir := t.TempDir()
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(dir, "kek.json"))
	must(t, err)
	leader = newMember(t, book, sealer, nil, "s-1", change...)
	follower = newMember(t, book, sealer, leader.ca, "s-2", change...)
	_, err = leader.Propose(leader.ctx, func(_ *state.Snapshot, b *state.Batch) error {
		for _, one := range []*cluster{leader, follower} {
			b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: one.UID, Name: one.UID}, Spec: &v1.ServerSpec{Address: one.Address()}})
		}
		return nil
	})
	must(t, err)
	must(t, leader.Consensus.Add(leader.ctx, consensus.Server{ID: "s-2", Address: follower.Address()}))
	must(t, follower.Consensus.WaitLeader(follower.ctx))
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	return leader, follower
}

// votes gives a follower a vote, so that it can lead.
func votes(t *testing.T, leader, follower *cluster) {
	t.Helper()
	ctx, cancel := context.WithCancel(leader.ctx)
	defer cancel()
	_ = leader.Consensus.Pilot(ctx, consensus.PilotOptions{
		Voters: func() int { return 3 },
		Members: func() (all []consensus.Member) {
			if all := leader.Consensus.Servers(); len(all) == 2 && all[0].Voter && all[1].Voter {
				cancel() // there is nothing left to do
			}
			for _, one := range []*cluster{leader, follower} {
				all = append(all, consensus.Member{ID: one.UID, Name: one.UID, Address: one.Address(), Alive: true})
			}
			return all
		},
		Progress: leader.membership.Progress, Stable: time.Millisecond, FirstLook: time.Millisecond,
	})
	must(t, leader.ctx.Err())
}

// hangs makes a method of a leader begin and then not answer, as if the process had stopped.
func hangs(leader *cluster, method string) (begun <-chan struct{}) {
	began := make(chan struct{}, 1)
	leader.passed.Methods[method] = relay.Passable{Call: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		began <- struct{}{}
		<-leader.stopping.Done()
		return nil, ctx.Err()
	}}
	return began
}

// Once another server leads, the follower retries idempotent calls there. For all others it answers that the outcome is
// unknown.
func TestHangingLeaderDoesNotBlockCalls(t *testing.T) {
	leader, follower := pair(t)
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	votes(t, leader, follower)
	_, err := admin.ListTokens(follower.ctx, &v1.ListTokensRequest{})
	must(t, err)
	reading := hangs(leader, v1.TokenService_ListTokens_FullMethodName)
	planning := hangs(leader, v1.PlanService_MakePlan_FullMethodName)
	writing := hangs(leader, v1.TokenService_CreateToken_FullMethodName)

	read, planned, written := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := admin.ListTokens(follower.ctx, &v1.ListTokensRequest{})
		read <- err
	}()
	go func() {
		_, err := admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "bob"})
		written <- err
	}()
	go func() {
		_, err := v1.NewPlanServiceClient(admin.conn).MakePlan(follower.ctx, &v1.PlanRequest{})
		planned <- err
	}()
	<-reading
	<-planning
	<-writing
	must(t, leader.Consensus.Transfer(leader.ctx, "s-2"))
	if err := <-read; err != nil {
		t.Errorf("the idempotent call was not retried at the new leader: %v", err)
	}
	if err := <-planned; core.HasReason(err, core.ReasonUncertain) {
		t.Errorf("the plan, which changes nothing, was answered with %v", err)
	}
	// The answer must not wait until the connection times out, which is much later.
	if err := <-written; !core.HasReason(err, core.ReasonUncertain) || !strings.Contains(err.Error(), "another server leads now") {
		t.Errorf("a change whose outcome is not known ends with %v", err)
	}
}

// stalling returns an address that leads to a server until stall is called. Then nothing passes any more, and neither
// side gets an error.
func stalling(t *testing.T, address string) (at string, stall func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var stalled atomic.Bool
	var accepting, passing sync.WaitGroup
	var open []net.Conn
	pass := func(to, from net.Conn) {
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if stalled.Load() {
				continue
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	accepting.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				_ = near.Close()
				continue
			}
			open = append(open, near, far)
			passing.Go(func() { pass(far, near) })
			passing.Go(func() { pass(near, far) })
		}
	})
	t.Cleanup(func() {
		check(t, listener.Close())
		accepting.Wait()
		for _, conn := range open {
			_ = conn.Close()
		}
		passing.Wait()
	})
	return listener.Addr().String(), func() { stalled.Store(true) }
}

// A watch through another server ends once a new server leads, and the caller has to call again.
func TestHangingLeaderDoesNotBlockStreams(t *testing.T) {
	leader, follower := pair(t)
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	votes(t, leader, follower)
	at, stall := stalling(t, leader.Address())
	follower.peers.Address = func(string) string { return at }
	watch, err := admin.WatchNodes(follower.ctx, &v1.WatchNodesRequest{})
	must(t, err)
	_, err = watch.Recv() // it has begun
	must(t, err)
	stall()
	must(t, leader.Consensus.Transfer(leader.ctx, "s-2"))
	for err == nil {
		_, err = watch.Recv()
	}
	// The answer must not wait until the connection times out, which is much later.
	wantCode(t, err, codes.Unavailable, "leads the cluster no more; call again")
}

// A leader that cannot confirm its leadership must not claim that its state is complete, or that an object does not
// exist.
func TestWatchBeginsWithAllAcknowledgedWrites(t *testing.T) {
	leader, follower := pair(t)
	admin := leader.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	votes(t, leader, follower)
	must(t, follower.Consensus.Close())
	var calls sync.WaitGroup
	defer calls.Wait()
	for name, begin := range map[string]func() error{
		"a watch of nodes": func() error {
			watch, err := admin.WatchNodes(leader.ctx, &v1.WatchNodesRequest{})
			return firstError(watch, err)
		},
		"a watch of replicas": func() error {
			watch, err := admin.WatchReplicas(leader.ctx, &v1.WatchReplicasRequest{})
			return firstError(watch, err)
		},
		"a log": func() error {
			log, err := admin.Logs(leader.ctx, &v1.LogsRequest{Workload: "web"})
			return firstError(log, err)
		},
		"exec": func() error {
			exec, err := admin.Exec(leader.ctx)
			if err == nil {
				err = exec.Send(&v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: &v1.ExecStart{Workload: "web", Command: []string{"true"}}}})
			}
			return firstError(exec, err)
		},
	} {
		calls.Go(func() {
			if code := status.Code(begin()); code != codes.Unavailable {
				t.Errorf("without the other voter %s says %s", name, code)
			}
		})
	}
}

// firstError returns the error with which a stream begins.
func firstError[T any](stream interface{ Recv() (*T, error) }, err error) error {
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// The call comes through another server, and the former leader answers it.
func TestFormerLeaderAnswersTheTransfer(t *testing.T) {
	leader, follower := pair(t)
	votes(t, leader, follower)
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	answer, err := v1.NewServerServiceClient(admin.conn).TransferLeader(follower.ctx, &v1.TransferLeaderRequest{To: "s-2"})
	must(t, err)
	if got := answer.GetLeader().GetMetadata().GetName(); got != "s-2" {
		t.Errorf("server %s leads", got)
	}
}

// newMember returns a server that can have peers. Without a CA it founds the cluster.
func newMember(t *testing.T, book *addressBook, sealer *identity.Sealer, ca *identity.CA, uid string, change ...func(*Options)) *cluster {
	t.Helper()
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	dir, store, link := t.TempDir(), state.New(), peers.NewLink(peers.Raft)
	agreed, err := consensus.Open(ctx, consensus.Options{
		Dir: filepath.Join(dir, "raft"), ServerID: uid, Address: "127.0.0.1:0", Network: link, Addresses: book.get,
		Store: store, Logger: logger, Bootstrap: ca == nil,
		ElectionTimeout: consensus.MaxElectionTimeout, // so that the leader stays on a machine that stalls now and then
	})
	must(t, err)
	t.Cleanup(func() { check(t, agreed.Close()) })
	if ca == nil {
		must(t, agreed.WaitLeader(ctx))
		ca, err = membership.Found(ctx, agreed, sealer, membership.Site{})
		must(t, err)
		tolerateSilence(t, agreed, store)
	}
	images, err := registry.Open(ctx, registry.Options{Dir: filepath.Join(dir, "registry"), Logger: logger})
	must(t, err)
	t.Cleanup(func() { check(t, images.Close()) })
	loop := nodes.New(store, agreed, nil)
	options := Options{
		UID: uid, Version: "test", Address: "127.0.0.1:0", Store: store, Consensus: agreed, CA: ca, Sealer: sealer,
		Addresses: book.get, Registry: images, Nodes: loop, Placement: replicas.Placement{}, Logger: logger,
	}
	for _, f := range change {
		f(&options)
	}
	s, err := New(ctx, options)
	must(t, err)
	book.set(uid, s.Address())
	s.membership.OpenLink(link, peers.Raft)
	c := &cluster{Server: s, t: t, log: log, ctx: ctx}
	c.stop = c.run(agreed, loop)
	t.Cleanup(c.stop)
	return c
}

// The leader answers a call to any server, for the same caller.
func TestFollowerRelaysCalls(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"})
	// The token is so new that the follower may not know it yet.
	admin := follower.dial(nil, secret)
	made, err := admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "bob"})
	must(t, err)
	if leader.Store.Snapshot().TokenByName("bob") == nil {
		t.Error("what the follower passed on did not happen")
	}
	events, err := admin.ListEvents(follower.ctx, &v1.ListEventsRequest{Object: "bob"})
	must(t, err)
	if len(events.GetItems()) != 1 || events.GetItems()[0].GetSpec().GetActor() != "user/ann" {
		t.Errorf("the leader takes the caller for %v", events)
	}
	// The rights are those of the caller, not of the server in between.
	_, err = follower.dial(nil, made.GetSecret()).CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleAdmin})
	wantCode(t, err, codes.PermissionDenied, "bob", "viewer")
	_, err = follower.dial(nil, "").ListTokens(follower.ctx, &v1.ListTokensRequest{})
	wantCode(t, err, codes.Unauthenticated)
	// A refusal by the leader arrives unchanged.
	_, err = admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "bob"})
	wantCode(t, err, codes.AlreadyExists, "token bob exists already")
	// WhoAmI is about the connection to the called server.
	me, err := admin.WhoAmI(follower.ctx, &v1.WhoAmIRequest{})
	must(t, err)
	if !strings.HasSuffix(me.GetId(), "/user/ann") {
		t.Errorf("the caller is %v", me)
	}
}

// An agent at a follower has its session with the leader.
func TestFollowerRelaysStreams(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode})
	key, csr, err := identity.NewKeyAndCSR()
	must(t, err)
	answer, err := follower.dial(nil, "").Enroll(follower.ctx, &v1.EnrollRequest{Token: secret, Csr: csr, Name: "n1"})
	must(t, err)
	if len(answer.GetServers()) != 2 {
		t.Errorf("the new node got the servers %v", answer.GetServers())
	}
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	must(t, err)
	agent := follower.dial(creds, "")
	stream, err := agent.Session(follower.ctx)
	must(t, err)
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Hello{Hello: &v1.Hello{Status: machineStatus()}}}))
	first := assignments(t, stream)
	if !first.GetFull() || len(first.GetServers()) != 2 {
		t.Errorf("the session begins with %v", first)
	}
	leader.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	if !leader.hasSession(creds.ID().Name()) || follower.hasSession(creds.ID().Name()) {
		t.Error("the session is not with the leader")
	}
	// A watch at the follower shows what happens at the leader.
	watch, err := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})).WatchNodes(follower.ctx, &v1.WatchNodesRequest{})
	must(t, err)
	change, err := watch.Recv()
	must(t, err)
	if change.GetNode().GetMetadata().GetName() != "n1" {
		t.Errorf("the watch begins with %v", change)
	}
	// A removed node loses its stream, even through another server.
	_, err = leader.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin})).DeleteNode(leader.ctx, &v1.DeleteNodeRequest{Name: "n1", Force: true})
	must(t, err)
	for err == nil {
		_, err = stream.Recv()
	}
	// A call may notice first that the old connection was closed.
	_, err = follower.dial(creds, "").Renew(follower.ctx, &v1.RenewRequest{Csr: csr})
	wantCode(t, err, codes.Unauthenticated, "not a member")
}

// Only servers may state the caller of a relayed call; users and nodes may not.
func TestOnlyServersStateTheCallerOfACall(t *testing.T) {
	leader, _ := pair(t)
	admin := core.Principal{Role: core.RoleAdmin}
	var err error
	admin.ID, err = identity.NewID(leader.ca.Trust().Cluster(), identity.KindUser, "mallory")
	must(t, err)
	forged := metadata.NewOutgoingContext(leader.ctx, metadata.Join(auth.MetadataOf(admin), metadata.Pairs(auth.MetadataForwarded, "true")))
	_, err = leader.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})).CreateToken(forged, &v1.CreateTokenRequest{Role: core.RoleAdmin})
	wantCode(t, err, codes.PermissionDenied, "viewer")
	node := leader.join("n1")
	_, err = node.CreateToken(forged, &v1.CreateTokenRequest{Role: core.RoleAdmin})
	wantCode(t, err, codes.PermissionDenied, "node")
	_, err = leader.dial(nil, "").CreateToken(forged, &v1.CreateTokenRequest{Role: core.RoleAdmin})
	wantCode(t, err, codes.Unauthenticated)
	_, err = v1.NewPeerServiceClient(node.conn).GetProgress(leader.ctx, &v1.GetProgressRequest{})
	wantCode(t, err, codes.PermissionDenied)
}

// Any server answers stale reads, by gRPC and by HTTP, and only those.
func TestStaleReads(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"})
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	leader.stop()
	admin := follower.dial(nil, secret)
	stale := metadata.AppendToOutgoingContext(follower.ctx, relay.Consistency, relay.Stale)
	tokens, err := admin.ListTokens(stale, &v1.ListTokensRequest{})
	must(t, err)
	if !slices.ContainsFunc(tokens.GetItems(), func(token *v1.Token) bool { return token.GetMetadata().GetName() == "ann" }) {
		t.Errorf("the follower knows %v", tokens)
	}
	for _, how := range [][2]string{{"/v1/tokens?consistency=stale", ""}, {"/v1/tokens", relay.Stale}} {
		response, body := follower.request(nil, http.MethodGet, how[0], "", "Authorization", "Bearer "+secret, "Consistency", how[1])
		if response.StatusCode != http.StatusOK || !strings.Contains(body, `"ann"`) {
			t.Errorf("%v: %d %s", how, response.StatusCode, body)
		}
	}
	soon, cancel := context.WithTimeout(stale, 300*time.Millisecond)
	defer cancel()
	if _, err := admin.CreateToken(soon, &v1.CreateTokenRequest{Role: core.RoleViewer}); err == nil {
		t.Error("a write was answered by one server alone")
	}
}

// A former leader that does not know it yet must not answer from its own state.
func TestFormerLeaderDoesNotAnswerFromStaleState(t *testing.T) {
	_, follower := pair(t)
	for what, build := range map[string]func(*state.Snapshot, *state.Batch) error{
		"a refusal":                func(*state.Snapshot, *state.Batch) error { return core.Refuse(codes.Aborted, "old") },
		"a call that does nothing": func(*state.Snapshot, *state.Batch) error { return nil },
	} {
		if _, err := follower.Propose(follower.ctx, build); !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("%s by a server that does not lead: %v", what, err)
		}
	}
}

// The new leader does not see what a former leader changed in a call before it noticed that it no longer leads.
func TestRetriedCallIsUnchanged(t *testing.T) {
	leader, _ := pair(t)
	request := &v1.CreateWorkloadRequest{Workload: workload("web", imageOf(leader.push("hello:1")), replicasOf(0)), IdempotencyKey: "k"}
	before := proto.CloneOf(request)
	attempts := 0
	_, err := leader.router.Unary(leader.ctx, request, v1.WorkloadService_CreateWorkload_FullMethodName, func(_ context.Context, tried any) (any, error) {
		spec.Normalize(tried.(*v1.CreateWorkloadRequest).GetWorkload())
		if attempts++; attempts == 1 {
			return nil, consensus.ErrUncertain
		}
		return &v1.Workload{}, nil
	})
	must(t, err)
	if attempts != 2 || !proto.Equal(request, before) {
		t.Errorf("after %d attempts the call is %v", attempts, request)
	}
}

// An idempotency key makes a retry safe, but the first attempt may have taken effect, whatever the retry returns.
// Another server may be tried.
func TestRetryRemembersAnUncertainAttempt(t *testing.T) {
	leader, follower := pair(t)
	votes(t, leader, follower)
	leader.router.Patience = 0
	next := error(consensus.ErrNotLeader)
	try := func(method string, request proto.Message, first error) error {
		attempts := 0
		_, err := leader.router.Unary(leader.ctx, request, method, func(context.Context, any) (any, error) {
			if attempts++; attempts == 1 {
				return nil, first
			}
			return nil, next
		})
		return core.StatusOf(err)
	}
	created, read := v1.WorkloadService_CreateWorkload_FullMethodName, v1.WorkloadService_GetWorkload_FullMethodName
	keyed := &v1.CreateWorkloadRequest{IdempotencyKey: "k"}
	err := try(created, keyed, consensus.ErrUncertain)
	wantCode(t, err, codes.Unknown, "not known whether the change was made", "reaches no leader")
	if !core.HasReason(err, core.ReasonUncertain) || !core.HasReason(err, core.ReasonNoLeader) {
		t.Errorf("clients got %v", err)
	}
	for what, err := range map[string]error{
		"a change that was not begun": try(created, keyed, consensus.ErrNotLeader),
		"what only reads":             try(read, &v1.GetWorkloadRequest{}, consensus.ErrUncertain),
	} {
		if core.HasReason(err, core.ReasonUncertain) || !core.HasReason(err, core.ReasonNoLeader) {
			t.Errorf("%s ends with %v", what, err)
		}
	}
	// A server whose disk is full refuses before it looks whether the first attempt took effect.
	next = core.Refuse(codes.ResourceExhausted, "the disk is full")
	err = try(created, keyed, consensus.ErrUncertain)
	if wantCode(t, err, codes.Unknown, "the disk is full"); !core.HasReason(err, core.ReasonUncertain) {
		t.Errorf("after a refusal for lack of room clients got %v", err)
	}
}

// The error must not be that no server leads.
func TestLeaderExplainsWhyItCannotAnswer(t *testing.T) {
	leader, follower := pair(t)
	votes(t, leader, follower)
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	leader.passed.Methods[v1.TokenService_ListTokens_FullMethodName] = relay.Passable{Call: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, core.StatusOf(core.Refuse(codes.Unavailable, "the tags are not known yet"))
	}}
	follower.router.Patience = 0
	_, err := admin.ListTokens(follower.ctx, &v1.ListTokensRequest{})
	wantCode(t, err, codes.Unavailable, "the tags are not known yet")
	if core.HasReason(err, core.ReasonNoLeader) {
		t.Errorf("although one leads: %v", err)
	}
}

// The state identifies the machine by its token and key, so that nothing is lost if the leader loses its leadership
// during the enrollment.
func TestEnrollmentIsRetriedWithTheNextLeader(t *testing.T) {
	leader, _ := pair(t)
	attempts := 0
	_, err := leader.router.Unary(leader.ctx, &v1.EnrollRequest{}, v1.EnrollmentService_Enroll_FullMethodName, func(context.Context, any) (any, error) {
		if attempts++; attempts == 1 {
			return nil, consensus.ErrUncertain
		}
		return &v1.EnrollResponse{}, nil
	})
	if err != nil || attempts != 2 {
		t.Errorf("%d attempts: %v", attempts, err)
	}
}

// A server that cannot ask the leader does not know whether its state lacks a token.
func TestLaggingServerRefusesNoUnknownToken(t *testing.T) {
	leader, follower := pair(t)
	unknown := identity.NewAPIToken(identity.Fingerprint{}).Reveal()
	_, err := follower.dial(nil, unknown).ListTokens(follower.ctx, &v1.ListTokensRequest{})
	wantCode(t, err, codes.Unauthenticated, "not valid")
	leader.stop()
	unknown = identity.NewAPIToken(identity.Fingerprint{}).Reveal() // the first one may be refused from the cache
	_, err = follower.dial(nil, unknown).ListTokens(follower.ctx, &v1.ListTokensRequest{})
	wantCode(t, err, codes.Unavailable, "behind")
	if !core.HasReason(err, core.ReasonNoLeader) {
		t.Errorf("the client does not learn that it should call another server: %v", err)
	}
	if response, body := follower.request(nil, http.MethodGet, "/v1/tokens", "", "Authorization", "Bearer "+unknown); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("by HTTP: %d %s", response.StatusCode, body)
	}
	// A caller without credentials is unauthenticated, whatever the other servers know.
	_, err = follower.dial(nil, "").ListTokens(follower.ctx, &v1.ListTokensRequest{})
	wantCode(t, err, codes.Unauthenticated)
}

// A stream carries the list of servers too, and lasts longer than a call. Any server can send it.
func TestStreamSendsTheAddressesOfAllServers(t *testing.T) {
	leader, follower := pair(t)
	op := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	for _, at := range []*cluster{leader, follower} {
		stream, err := at.dial(nil, op).WatchWorkloads(metadata.AppendToOutgoingContext(at.ctx, "x-cloudless-known", ""), &v1.WatchWorkloadsRequest{})
		must(t, err)
		header, err := stream.Header()
		must(t, err)
		if told := header.Get("x-cloudless-servers"); len(told) != 1 || len(strings.Split(told[0], ",")) != 2 {
			t.Errorf("%s tells of %v", at.UID, told)
		}
	}
}

// The answer to a relayed call names the leader if the client asks for it.
func TestAnswerNamesTheLeader(t *testing.T) {
	leader, follower := pair(t)
	op := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})
	must(t, follower.Consensus.WaitApplied(follower.ctx, leader.Store.Snapshot().Index()))
	wanting := metadata.AppendToOutgoingContext(leader.ctx, "x-cloudless-known", "")
	stale := metadata.AppendToOutgoingContext(wanting, relay.Consistency, relay.Stale)
	for _, one := range []struct {
		at   *cluster
		ctx  context.Context
		told []string
	}{
		{follower, wanting, []string{leader.Address()}},
		{follower, leader.ctx, nil},
		{follower, stale, nil},
		{leader, wanting, nil},
	} {
		var header metadata.MD
		_, err := one.at.dial(nil, op).ListWorkloads(one.ctx, &v1.ListWorkloadsRequest{}, grpc.Header(&header))
		must(t, err)
		if told := header.Get("x-cloudless-leader"); !slices.Equal(told, one.told) {
			t.Errorf("%s says that %v leads", one.at.UID, told)
		}
	}
}
