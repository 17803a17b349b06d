package relay

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
)

// Clients try another server if one is unavailable, and give up if they are unknown.
func TestRemovedServerSendsCallersElsewhere(t *testing.T) {
	expelled := 0
	r := &Router{expel: func() { expelled++ }}
	node, err := identity.NewID("home", identity.KindNode, "n-1")
	must.Succeed(t, err)
	server, err := identity.NewID("home", identity.KindServer, "s-1")
	must.Succeed(t, err)
	removed := core.WithReasons(codes.Unauthenticated, "removed", core.ReasonRemoved)
	elsewhere := func(err error) error {
		return r.elsewhere(core.WithPrincipal(t.Context(), core.Principal{ID: node}), err)
	}
	err = core.StatusOf(elsewhere(removed))
	coretest.WantCode(t, err, codes.Unavailable, "was removed", "ask another one")
	if core.HasReason(err, core.ReasonRemoved) || !core.HasReason(err, core.ReasonNoLeader) {
		t.Error("the caller takes itself for removed, or does not try another server")
	}
	if expelled != 1 {
		t.Error("the server does not end that has learnt that it was removed")
	}
	if _ = r.elsewhere(core.WithPrincipal(t.Context(), core.Principal{ID: server}), removed); expelled != 1 {
		t.Error("a server ends because another one was removed")
	}
	err = core.StatusOf(elsewhere(core.WithReasons(codes.Unauthenticated, "not a member", core.ReasonNotMember)))
	coretest.WantCode(t, err, codes.Unavailable, "is not a member", "ask another one")
	if !core.HasReason(err, core.ReasonNoLeader) || expelled != 1 {
		t.Error("the caller does not try another server, or the called one ends")
	}
	coretest.WantCode(t, core.StatusOf(elsewhere(status.Error(codes.Unauthenticated, "unknown token"))), codes.Unauthenticated)
	if elsewhere(nil) != nil {
		t.Error("what went well is an error")
	}
}

// A call waits for an election, but not again for a leader that is known to be missing.
func TestPatienceWithoutALeader(t *testing.T) {
	for leaderless, want := range map[time.Duration]time.Duration{
		0: LeaderPatience, 3 * time.Second: LeaderPatience - 3*time.Second, LeaderPatience: leastPatience, time.Hour: leastPatience,
	} {
		if got := patienceAfter(LeaderPatience, leaderless); got != want {
			t.Errorf("after %s without a leader a call waits for %s, not %s", leaderless, got, want)
		}
	}
}

// A client that sends an outdated list of servers gets the right one.
func TestClientWithAnOutdatedListGetsAllServers(t *testing.T) {
	all := []string{"192.0.2.1:7700", "192.0.2.2:7700"}
	g := &Router{addresses: func() []string { return all }}
	for known, told := range map[string]bool{
		"192.0.2.1:7700":                               true,
		"192.0.2.2:7700,192.0.2.1:7700":                false,
		"192.0.2.2:7700,192.0.2.1:7700,192.0.2.3:7700": true,
		"": true,
	} {
		header := &recordedHeader{}
		g.tellServers(header.context(metadata.Pairs(metadataKnown, known)))
		if got := len(header.md.Get(metadataServers)) == 1; got != told {
			t.Errorf("a client that knows %q got %v", known, got)
		}
	}
}

// recordedHeader is a call that records its header.
type recordedHeader struct{ md metadata.MD }

func (h *recordedHeader) context(incoming metadata.MD) context.Context {
	return grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(context.Background(), incoming), h)
}

func (*recordedHeader) Method() string { return "/test/Call" }

func (h *recordedHeader) SetHeader(md metadata.MD) error {
	h.md = metadata.Join(h.md, md)
	return nil
}

func (h *recordedHeader) SendHeader(md metadata.MD) error { return h.SetHeader(md) }
func (*recordedHeader) SetTrailer(metadata.MD) error      { return nil }
