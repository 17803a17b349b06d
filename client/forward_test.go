package client_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

type forwardServer = grpc.BidiStreamingServer[cloudlessv1.ForwardRequest, cloudlessv1.ForwardResponse]

func (w *workloads) Forward(s forwardServer) error { return w.forward(s) }

func forwardSend(s forwardServer, messages ...*cloudlessv1.ForwardResponse) error {
	for _, m := range messages {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func forwardStarted(replica string) *cloudlessv1.ForwardResponse {
	return &cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_Started{Started: &cloudlessv1.ForwardStarted{Replica: replica}}}
}

func forwardDone(why string) *cloudlessv1.ForwardResponse {
	return &cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_Done{Done: &cloudlessv1.ForwardDone{Error: why}}}
}

// echo sends back what it receives, both with its end.
func echo(s forwardServer) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	if start := first.GetStart(); start.GetWorkload() != "web" || start.GetPort() != 8080 || start.GetPrefer() != "web-1" || start.GetCheck() {
		return status.Errorf(codes.InvalidArgument, "asked for %v", start)
	}
	if err := forwardSend(s, forwardStarted("web-2")); err != nil {
		return err
	}
	for {
		request, err := s.Recv()
		if err != nil {
			return err
		}
		if request.GetEnd() {
			return forwardSend(s, &cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_End{End: true}}, forwardDone(""))
		}
		if err := forwardSend(s, &cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_Data{Data: request.GetData()}}); err != nil {
			return err
		}
	}
}

// localPair is a connection on this machine, as a program and as the client see it.
func localPair(t *testing.T) (program, conn *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

func TestForwardCarriesBothDirectionsToTheirEnds(t *testing.T) {
	c := (&workloads{forward: echo}).dial(t)
	program, conn := localPair(t)
	sent := strings.Repeat("0123456789", 500_000)
	go func() {
		_, _ = io.WriteString(program, sent)
		_ = program.CloseWrite()
	}()
	ended := make(chan error, 1)
	var replica string
	go func() {
		ended <- c.Forward(t.Context(), client.ForwardOptions{
			Workload: "web", Port: 8080, Prefer: "web-1", Started: func(name string) { replica = name },
		}, conn)
	}()
	got, err := io.ReadAll(program)
	if err != nil || string(got) != sent {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
	}
	if err := <-ended; err != nil || replica != "web-2" {
		t.Errorf("connected with %q, %v", replica, err)
	}
}

func TestForwardSaysWhyItFails(t *testing.T) {
	for name, c := range map[string]struct {
		forward func(forwardServer) error
		want    string
	}{
		"refused": {func(forwardServer) error {
			return status.Error(codes.FailedPrecondition, "nothing listens on port 8080")
		}, "nothing listens on port 8080"},
		"broken": {func(s forwardServer) error {
			return forwardSend(s, forwardStarted("web-1"), forwardDone("connection reset by peer"))
		}, "connection reset by peer"},
		"cut": {func(s forwardServer) error { return forwardSend(s, forwardStarted("web-1")) }, "ended too early"},
	} {
		_, conn := localPair(t)
		err := (&workloads{forward: c.forward}).dial(t).Forward(t.Context(), client.ForwardOptions{Workload: "web", Port: 8080}, conn)
		if err == nil || !strings.Contains(client.Message(err), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The server must be able to tell a broken connection from one that has ended.
func TestForwardIsCancelledWhenTheLocalConnectionBreaks(t *testing.T) {
	cancelled := make(chan error, 1)
	c := (&workloads{forward: func(s forwardServer) error {
		err := forwardSend(s, forwardStarted("web-1"))
		for err == nil {
			_, err = s.Recv()
		}
		cancelled <- err
		return err
	}}).dial(t)
	program, conn := localPair(t)
	if err := errors.Join(program.SetLinger(0), program.Close()); err != nil {
		t.Fatal(err)
	}
	if err := c.Forward(t.Context(), client.ForwardOptions{Workload: "web", Port: 8080}, conn); err == nil {
		t.Error("a broken connection is no error")
	}
	if err := <-cancelled; status.Code(err) != codes.Canceled {
		t.Errorf("the server sees %v", err)
	}
}

func TestForwardTargetNamesTheReplica(t *testing.T) {
	c := (&workloads{forward: func(s forwardServer) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		if !first.GetStart().GetCheck() {
			return status.Error(codes.InvalidArgument, "this would connect")
		}
		return forwardSend(s, forwardStarted("web-1"))
	}}).dial(t)
	if replica, err := c.ForwardTarget(t.Context(), client.ForwardOptions{Workload: "web", Port: 8080}); err != nil || replica != "web-1" {
		t.Errorf("%q, %v", replica, err)
	}
}
