package app

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// lonely is a server that cannot reach the others, or one that can.
type lonely struct {
	v1.UnimplementedAgentServiceServer
	leads bool
}

func (l *lonely) Session(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]) error {
	if l.leads {
		return stream.Send(&v1.SessionDown{})
	}
	none, err := status.New(codes.Unavailable, "no server leads").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER"})
	if err != nil {
		return err
	}
	return none.Err()
}

func serveLonely(t *testing.T, leads bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	v1.RegisterAgentServiceServer(server, &lonely{leads: leads})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

// TestNodeLeavesAServerThatIsCutOff: its connection is up, but no session can be had there.
func TestNodeLeavesAServerThatIsCutOff(t *testing.T) {
	cut, well := serveLonely(t, false), serveLonely(t, true)
	var kept []string
	list := newServerList(membership{Servers: []string{cut, well}, Via: cut}, func(servers []string) error {
		kept = servers
		return nil
	})
	conn, err := grpc.NewClient(list.target(), append(list.options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must(t, err)
	defer conn.Close()
	session := func() error {
		stream, err := v1.NewAgentServiceClient(conn).Session(context.WithoutCancel(t.Context()), grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	if err := session(); status.Code(err) != codes.Unavailable {
		t.Fatalf("the server that is cut off answered %v", err)
	}
	must(t, session())
	if quiet := list.quiet(); quiet < 0 || quiet >= time.Since(list.began) {
		t.Errorf("after what the servers have said it has been quiet for %s", quiet)
	}
	if near := list.nearest(); !slices.Equal(near, []string{well, cut}) {
		t.Errorf("images are pulled from %v, in this order", near)
	}
	// What it learns is kept, and the address by which it came stays known.
	must(t, list.learn([]string{well}))
	if !slices.Equal(kept, []string{well}) || !slices.Equal(list.addresses(), []string{well, cut}) {
		t.Errorf("it keeps %v and tries %v", kept, list.addresses())
	}
}
