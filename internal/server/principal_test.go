package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// A removed server gets no answers to its own calls, nor to calls that it relays, nor to its calls through a server
// that has not heard of the removal. It can distinguish this refusal from any other.
func TestRemovedServerLearnsThatItWasRemoved(t *testing.T) {
	c := newCluster(t)
	const words = "this server was removed from the cluster"
	gone, known := serverID(t, c, "gone"), serverID(t, c, "other")
	c.addServers("gone", "other")
	other := c.dial(c.certificateOf(identity.KindServer, "other"), "")
	removed := c.dial(c.certificateOf(identity.KindServer, "gone"), "")
	call := func(as *user, said core.Principal) error {
		ctx := c.ctx
		if said.Role != "" {
			ctx = metadata.NewOutgoingContext(ctx, auth.MetadataOf(said))
		}
		_, err := v1.NewPeerServiceClient(as.conn).GetProgress(ctx, &v1.GetProgressRequest{})
		return err
	}
	about := core.Principal{ID: gone, Role: core.RoleServer}
	must(t, call(removed, core.Principal{}))
	must(t, call(other, about))

	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Put(&statev1.Revocation{Metadata: &v1.Metadata{Uid: gone.Name()}, Id: gone.String()})
	})
	removed = c.dial(c.certificateOf(identity.KindServer, "gone"), "") // its old connection was closed
	for what, err := range map[string]error{
		"its own call":            call(removed, core.Principal{}),
		"a call that it passes":   call(removed, core.Principal{ID: known, Role: core.RoleServer}),
		"a call passed on for it": call(other, about),
	} {
		if wantCode(t, err, codes.Unauthenticated, words, "cloudless down --purge"); !core.HasReason(err, core.ReasonRemoved) {
			t.Errorf("%s is answered with %v, which does not say so without words", what, err)
		}
	}
	must(t, call(other, core.Principal{}))
	if err := knock(c.ctx, removed.conn, v1.PeerService_PassCalls_FullMethodName, true); !core.HasReason(err, core.ReasonRemoved) {
		t.Errorf("its stream is answered with %v", err)
	}
}

// addServers makes servers members of the cluster.
func (c *cluster) addServers(uids ...string) {
	c.t.Helper()
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for _, uid := range uids {
			b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: uid, Name: uid}, Spec: &v1.ServerSpec{Address: uid + ".invalid:7700"}})
		}
	})
}

func serverID(t *testing.T, c *cluster, uid string) identity.ID {
	t.Helper()
	id, err := identity.NewID(c.ca.Trust().Cluster(), identity.KindServer, uid)
	must(t, err)
	return id
}

// relaying returns a context in which a server relays the call of another caller.
func relaying(c *cluster, p core.Principal) context.Context {
	return metadata.NewOutgoingContext(c.ctx, auth.MetadataOf(p))
}

// The certificate of a server that was never a member is good for the calls that servers make before they know the
// state, and for none that users make.
func TestOnlyMembersRelayCalls(t *testing.T) {
	c := newCluster(t)
	admin := c.bearerOf(core.RoleAdmin)
	for _, uid := range []string{"member", "impostor"} {
		as := c.dial(c.certificateOf(identity.KindServer, uid), "")
		if uid == "member" {
			c.addServers(uid)
			_, err := as.ListTokens(relaying(c, admin), &v1.ListTokensRequest{})
			must(t, err)
			if got := c.relayedStatus(uid, admin, "/v1/tokens"); got != http.StatusOK {
				t.Errorf("by HTTP the member gets %d", got)
			}
			continue
		}
		_, err := as.ListTokens(relaying(c, admin), &v1.ListTokensRequest{})
		wantCode(t, err, codes.Unauthenticated, "server impostor is not a member")
		if got := c.relayedStatus(uid, admin, "/v1/tokens"); got != http.StatusUnauthorized {
			t.Errorf("by HTTP the impostor gets %d", got)
		}
		_, err = v1.NewPeerServiceClient(as.conn).GetProgress(c.ctx, &v1.GetProgressRequest{})
		must(t, err)
	}
}

