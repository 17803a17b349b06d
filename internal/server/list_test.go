package server

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"

	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func namesOf[T interface{ GetMetadata() *v1.Metadata }](items []T) []string {
	var all []string
	for _, i := range items {
		all = append(all, i.GetMetadata().GetName())
	}
	return all
}

func TestPagesTolerateConcurrentChanges(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	add := func(name string) {
		t.Helper()
		_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(name, replicasOf(0))})
		must(t, err)
	}
	remove := func(name string) {
		t.Helper()
		_, err := op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: name})
		must(t, err)
		c.until(func(snap *state.Snapshot) bool { return snap.WorkloadByName("default", name) == nil })
	}
	for _, name := range []string{"b", "d", "f", "h", "j"} {
		add(name)
	}
	page := func(token string) *v1.ListWorkloadsResponse {
		t.Helper()
		answer, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Page: &v1.Page{Size: 2, Token: token}})
		must(t, err)
		return answer
	}
	first := page("")
	remove("d") // the one that the token names
	add("a")    // before the token: not listed
	add("e")    // after the token: listed
	remove("h")
	second := page(first.GetNext())
	third := page(second.GetNext())
	got := slices.Concat(namesOf(first.GetItems()), namesOf(second.GetItems()), namesOf(third.GetItems()))
	if want := []string{"b", "d", "e", "f", "j"}; !slices.Equal(got, want) || third.GetNext() != "" {
		t.Errorf("the pages have %v and then %q, want %v", got, third.GetNext(), want)
	}
	exact := page(second.GetNext())
	if exact.GetNext() != "" {
		t.Error("a list that ends with its page promises another one")
	}
	_, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Page: &v1.Page{Token: "not a token!"}})
	wantCode(t, err, codes.InvalidArgument, "page.token")
	for _, foreign := range []string{"ZGVmYXVsdC93ZWI", base64.RawURLEncoding.EncodeToString([]byte("Node:n1"))} {
		_, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Page: &v1.Page{Token: foreign}})
		wantCode(t, err, codes.InvalidArgument, "not a token that this list has given")
	}
	_, err = op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Page: &v1.Page{Size: 1001}})
	wantCode(t, err, codes.InvalidArgument, "page.size")
}

func TestListsBySelectorAndNamespace(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	for i, labels := range []map[string]string{{"app": "web"}, {"app": "db"}, nil} {
		for _, namespace := range []string{"default", "test"} {
			_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(fmt.Sprintf("w%d", i), replicasOf(0), func(w *v1.Workload) {
				w.Metadata.Labels, w.Metadata.Namespace = labels, namespace
			})})
			must(t, err)
		}
	}
	for _, ask := range []struct {
		selection *v1.Selection
		want      []string
	}{
		{nil, []string{"w0", "w1", "w2", "w0", "w1", "w2"}},
		{&v1.Selection{Namespace: "test"}, []string{"w0", "w1", "w2"}},
		{&v1.Selection{Namespace: "none"}, nil},
		{&v1.Selection{Namespace: "test", Labels: "app=web"}, []string{"w0"}},
		{&v1.Selection{Namespace: "test", Labels: "app!=web"}, []string{"w1", "w2"}},
		{&v1.Selection{Labels: "!app"}, []string{"w2", "w2"}},
	} {
		answer, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Selection: ask.selection})
		must(t, err)
		if got := namesOf(answer.GetItems()); !slices.Equal(got, ask.want) {
			t.Errorf("%v: %v, want %v", ask.selection, got, ask.want)
		}
	}
	_, err := op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{Selection: &v1.Selection{Labels: "app in (web)"}})
	wantCode(t, err, codes.InvalidArgument)
	_, err = op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "w0", Namespace: "none"})
	wantCode(t, err, codes.NotFound, "in namespace none")
}

