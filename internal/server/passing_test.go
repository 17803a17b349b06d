package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
)

// Calls that share a stream get their own answers and refusals, as the leader gives them.
func TestCallsThatShareAStreamGetTheirOwnAnswers(t *testing.T) {
	leader, follower := pair(t)
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	const names, rivals = 40, 3
	outcomes := make([][rivals]error, names)
	var all sync.WaitGroup
	for n := range names {
		for rival := range rivals {
			all.Go(func() {
				name := fmt.Sprintf("user-%d", n)
				made, err := admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: name})
				if err == nil && made.GetToken().GetMetadata().GetName() != name {
					err = fmt.Errorf("%s got the answer for %s", name, made.GetToken().GetMetadata().GetName())
				}
				outcomes[n][rival] = err
			})
		}
	}
	all.Wait()
	for n, tried := range outcomes {
		refused := 0
		for _, err := range tried {
			switch status.Code(err) {
			case codes.OK:
			case codes.AlreadyExists:
				refused++
			default:
				t.Errorf("user %d: %v", n, err)
			}
		}
		if refused != rivals-1 {
			t.Errorf("user %d was refused %d times of %d", n, refused, rivals)
		}
	}
}

// largeCall is the size of a request that does not share a stream with others, in bytes.
const largeCall = 64 << 10

// A request that would delay the others has its own stream, and is answered all the same.
func TestLargeCallIsRelayedAlone(t *testing.T) {
	leader, follower := pair(t)
	conn, err := follower.peers.Ready(follower.ctx, leader.UID)
	must(t, err)
	request := &v1.ListWorkloadsRequest{Selection: &v1.Selection{Labels: strings.Repeat("x", largeCall)}}
	out := (&v1.ListWorkloadsResponse{}).ProtoReflect().Type()
	leader.passed.Methods[v1.WorkloadService_ListWorkloads_FullMethodName] = relay.Passable{Call: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		t.Error("it went with the others")
		return nil, core.ErrStopping
	}}
	ctx := core.WithPrincipal(follower.ctx, leader.bearerOf(core.RoleViewer))
	_, err = follower.router.Passing.Call(ctx, conn, v1.WorkloadService_ListWorkloads_FullMethodName, request, out)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request with a selector of %d bytes: %v", largeCall, err)
	}
}

// passTo registers a method at the leader, as a service would, and returns how the follower calls it.
func passTo(t *testing.T, leader, follower *cluster, call func(context.Context) error) func(context.Context) error {
	t.Helper()
	passed := passMethod(t, leader, follower, func(ctx context.Context) (proto.Message, error) { return &v1.WhoAmIRequest{}, call(ctx) })
	return func(ctx context.Context) error {
		_, err := passed(ctx)
		return err
	}
}

// passMethod does the same with a method that returns a message.
func passMethod(t *testing.T, leader, follower *cluster, call func(context.Context) (proto.Message, error)) func(context.Context) (proto.Message, error) {
	t.Helper()
	const method = "/test/Method"
	leader.passed.Methods[method] = relay.Passable{Call: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return call(ctx)
	}}
	conn := connected(t, leader, follower)
	return func(ctx context.Context) (proto.Message, error) {
		return follower.router.Passing.Call(ctx, conn, method, &v1.WhoAmIRequest{}, (&v1.WhoAmIRequest{}).ProtoReflect().Type())
	}
}

// connected waits for a connection as long as it takes: callers would give up at some point.
func connected(t *testing.T, leader, follower *cluster) *grpc.ClientConn {
	t.Helper()
	for {
		conn, err := follower.peers.Ready(follower.ctx, leader.UID)
		if err == nil {
			return conn
		}
		must(t, follower.ctx.Err())
	}
}

// When the caller leaves, the call at the leader ends.
func TestRelayedCallEndsWhenItsCallerLeaves(t *testing.T) {
	leader, follower := pair(t)
	begun, ended := make(chan struct{}), make(chan struct{})
	call := passTo(t, leader, follower, func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ctx, leave := context.WithCancel(follower.ctx)
	go func() {
		<-begun
		leave()
	}()
	if err := call(ctx); status.Code(err) != codes.Canceled {
		t.Errorf("the caller hears %v", err)
	}
	select {
	case <-ended:
	case <-leader.ctx.Done():
		t.Error("the leader goes on with the call")
	}
}

// A leader that stops still answers the calls that it has, and gets no further ones.
func TestStoppingLeaderAnswersRelayedCalls(t *testing.T) {
	leader, follower := pair(t)
	begun := make(chan struct{})
	call := passTo(t, leader, follower, func(context.Context) error {
		close(begun)
		<-leader.stopping.Done()
		return nil
	})
	answered := make(chan error, 1)
	go func() { answered <- call(follower.ctx) }()
	<-begun
	leader.stop()
	must(t, <-answered)
	if err := call(follower.ctx); !errors.Is(err, relay.ErrNotConnected) {
		t.Errorf("a call to a server that has stopped: %v, want that it was not made", err)
	}
}

// Calls in progress when the connection breaks have an unknown outcome; later calls use a new stream.
func TestBrokenStreamBetweenServersIsReplaced(t *testing.T) {
	leader, follower := pair(t)
	begun := make(chan struct{}, 1)
	call := passTo(t, leader, follower, func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	answered := make(chan error, 1)
	go func() { answered <- call(follower.ctx) }()
	<-begun
	follower.peers.Drop(leader.UID)
	if err := <-answered; !core.HasReason(err, core.ReasonUncertain) || core.HasReason(err, core.ReasonNotLeader) {
		t.Errorf("a call whose connection broke ends with %v, want that its outcome is not known", err)
	}
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	_, err := admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "bob"})
	must(t, err)
}