// Only members can write copies of images.
func TestOnlyMembersWriteCopies(t *testing.T) {
	c := newCluster(t)
	c.addServers("member")
	for uid, want := range map[string]int{"member": http.StatusAccepted, "impostor": http.StatusUnauthorized} {
		as := c.certificateOf(identity.KindServer, uid)
		response, body := c.request(as, http.MethodPost, "/v2/app/blobs/uploads/", "", auth.HeaderCopy, "true")
		if response.StatusCode != want {
			t.Errorf("the %s gets %s: %s", uid, response.Status, body)
		}
	}
}

// The leader may learn of a new server while it relays its first call.
func TestUnknownServerIsLookedUpOnce(t *testing.T) {
	c := newCluster(t)
	catchUps := 0
	c.catchUpWithLeader = func(context.Context) error {
		catchUps++
		c.addServers("s-2")
		return nil
	}
	as := c.dial(c.certificateOf(identity.KindServer, "s-2"), "")
	_, err := as.ListTokens(relaying(c, c.bearerOf(core.RoleAdmin)), &v1.ListTokensRequest{})
	must(t, err)
	if catchUps != 1 {
		t.Errorf("%d catch-ups", catchUps)
	}
}

// The state decides what a token may do, whatever a member claims.
func TestRelayedRoleIsIgnored(t *testing.T) {
	c := newCluster(t)
	c.addServers("s-2")
	as := c.dial(c.certificateOf(identity.KindServer, "s-2"), "")
	create := func(p core.Principal) error {
		_, err := as.CreateToken(relaying(c, p), &v1.CreateTokenRequest{Role: core.RoleAdmin})
		return err
	}
	viewer := c.bearerOf(core.RoleViewer)
	viewer.Role = core.RoleAdmin
	wantCode(t, create(viewer), codes.PermissionDenied, `role "viewer"`)
	viewer.TokenUID = ""
	wantCode(t, create(viewer), codes.Unauthenticated, "the API token is not valid")
	node := core.Principal{Role: core.RoleAdmin}
	var err error
	node.ID, err = identity.NewID(c.ca.Trust().Cluster(), identity.KindNode, c.join("machine").uid())
	must(t, err)
	wantCode(t, create(node), codes.PermissionDenied, `role "node"`)
	wantCode(t, create(core.Principal{ID: serverID(t, c, "s-2"), Role: core.RoleAdmin}), codes.PermissionDenied, `role "server"`)
	// The same holds for its expiry.
	expired := c.bearerOf(core.RoleAdmin)
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		old := snap.Token(expired.TokenUID)
		token := proto.CloneOf(old)
		token.Spec.ExpireTime = timestamppb.New(time.Now().Add(-time.Hour))
		b.Update(token, old.GetMetadata().GetVersion())
	})
	wantCode(t, create(expired), codes.Unauthenticated, "expired at")
}

// bearerOf returns the bearer of a new token.
func (c *cluster) bearerOf(role string) core.Principal {
	c.t.Helper()
	made, err := c.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: role})
	must(c.t, err)
	id, err := identity.NewID(c.ca.Trust().Cluster(), identity.KindUser, made.GetToken().GetMetadata().GetName())
	must(c.t, err)
	return core.Principal{ID: id, Role: role, TokenUID: made.GetToken().GetMetadata().GetUid(), Expires: made.GetToken().GetSpec().GetExpireTime().AsTime()}
}

// relayedStatus calls by HTTP, as a server that relays for another caller.
func (c *cluster) relayedStatus(server string, p core.Principal, path string) int {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "https://"+c.Address()+path, nil)
	must(c.t, err)
	for key, values := range auth.MetadataOf(p) {
		request.Header[http.CanonicalHeaderKey(key)] = values
	}
	response, err := c.web(c.certificateOf(identity.KindServer, server)).Do(request)
	must(c.t, err)
	must(c.t, response.Body.Close())
	return response.StatusCode
}