func TestReplicasAreListedByWorkloadNodeAndWhetherTheyHaveEnded(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	w := c.work("n1", idle)
	web := c.create(op, workload("web", replicasOf(2)))
	c.create(op, workload("db"))
	_, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "web", Replicas: proto.Int32(1)})
	must(t, err)
	c.running(web.GetMetadata().GetUid(), 1)
	for _, ask := range []struct {
		request *v1.ListReplicasRequest
		want    int
	}{
		{&v1.ListReplicasRequest{}, 2},
		{&v1.ListReplicasRequest{Ended: true}, 3},
		{&v1.ListReplicasRequest{Workload: "web"}, 1},
		{&v1.ListReplicasRequest{Node: w.node.GetMetadata().GetName()}, 2},
		{&v1.ListReplicasRequest{Node: "other"}, 0},
		{&v1.ListReplicasRequest{Selection: &v1.Selection{Namespace: "other"}}, 0},
	} {
		answer, err := op.ListReplicas(c.ctx, ask.request)
		must(t, err)
		if len(answer.GetItems()) != ask.want {
			t.Errorf("%v: %v, want %d", ask.request, namesOf(answer.GetItems()), ask.want)
		}
	}
}

func TestEventsAreListedNewestFirstAndByObject(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	c.create(op, workload("web"))
	c.create(op, workload("web-2")) // its name looks like that of a replica of web
	answer, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "web"})
	must(t, err)
	var reasons []string
	for i, e := range answer.GetItems() {
		reasons = append(reasons, e.GetSpec().GetReason())
		if i > 0 && e.GetMetadata().GetUid() > answer.GetItems()[i-1].GetMetadata().GetUid() {
			t.Error("an older event comes before a newer one")
		}
	}
	if want := []string{"Started", "Placed", "Created"}; !slices.Equal(reasons, want) {
		t.Errorf("the events of web are %v, want %v", reasons, want)
	}
	var all []string
	for token, more := "", true; more; more = token != "" {
		part, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Page: &v1.Page{Size: 3, Token: token}})
		must(t, err)
		all = append(all, namesOf(part.GetItems())...)
		token = part.GetNext()
	}
	if len(all) != c.Store.Snapshot().Count(state.KindEvent) {
		t.Errorf("the pages have %d events of %d", len(all), c.Store.Snapshot().Count(state.KindEvent))
	}
}

func TestImagesAreListedAndFound(t *testing.T) {
	c := newCluster(t)
	viewer := c.as(core.RoleViewer)
	one := c.push("team/hello:1")
	c.push("team/hello:2")
	c.push("app")
	var all []string
	for token, more := "", true; more; more = token != "" {
		part, err := viewer.ListImages(c.ctx, &v1.ListImagesRequest{Page: &v1.Page{Size: 1, Token: token}})
		must(t, err)
		all = append(all, namesOf(part.GetItems())...)
		token = part.GetNext()
	}
	if want := []string{"app:latest", "team/hello:1", "team/hello:2"}; !slices.Equal(all, want) {
		t.Errorf("the pages have %v, want %v", all, want)
	}
	for _, name := range []string{"team/hello:1", "team/hello@" + one} {
		found, err := viewer.GetImage(c.ctx, &v1.GetImageRequest{Name: name})
		must(t, err)
		if found.GetStatus().GetDigest() != one {
			t.Errorf("%s is %v", name, found)
		}
	}
	_, err := viewer.GetImage(c.ctx, &v1.GetImageRequest{Name: "nope:1"})
	wantCode(t, err, codes.NotFound, "image nope:1 does not exist")
	_, err = viewer.GetImage(c.ctx, &v1.GetImageRequest{Name: "example.com/x:1"})
	wantCode(t, err, codes.NotFound, "not in the cluster's own registry")
}

