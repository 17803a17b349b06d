package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

func copyUp(stream attachClient, response *v1.CopyResponse) {
	_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_Copy{Copy: response}})
}

// files is an agent that stores nothing: it sends back the data that it receives. It names
// the path as the replica. A message on left means that the server has released a stream.
func files(left chan<- struct{}) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		defer func() {
			if left != nil {
				left <- struct{}{}
			}
		}()
		start := open.GetCopy().GetStart()
		copyUp(stream, &v1.CopyResponse{Message: &v1.CopyResponse_Started{Started: &v1.CopyStarted{Replica: start.GetPath(), TotalBytes: 3}}})
		for start.GetInto() {
			down, err := stream.Recv()
			if err != nil {
				return
			}
			if down.GetCopy().GetEnd() {
				break
			}
			copyUp(stream, &v1.CopyResponse{Message: &v1.CopyResponse_Data{Data: down.GetCopy().GetData()}})
		}
		done := &v1.CopyDone{}
		if start.GetPath() == "/bad" {
			done.Error = "it is bad"
		}
		copyUp(stream, &v1.CopyResponse{Message: &v1.CopyResponse_Done{Done: done}})
		_, _ = stream.Recv()
	}
}

func copyStart(workload, path string, into bool) *v1.CopyRequest {
	return &v1.CopyRequest{Message: &v1.CopyRequest_Start{Start: &v1.CopyStart{Workload: workload, Path: path, Into: into}}}
}

func copyData(data []byte) *v1.CopyRequest {
	return &v1.CopyRequest{Message: &v1.CopyRequest_Data{Data: data}}
}

func TestCopyTransfersDataInBothDirections(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", files(nil))
	c.create(op, workload("web"))
	stream, err := op.Copy(c.ctx)
	must(t, err)
	must(t, stream.Send(copyStart("web", "/data", true)))
	first, err := stream.Recv()
	must(t, err)
	if started := first.GetStarted(); started.GetReplica() != "/data" || started.GetTotalBytes() != 3 {
		t.Errorf("copy began with %v", first)
	}
	var back bytes.Buffer
	piece := bytes.Repeat([]byte("x"), 100<<10)
	for range 20 {
		must(t, stream.Send(copyData(piece)))
		answer, err := stream.Recv()
		must(t, err)
		back.Write(answer.GetData())
	}
	must(t, stream.Send(&v1.CopyRequest{Message: &v1.CopyRequest_End{End: true}}))
	last, err := stream.Recv()
	must(t, err)
	if last.GetDone() == nil || last.GetDone().GetError() != "" || back.Len() != 20*len(piece) {
		t.Errorf("the end is %v after %d bytes", last, back.Len())
	}
	_, err = stream.Recv()
	wantCode(t, core.StatusOf(ignoreEOF(err)), codes.OK)

	bad, err := op.Copy(c.ctx)
	must(t, err)
	must(t, bad.Send(copyStart("web", "/bad", false)))
	_, err = bad.Recv()
	must(t, err)
	if done, err := bad.Recv(); err != nil || done.GetDone().GetError() != "it is bad" {
		t.Errorf("the failed copy ended with %v, %v", done, err)
	}
}

func TestCopyEndsWithCallerOrNode(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	left := make(chan struct{}, 1)
	w := c.work("n1", files(left))
	c.create(op, workload("web"))
	ctx, leave := context.WithCancel(c.ctx)
	stream, err := op.Copy(ctx)
	must(t, err)
	must(t, stream.Send(copyStart("web", "/data", true)))
	_, err = stream.Recv()
	must(t, err)
	leave()
	<-left

	stream, err = op.Copy(c.ctx)
	must(t, err)
	must(t, stream.Send(copyStart("web", "/data", true)))
	_, err = stream.Recv()
	must(t, err)
	w.leave()
	_, err = stream.Recv()
	wantCode(t, err, codes.Unavailable)
	<-left
}

func TestImpossibleCopyIsRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	session := c.join("n1").connect(c.ctx)
	assignments(t, session)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	assignments(t, session)
	try := func(u *user, first *v1.CopyRequest) error {
		stream, err := u.Copy(c.ctx)
		must(t, err)
		if err := stream.Send(first); !errors.Is(err, io.EOF) { // EOF means that it has been refused already
			must(t, err)
		}
		_, err = stream.Recv()
		return err
	}
	wantCode(t, try(op, copyData([]byte("x"))), codes.InvalidArgument, "begins with start")
	wantCode(t, try(op, copyStart("web", "relative", false)), codes.InvalidArgument, "absolute path")
	wantCode(t, try(op, copyStart("wbe", "/x", false)), codes.NotFound, "workload wbe does not exist in namespace default; did you mean web?")
	wantCode(t, try(op, copyStart("web", "/x", true)), codes.FailedPrecondition, "no replica of web is running", "is in phase placed", "cloudless ps --all")
	wantCode(t, try(c.as(core.RoleViewer), copyStart("web", "/x", false)), codes.PermissionDenied, "operator")
}
