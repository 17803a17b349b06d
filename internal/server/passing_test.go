package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// Calls that are passed on together have their own answers and refusals, as the leader gives them.
func TestCallsPassedOnTogetherHaveTheirOwnAnswers(t *testing.T) {
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

// A request that would hold up the others goes by itself, and is answered all the same.
func TestALargeCallIsPassedOnAlone(t *testing.T) {
	leader, follower := pair(t)
	conn, err := follower.peers.ready(follower.ctx, leader.UID)
	must(t, err)
	request := &v1.ListWorkloadsRequest{Selection: &v1.Selection{Labels: strings.Repeat("x", maxPassed)}}
	_, out, err := messagesOf(v1.WorkloadService_ListWorkloads_FullMethodName)
	must(t, err)
	ctx := core.WithPrincipal(follower.ctx, leader.bearerOf(core.RoleViewer))
	_, err = follower.router.passing.call(ctx, conn, v1.WorkloadService_ListWorkloads_FullMethodName, request, out)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request with a selector of %d bytes: %v", maxPassed, err)
	}
	if len(follower.router.passing.lines) != 0 {
		t.Error("it went with the others")
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

// passMethod does so with a method that has something to say.
func passMethod(t *testing.T, leader, follower *cluster, call func(context.Context) (proto.Message, error)) func(context.Context) (proto.Message, error) {
	t.Helper()
	const method = "/test/Method"
	leader.passed.methods[method] = passable{call: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return call(ctx)
	}}
	conn := connected(t, leader, follower)
	return func(ctx context.Context) (proto.Message, error) {
		return follower.router.passing.call(ctx, conn, method, &v1.WhoAmIRequest{}, (&v1.WhoAmIRequest{}).ProtoReflect().Type())
	}
}

// connected waits for a connection however long that takes: callers would give up at some point.
func connected(t *testing.T, leader, follower *cluster) *grpc.ClientConn {
	t.Helper()
	for {
		conn, err := follower.peers.ready(follower.ctx, leader.UID)
		if err == nil {
			return conn
		}
		must(t, follower.ctx.Err())
	}
}

// When the caller leaves, so does the call at the leader.
func TestACallerThatLeavesEndsThePassedCall(t *testing.T) {
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

// A leader that stops still answers what it has been asked, and is asked nothing more.
func TestALeaderThatStopsAnswersWhatWasPassedOn(t *testing.T) {
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
	if err := call(follower.ctx); !errors.Is(err, errNotConnected) {
		t.Errorf("a call to a server that has stopped: %v, want that it was not made", err)
	}
}

// What was asked when the connection broke has no known outcome; what is asked then goes over a new stream.
func TestABrokenLineIsReplaced(t *testing.T) {
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
	follower.peers.drop(leader.UID)
	if err := <-answered; !uncertain(err) || notLeader(err) {
		t.Errorf("a call whose connection broke ends with %v, want that its outcome is not known", err)
	}
	admin := follower.dial(nil, leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"}))
	_, err := admin.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "bob"})
	must(t, err)
}

// The answer that a follower gives is, byte for byte, that of the leader.
func TestAnswersArePassedOnAsTheyCame(t *testing.T) {
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