func TestNodeIsShownWithItsUsage(t *testing.T) {
	c := newCluster(t)
	viewer, m := c.as(core.RoleViewer), c.join("n1")
	stream := m.connect(c.ctx)
	assignments(t, stream)
	must(t, stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: &v1.Heartbeat{Usage: &v1.NodeResources{Cpu: "1", Memory: "2Gi"}}}}))
	// The report follows the heartbeat: once it is in the state, the heartbeat has been
	// received.
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: "r", Name: "r", Namespace: "default"},
			Spec:     &v1.ReplicaSpec{NodeUid: m.uid()}, Status: &v1.ReplicaStatus{Phase: spec.PhasePlaced},
		})
	})
	must(t, report(stream, "r", &v1.ReplicaStatus{Phase: spec.PhaseRunning}))
	c.until(func(snap *state.Snapshot) bool {
		return snap.Replica("r").GetStatus().GetPhase() == spec.PhaseRunning
	})
	n, err := viewer.GetNode(c.ctx, &v1.GetNodeRequest{Name: "n1"})
	must(t, err)
	if n.GetStatus().GetUsage().GetMemory() != "2Gi" || n.GetStatus().GetLastSeen() == nil || n.GetStatus().GetRequested() == nil {
		t.Errorf("the node is shown as %v", n)
	}
	if stored := c.Store.Snapshot().Node(m.uid()).GetStatus(); stored.GetUsage() != nil {
		t.Errorf("usage is in the replicated state: %v", stored)
	}
	list, err := viewer.ListNodes(c.ctx, &v1.ListNodesRequest{Labels: "disk=ssd"})
	must(t, err)
	if len(list.GetItems()) != 0 {
		t.Errorf("a selector that matches nothing found %v", namesOf(list.GetItems()))
	}
	_, err = viewer.GetNode(c.ctx, &v1.GetNodeRequest{Name: "nope"})
	wantCode(t, err, codes.NotFound, "node nope does not exist")
}

// Servers, tokens and images have selectors and pages like every other kind.
func TestServersTokensAndImagesHaveSelectorsAndPages(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for _, name := range []string{"ci-1", "ci-2"} {
		_, err := admin.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: name, Labels: map[string]string{"team": "web"}})
		must(t, err)
	}
	tokens, err := admin.ListTokens(c.ctx, &v1.ListTokensRequest{Labels: "team=web"})
	must(t, err)
	if got := namesOf(tokens.GetItems()); !slices.Equal(got, []string{"ci-1", "ci-2"}) {
		t.Errorf("the tokens of the team are %v", got)
	}

	labelled, err := random.Image(64, 1)
	must(t, err)
	labelled, err = mutate.Config(labelled, oci.Config{Labels: map[string]string{"team": "web"}})
	must(t, err)
	c.pushContent("hello:1", labelled)
	c.push("other:1")
	images, err := admin.ListImages(c.ctx, &v1.ListImagesRequest{Labels: "team=web"})
	must(t, err)
	if got := namesOf(images.GetItems()); !slices.Equal(got, []string{"hello:1"}) {
		t.Errorf("the images of the team are %v", got)
	}

	for i, zone := range []string{"a", "b", "b"} {
		c.change(func(_ *state.Snapshot, b *state.Batch) {
			b.Create(&v1.Server{
				Metadata: &v1.Metadata{Uid: state.NewUID(), Name: fmt.Sprintf("s-%d", i+1)},
				Spec:     &v1.ServerSpec{Address: fmt.Sprintf("192.0.2.%d:7700", i+1), Zone: zone},
			})
		})
	}
	servers := v1.NewServerServiceClient(admin.conn)
	inZone, err := servers.ListServers(c.ctx, &v1.ListServersRequest{Labels: "zone=b"})
	must(t, err)
	if got := namesOf(inZone.GetItems()); !slices.Equal(got, []string{"s-2", "s-3"}) {
		t.Errorf("the servers of the zone are %v", got)
	}
	var all []string
	for page := (&v1.Page{Size: 2}); ; {
		answer, err := servers.ListServers(c.ctx, &v1.ListServersRequest{Page: page})
		must(t, err)
		all = append(all, namesOf(answer.GetItems())...)
		if page.Token = answer.GetNext(); page.Token == "" {
			break
		}
	}
	if len(all) < 3 || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("the pages have the servers %v", all)
	}
}
