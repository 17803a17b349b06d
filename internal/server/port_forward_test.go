package server

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

func forwardUp(stream attachClient, response *v1.ForwardResponse) {
	_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Forward{Forward: response}})
}

// echoing is an agent whose replicas send back what they receive, and then the end. A message on left means that the
// server has released a stream.
func echoing(left chan<- struct{}) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		defer func() {
			if left != nil {
				left <- struct{}{}
			}
		}()
		name := open.GetForward().GetReplicaUid()
		forwardUp(stream, &v1.ForwardResponse{Message: &v1.ForwardResponse_Started{Started: &v1.ForwardStarted{Replica: name}}})
		for {
			down, err := stream.Recv()
			if err != nil {
				return
			}
			if down.GetForward().GetEnd() {
				forwardUp(stream, &v1.ForwardResponse{Message: &v1.ForwardResponse_End{End: true}})
				forwardUp(stream, &v1.ForwardResponse{Message: &v1.ForwardResponse_Done{Done: &v1.ForwardDone{}}})
				_, _ = stream.Recv()
				return
			}
			forwardUp(stream, &v1.ForwardResponse{Message: &v1.ForwardResponse_Data{Data: down.GetForward().GetData()}})
		}
	}
}

func forwardStart(start *v1.ForwardStart) *v1.ForwardRequest {
	return &v1.ForwardRequest{Message: &v1.ForwardRequest_Start{Start: start}}
}

// forwardTo begins a connection and returns the replica that it goes to.
func forwardTo(t *testing.T, ctx context.Context, u *user, start *v1.ForwardStart) (v1.WorkloadService_ForwardClient, string) {
	t.Helper()
	stream, err := u.Forward(ctx)
	must(t, err)
	must(t, stream.Send(forwardStart(start)))
	first, err := stream.Recv()
	must(t, err)
	return stream, first.GetStarted().GetReplica()
}

func TestForwardTransfersDataAndEnds(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", echoing(nil))
	c.create(op, workload("web"))
	stream, _ := forwardTo(t, c.ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080})
	must(t, stream.Send(&v1.ForwardRequest{Message: &v1.ForwardRequest_Data{Data: []byte("ping")}}))
	answer, err := stream.Recv()
	must(t, err)
	if string(answer.GetData()) != "ping" {
		t.Errorf("answered with %v", answer)
	}
	must(t, stream.Send(&v1.ForwardRequest{Message: &v1.ForwardRequest_End{End: true}}))
	end, err := stream.Recv()
	must(t, err)
	done, err := stream.Recv()
	must(t, err)
	if !end.GetEnd() || done.GetDone() == nil {
		t.Errorf("ended with %v and %v", end, done)
	}
	_, err = stream.Recv()
	wantCode(t, core.StatusOf(ignoreEOF(err)), codes.OK)
}

func TestForwardEndsWithCallerOrNode(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	left := make(chan struct{}, 1)
	w := c.work("n1", echoing(left))
	c.create(op, workload("web"))
	ctx, leave := context.WithCancel(c.ctx)
	forwardTo(t, ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080})
	leave()
	<-left
	stream, _ := forwardTo(t, c.ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080})
	w.leave()
	_, err := stream.Recv()
	wantCode(t, err, codes.Unavailable)
	<-left
}

// A connection goes to the replica of the one before, and to another when that one cannot be reached.
func TestForwardStaysWithAReplicaWhileItCanBeReached(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	workers := []*worker{c.work("n1", echoing(nil)), c.work("n2", echoing(nil))}
	made := c.create(op, workload("web", replicasOf(2)))
	replicas := c.running(made.GetMetadata().GetUid(), 2)
	for _, r := range replicas {
		for range 3 {
			_, uid := forwardTo(t, c.ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080, Prefer: r.GetMetadata().GetName()})
			if uid != r.GetMetadata().GetUid() {
				t.Errorf("%s is preferred and runs, and the connection goes to %s", r.GetMetadata().GetName(), uid)
			}
		}
	}
	gone, stays := replicas[0], replicas[1]
	for _, w := range workers {
		if w.uid() == gone.GetSpec().GetNodeUid() {
			w.leave()
			c.disconnected(w.uid())
		}
	}
	_, uid := forwardTo(t, c.ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080, Prefer: gone.GetMetadata().GetName()})
	if uid != stays.GetMetadata().GetUid() {
		t.Errorf("the connection goes to %s, whose node is away", uid)
	}
	// A check connects nowhere and says the same. A replica that the caller has chosen is not exchanged.
	_, name := forwardTo(t, c.ctx, op, &v1.ForwardStart{Workload: "web", Port: 8080, Check: true})
	if name != stays.GetMetadata().GetName() {
		t.Errorf("a connection would go to %s", name)
	}
	stream, err := op.Forward(c.ctx)
	must(t, err)
	must(t, stream.Send(forwardStart(&v1.ForwardStart{Workload: gone.GetMetadata().GetName(), Port: 8080})))
	_, err = stream.Recv()
	wantCode(t, err, codes.Unavailable, "is not connected")
}

func TestImpossibleForwardIsRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	session := c.join("n1").connect(c.ctx)
	assignments(t, session)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	assignments(t, session)
	try := func(u *user, first *v1.ForwardRequest) error {
		stream, err := u.Forward(c.ctx)
		must(t, err)
		if err := stream.Send(first); !errors.Is(err, io.EOF) { // EOF means that it has been refused already
			must(t, err)
		}
		_, err = stream.Recv()
		return err
	}
	wantCode(t, try(op, &v1.ForwardRequest{Message: &v1.ForwardRequest_End{End: true}}), codes.InvalidArgument, "begins with start")
	wantCode(t, try(op, forwardStart(&v1.ForwardStart{Workload: "web"})), codes.InvalidArgument, "port")
	wantCode(t, try(op, forwardStart(&v1.ForwardStart{Workload: "web", Port: 65536})), codes.InvalidArgument, "port")
	wantCode(t, try(op, forwardStart(&v1.ForwardStart{Workload: "wbe", Port: 1})), codes.NotFound, "workload wbe does not exist in namespace default; did you mean web?")
	wantCode(t, try(op, forwardStart(&v1.ForwardStart{Workload: "web", Port: 1, Check: true})), codes.FailedPrecondition, "no replica of web is running")
	wantCode(t, try(c.as(core.RoleViewer), forwardStart(&v1.ForwardStart{Workload: "web", Port: 1})), codes.PermissionDenied, "operator")
}
