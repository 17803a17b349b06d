package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// TestRemovedServerIsToldInWords: neither its own calls are answered, nor what it passes on, nor what a server passes
// on for it that has not heard of the removal. It can tell the answer from any other one.
func TestRemovedServerIsToldInWords(t *testing.T) {
	c := newCluster(t)
	const words = "this server was removed from the cluster"
	gone, err := identity.NewID(c.ca.Trust().Cluster(), identity.KindServer, "gone")
	must(t, err)
	known, err := identity.NewID(c.ca.Trust().Cluster(), identity.KindServer, "other")
	must(t, err)
	other := c.dial(c.certificateOf(identity.KindServer, "other"), "")
	removed := c.dial(c.certificateOf(identity.KindServer, "gone"), "")
	call := func(as *user, said Principal) error {
		ctx := c.ctx
		if said.Role != "" {
			ctx = metadata.NewOutgoingContext(ctx, said.metadata())
		}
		_, err := v1.NewPeerServiceClient(as.conn).GetProgress(ctx, &v1.GetProgressRequest{})
		return err
	}
	about := Principal{ID: gone, Role: roleServer}
	must(t, call(removed, Principal{}))
	must(t, call(other, about))

	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Put(&statev1.Revocation{Metadata: &v1.Metadata{Uid: gone.Name()}, Id: gone.String()})
	})
	removed = c.dial(c.certificateOf(identity.KindServer, "gone"), "") // what it had was cut
	for what, err := range map[string]error{
		"its own call":            call(removed, Principal{}),
		"a call that it passes":   call(removed, Principal{ID: known, Role: roleServer}),
		"a call passed on for it": call(other, about),
	} {
		if wantCode(t, err, codes.Unauthenticated, words, "cloudless down --purge"); !hasReason(err, reasonRemoved) {
			t.Errorf("%s is answered with %v, which does not say so without words", what, err)
		}
	}
	must(t, call(other, Principal{}))
	if err := knock(c.ctx, removed.conn, v1.PeerService_PassCalls_FullMethodName, true); !hasReason(err, reasonRemoved) {
		t.Errorf("its stream is answered with %v", err)
	}
}
