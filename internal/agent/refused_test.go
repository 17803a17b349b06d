package agent

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// refusing is a cluster that no longer knows this node. It alternates between answering
// before hello and after it.
type refusing struct {
	v1.AgentServiceClient
	tries int
}

func (c *refusing) Session(context.Context, ...grpc.CallOption) (sessionStream, error) {
	c.tries++
	return &refusedStream{soon: c.tries%2 == 0}, nil
}

type refusedStream struct {
	sessionStream
	soon bool
}

func (s *refusedStream) Send(*v1.SessionUp) error {
	if s.soon {
		return io.EOF
	}
	return nil
}

func (s *refusedStream) Recv() (*v1.SessionDown, error) {
	return nil, status.Error(codes.Unauthenticated, "node box is not a member of this cluster any more")
}

// unreachable is a cluster in which each attempt tries another server.
type unreachable struct {
	v1.AgentServiceClient
	tries int
}

func (c *unreachable) Session(context.Context, ...grpc.CallOption) (sessionStream, error) {
	c.tries++
	return nil, status.Errorf(codes.Unavailable, "dial tcp 10.0.0.%d:7700: connection refused", 1+c.tries%3)
}

// A removed node logs that once, and not every few seconds forever.
func TestRefusalIsLoggedOnce(t *testing.T) {
	cluster := &refusing{}
	logged := loggedWithout(t, cluster, time.Hour)
	if said := strings.Count(logged, "not a member of this cluster"); said != 1 || cluster.tries < 100 {
		t.Errorf("%d refusals were logged %d times", cluster.tries, said)
	}
}

// The log of a node without servers does not grow with every retry.
func TestUnreachableServersDoNotFillTheLog(t *testing.T) {
	cluster := &unreachable{}
	logged := loggedWithout(t, cluster, 24*time.Hour)
	if said := strings.Count(logged, "connection refused"); said < 10 || said > 200 || cluster.tries < 10_000 {
		t.Errorf("%d tries in a day were logged %d times", cluster.tries, said)
	}
}

// loggedWithout is the log of an agent that has no session for a while.
func loggedWithout(t *testing.T, cluster v1.AgentServiceClient, away time.Duration) string {
	var logged bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.driver = &handle{tasks: n.tasks}
		options := n.options()
		options.Client, options.Logger = cluster, slog.New(slog.NewTextHandler(&logged, nil))
		agent, err := New(options)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), away)
		defer cancel()
		if err := agent.Run(ctx); err != nil {
			t.Fatal(err)
		}
	})
	return logged.String()
}