// A follower returns the answer of the leader byte for byte.
func TestAnswersAreRelayedUnchanged(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"})
	direct, err := leader.dial(nil, secret).ListTokens(leader.ctx, &v1.ListTokensRequest{})
	must(t, err)
	passed, err := follower.dial(nil, secret).ListTokens(follower.ctx, &v1.ListTokensRequest{})
	must(t, err)
	if len(passed.ProtoReflect().GetUnknown()) > 0 || !proto.Equal(direct, passed) {
		t.Errorf("the follower answers %v, the leader %v", passed, direct)
	}
}

// Lists that are too large to share a message do not cost another caller the answer to a write.
func TestLargeAnswersBreakNoOtherCalls(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"})
	annotations := map[string]string{}
	for i := range 12 {
		annotations[fmt.Sprintf("value%d", i)] = strings.Repeat("x", 4000)
	}
	at, through := leader.dial(nil, secret), follower.dial(nil, secret)
	const many = 40
	for i := range many {
		_, err := at.CreateWorkload(leader.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
			Metadata: &v1.Metadata{Name: fmt.Sprintf("w%d", i), Annotations: annotations},
			Spec:     &v1.WorkloadSpec{Image: "docker.io/library/busybox:1", Replicas: proto.Int32(0)},
		}})
		must(t, err)
	}
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			list, err := through.ListWorkloads(follower.ctx, &v1.ListWorkloadsRequest{})
			if err != nil || len(list.GetItems()) != many {
				t.Errorf("list %d: %d workloads, %v", i, len(list.GetItems()), err)
			}
		})
		all.Go(func() {
			_, err := through.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: fmt.Sprintf("u%d", i)})
			if err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// An answer that exceeds the size of a message arrives whole, and so does a long refusal.
func TestAnswerOfAnySizeArrives(t *testing.T) {
	leader, follower := pair(t)
	whole, refused := messageOf(65<<20), status.Error(codes.Aborted, strings.Repeat("y", 3*largeCall))
	var asked atomic.Int32
	call := passMethod(t, leader, follower, func(context.Context) (proto.Message, error) {
		if asked.Add(1) > 1 {
			return nil, refused
		}
		return whole, nil
	})
	got, err := call(follower.ctx)
	must(t, err)
	if want := whole.ProtoReflect().GetUnknown(); !bytes.Equal(got.ProtoReflect().GetUnknown(), want) {
		t.Errorf("%d bytes of %d arrived, or others", len(got.ProtoReflect().GetUnknown()), len(want))
	}
	if _, err := call(follower.ctx); !proto.Equal(status.Convert(err).Proto(), status.Convert(refused).Proto()) {
		t.Errorf("a refusal of %d bytes arrived as %.100v", 3*largeCall, err)
	}
}

// Only a server can relay calls, whatever identity a caller claims, and the relaying server is not the caller.
func TestOnlyServersRelayCalls(t *testing.T) {
	leader, follower := pair(t)
	server, err := identity.NewID(leader.ca.Trust().Cluster(), identity.KindServer, "s-2")
	must(t, err)
	forged := metadata.NewOutgoingContext(leader.ctx, auth.MetadataOf(core.Principal{ID: server, Role: core.RoleServer}))
	for role, as := range map[string]*user{core.RoleAdmin: leader.as(core.RoleAdmin), core.RoleNode: leader.join("machine").user} {
		stream, err := v1.NewPeerServiceClient(as.conn).PassCalls(forged)
		must(t, err)
		_, err = stream.Recv()
		wantCode(t, err, codes.PermissionDenied, fmt.Sprintf("role %q", role))
	}
	call := passTo(t, leader, follower, func(ctx context.Context) error {
		if p := core.Caller(ctx); !p.ID.IsZero() || p.Role != "" {
			return status.Errorf(codes.Internal, "the call is taken for one of %v", p)
		}
		return nil
	})
	must(t, call(follower.ctx))
}

// messageOf returns a message of about that many bytes.
func messageOf(size int) *v1.WhoAmIRequest {
	m := &v1.WhoAmIRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), bytes.Repeat([]byte("x"), size)))
	return m
}
