package client_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// passer answers GetCluster, as if forwarded to the leader if it knows one.
type passer struct {
	cloudlessv1.UnimplementedClusterServiceServer
	address string
	leader  atomic.Value // a string
	calls   atomic.Int64
	cut     atomic.Bool // cut off from every leader
	unsure  atomic.Bool // whether it has reached one before that
	stop    func()
}

func (p *passer) GetCluster(ctx context.Context, _ *cloudlessv1.GetClusterRequest) (*cloudlessv1.Cluster, error) {
	p.calls.Add(1)
	if p.cut.Load() {
		refusal := status.New(codes.Unavailable, "no server leads")
		reasons := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: "NO_LEADER"}}
		if p.unsure.Load() {
			refusal = status.New(codes.Unknown, "it is not known whether the change was made")
			reasons = append(reasons, &errdetails.ErrorInfo{Reason: "UNCERTAIN"})
		}
		refusal, err := refusal.WithDetails(reasons...)
		if err != nil {
			return nil, err
		}
		return nil, refusal.Err()
	}
	if leader, _ := p.leader.Load().(string); leader != "" {
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-cloudless-leader", leader)); err != nil {
			return nil, err
		}
	}
	return &cloudlessv1.Cluster{}, nil
}

func (a *authority) servePasser() *passer {
	a.t.Helper()
	listener := listen(a.t)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(a.serverTLS(identity.KindServer))))
	p := &passer{address: listener.Addr().String(), stop: server.Stop}
	cloudlessv1.RegisterClusterServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	a.t.Cleanup(server.Stop)
	return p
}

// Calls that are forwarded often go directly to the current leader. Stale reads go the usual way, and so does
// everything when the leader is gone or unreachable.
func TestClientTakesAShortcutToTheLeader(t *testing.T) {
	a := newAuthority(t, "one")
	first, second, third := a.servePasser(), a.servePasser(), a.servePasser()
	first.leader.Store(second.address)
	c := dial(t, a.context(first.address))
	call := func(ctx context.Context) {
		t.Helper()
		if _, err := c.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	callUntilAt := func(p *passer) {
		t.Helper()
		for before := p.calls.Load(); p.calls.Load() == before; {
			call(t.Context())
		}
	}
	call(t.Context())
	if first.calls.Load() != 1 || second.calls.Load() != 0 {
		t.Error("one call was worth a connection")
	}
	callUntilAt(second)
	passed := first.calls.Load()
	for range 10 {
		call(t.Context())
	}
	if now := first.calls.Load(); now != passed {
		t.Errorf("%d of 10 calls were still passed on", now-passed)
	}
	call(client.WithStale(t.Context()))
	if first.calls.Load() != passed+1 {
		t.Error("a stale read went to the leader")
	}

	first.leader.Store(third.address)
	second.leader.Store(third.address)
	callUntilAt(third)

	third.stop()
	callUntilAt(first) // which still believes in it
	first.leader.Store(second.address)
	second.leader.Store("")
	callUntilAt(second)

	first.leader.Store(closedAddress(t))
	second.leader.Store(first.leader.Load())
	for range 200 {
		call(t.Context())
	}
}

// A call that a server refuses because it reaches no leader is retried at another known server, and later calls go
// there, too.
func TestCallIsRetriedElsewhereWithoutALeader(t *testing.T) {
	a := newAuthority(t, "one")
	cut, alsoCut, well := a.servePasser(), a.servePasser(), a.servePasser()
	cut.cut.Store(true)
	alsoCut.cut.Store(true)
	c := dial(t, a.context(cut.address, alsoCut.address, well.address))
	for range 3 {
		if _, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if well.calls.Load() != 3 {
		t.Errorf("%d of 3 calls were made at the server that is well", well.calls.Load())
	}
	// A client that knows no other server gets the error.
	alone := dial(t, a.context(cut.address))
	if _, err := alone.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); !client.NoLeader(err) {
		t.Errorf("a server alone that is cut off: %v", err)
	}
}

// A call that may have been executed is retried, too, if its key allows it. If the other server refuses it then, the
// outcome is still uncertain.
func TestUncertainCallIsRetriedAndStaysUncertain(t *testing.T) {
	a := newAuthority(t, "one")
	cut, other := a.servePasser(), a.servePasser()
	cut.cut.Store(true)
	cut.unsure.Store(true)
	other.cut.Store(true)
	_, err := dial(t, a.context(cut.address, other.address)).Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{})
	if other.calls.Load() == 0 {
		t.Error("the other server was not asked")
	}
	if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "not known whether") {
		t.Errorf("the error is %v", err)
	}
}

// A call on a shortcut to a leader that is now cut off is retried the usual way.
func TestCallIsRetriedTheUsualWayWhenTheShortcutFails(t *testing.T) {
	a := newAuthority(t, "one")
	usual, leader := a.servePasser(), a.servePasser()
	usual.leader.Store(leader.address)
	c := dial(t, a.context(usual.address))
	for leader.calls.Load() == 0 {
		if _, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	usual.leader.Store("")
	leader.cut.Store(true)
	if _, err := c.Cluster().GetCluster(t.Context(), &cloudlessv1.GetClusterRequest{}); err != nil {
		t.Errorf("the usual server leads now, and the call ended with: %v", err)
	}
}
