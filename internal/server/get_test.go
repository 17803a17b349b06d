package server

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// Objects that the cluster creates are read by their names, like those that users create.
func TestObjectsOfEveryKindAreReadByName(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", inNamespace("shop"))})
	must(t, err)
	_, err = admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer})
	must(t, err)

	token, err := admin.GetToken(c.ctx, &v1.GetTokenRequest{Name: "ci"})
	if err != nil || token.GetSpec().GetRole() != core.RoleViewer {
		t.Errorf("token ci is %v, %v", token, err)
	}
	_, err = admin.GetToken(c.ctx, &v1.GetTokenRequest{Name: "ce"})
	wantCode(t, err, codes.NotFound, "token ce does not exist")

	all, err := admin.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Namespace: "shop"})
	must(t, err)
	if len(all.GetItems()) != 1 {
		t.Fatalf("namespace shop has the revisions %v", all.GetItems())
	}
	name := all.GetItems()[0].GetMetadata().GetName()
	revision, err := admin.GetRevision(c.ctx, &v1.GetRevisionRequest{Namespace: "shop", Name: name})
	if err != nil || revision.GetSpec().GetNumber() != 1 {
		t.Errorf("revision %s is %v, %v", name, revision, err)
	}
	_, err = admin.GetRevision(c.ctx, &v1.GetRevisionRequest{Name: name})
	wantCode(t, err, codes.NotFound, "does not exist in namespace default", "cloudless get revisions")
	elsewhere, err := admin.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Namespace: "lab"})
	if err != nil || len(elsewhere.GetItems()) != 0 {
		t.Errorf("namespace lab has the revisions %v, %v", elsewhere.GetItems(), err)
	}

	events, err := admin.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	uid := events.GetItems()[0].GetMetadata().GetName()
	if event, err := admin.GetEvent(c.ctx, &v1.GetEventRequest{Name: uid}); err != nil || event.GetMetadata().GetUid() != uid {
		t.Errorf("event %s is %v, %v", uid, event, err)
	}
	_, err = admin.GetEvent(c.ctx, &v1.GetEventRequest{Name: "none"})
	wantCode(t, err, codes.NotFound, "event none does not exist, or is no longer kept", "cloudless events")

	_, err = admin.GetReplica(c.ctx, &v1.GetReplicaRequest{Name: "web-1"})
	wantCode(t, err, codes.NotFound, "replica web-1 does not exist in namespace default")
	_, err = admin.GetLogin(c.ctx, &v1.GetLoginRequest{Name: "ghcr.io"})
	wantCode(t, err, codes.NotFound, "the cluster has no login to ghcr.io")
	_, err = v1.NewServerServiceClient(admin.conn).GetServer(c.ctx, &v1.GetServerRequest{Name: "nowhere"})
	wantCode(t, err, codes.NotFound, "server nowhere does not exist")

	cluster, err := admin.GetCluster(c.ctx, &v1.GetClusterRequest{Name: "cloudless"})
	if err != nil || cluster.GetMetadata().GetName() != "cloudless" {
		t.Errorf("the cluster is %v, %v", cluster, err)
	}
	_, err = admin.GetCluster(c.ctx, &v1.GetClusterRequest{Name: "other"})
	wantCode(t, err, codes.NotFound, "this is cluster cloudless, not other")
	configuration, err := admin.GetConfiguration(c.ctx, &v1.GetConfigurationRequest{Name: "configuration-1"})
	if err != nil || configuration.GetSpec().GetNumber() != 1 {
		t.Errorf("configuration 1 is %v, %v", configuration, err)
	}
	_, err = admin.GetConfiguration(c.ctx, &v1.GetConfigurationRequest{Name: "mine"})
	wantCode(t, err, codes.NotFound, "there is no configuration mine")
}

// Objects of different kinds may have the same name, and their events are told apart.
func TestEventsAreFilteredByTheKindOfTheirObject(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	_, err = admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Name: "web", Role: core.RoleViewer})
	must(t, err)
	for kind, want := range map[string][]string{"": {"token", "workload"}, "Token": {"token"}, "Workload": {"workload"}, "Node": nil} {
		answer, err := admin.ListEvents(c.ctx, &v1.ListEventsRequest{ObjectKind: kind, Object: "web"})
		must(t, err)
		var about []string
		for _, e := range answer.GetItems() {
			if e.GetSpec().GetReason() == "Created" { // replicas of web may have events too
				about = append(about, e.GetSpec().GetObjectKind())
			}
		}
		if !slices.Equal(about, want) {
			t.Errorf("kind %q: events about %v, want %v", kind, about, want)
		}
	}
}
