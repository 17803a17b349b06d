package server

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

func TestMisspelledNamesGetASuggestion(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	c.join("box")
	c.newTokenSecret(&v1.CreateTokenRequest{Name: "laptop", Role: core.RoleNode})
	for _, name := range []string{"frontend", "backend"} {
		_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload(name)})
		must(t, err)
	}
	elsewhere := workload("batch")
	elsewhere.Metadata.Namespace = "nightly"
	_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: elsewhere})
	must(t, err)

	get := func(namespace, name string) error {
		_, err := admin.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Namespace: namespace, Name: name})
		return err
	}
	wantCode(t, get("", "frontned"), codes.NotFound, "workload frontned does not exist in namespace default; did you mean frontend?")
	wantCode(t, get("", "batch"), codes.NotFound, "does not exist in namespace default, but in namespace nightly: add -n nightly")
	wantCode(t, get("nihgtly", "batch"), codes.NotFound, "but in namespace nightly: add -n nightly")
	wantCode(t, get("nihgtly", "other"), codes.NotFound, "in namespace nihgtly, which is empty; did you mean namespace nightly?")
	wantCode(t, get("", "unheard-of"), codes.NotFound, "see: cloudless workload ls")
	wantCode(t, get("nightly", "unheard-of"), codes.NotFound, "see: cloudless workload ls -n nightly")
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Replica{Metadata: &v1.Metadata{Uid: "r", Name: "frontend-1", Namespace: "default"}, Spec: &v1.ReplicaSpec{Workload: "frontend"}})
	})
	wantCode(t, get("nightly", "frontend-1"), codes.NotFound, "workload frontend-1 does not exist in namespace nightly, but replica frontend-1 does in namespace default: add -n default")
	wantCode(t, get("", "frontend-1"), codes.NotFound, "it is a replica of workload frontend; name that one")
	for _, call := range []func(name string) error{
		func(name string) error {
			_, err := admin.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: name, Replicas: proto.Int32(1)})
			return err
		},
		func(name string) error {
			_, err := admin.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: name})
			return err
		},
		func(name string) error {
			_, err := admin.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Workload: name})
			return err
		},
	} {
		wantCode(t, call("bakcend"), codes.NotFound, "did you mean backend?")
	}
	_, err = admin.GetNode(c.ctx, &v1.GetNodeRequest{Name: "bxo"})
	wantCode(t, err, codes.NotFound, "node bxo does not exist; did you mean box?")
	servers := v1.NewServerServiceClient(admin.conn)
	_, err = servers.TransferLeader(c.ctx, &v1.TransferLeaderRequest{To: "far-away"})
	wantCode(t, err, codes.NotFound, "server far-away does not exist; see: cloudless server ls")
	_, err = servers.DeleteServer(c.ctx, &v1.DeleteServerRequest{Name: "far-away"})
	wantCode(t, err, codes.NotFound, "server far-away does not exist; see: cloudless server ls")
	_, err = admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "far-away"})
	wantCode(t, err, codes.NotFound, "node far-away does not exist; see: cloudless node ls")
	_, err = admin.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "laptpo"})
	wantCode(t, err, codes.NotFound, "token laptpo does not exist; did you mean laptop?")
	_, err = admin.GetImage(c.ctx, &v1.GetImageRequest{Name: "nothing:1"})
	wantCode(t, err, codes.NotFound, "image nothing:1 does not exist; see: cloudless image ls")
}

func TestRevisionsAreListedNewestFirstInPages(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	w := workload("web")
	for i := range 5 {
		w.Spec.Args = []string{fmt.Sprint(i + 1)}
		_, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: w})
		must(t, err)
	}
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("other")})
	must(t, err)
	var numbers []uint64
	token := ""
	for pages := 1; ; pages++ {
		answer, err := op.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Workload: "web", Page: &v1.Page{Size: 2, Token: token}})
		must(t, err)
		for _, r := range answer.GetItems() {
			numbers = append(numbers, r.GetSpec().GetNumber())
			if want := fmt.Sprint(r.GetSpec().GetNumber()); r.GetSpec().GetWorkload().GetArgs()[0] != want {
				t.Errorf("revision %s has arguments %q", want, r.GetSpec().GetWorkload().GetArgs())
			}
		}
		if token = answer.GetNext(); token == "" {
			if pages != 3 {
				t.Errorf("%d pages", pages)
			}
			break
		}
	}
	if fmt.Sprint(numbers) != "[5 4 3 2 1]" {
		t.Errorf("revisions %v", numbers)
	}
	_, err = op.ListRevisions(c.ctx, &v1.ListRevisionsRequest{Workload: "web", Page: &v1.Page{Token: "!"}})
	wantCode(t, err, codes.InvalidArgument, "page.token")
}

// A client that lists after it has the header of the watch misses nothing.
func TestEventsOfOneWorkload(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", nil)
	watch, err := op.WatchEvents(c.ctx, &v1.WatchEventsRequest{Namespace: "default", Workload: "web"})
	must(t, err)
	_, err = watch.Header()
	must(t, err)
	c.create(op, workload("web"))
	c.create(op, workload("web-2"))
	c.create(op, workload("other"))
	listed, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Namespace: "default", Workload: "web"})
	must(t, err)
	if len(listed.GetItems()) < 3 {
		t.Errorf("only %d events: %v", len(listed.GetItems()), listed)
	}
	names := map[string]bool{}
	for i := len(listed.GetItems()) - 1; i >= 0; i-- {
		want := listed.GetItems()[i]
		got, err := watch.Recv()
		must(t, err)
		if got.GetMetadata().GetUid() != want.GetMetadata().GetUid() {
			t.Errorf("watched %v, listed %v", got.GetSpec(), want.GetSpec())
		}
		names[want.GetSpec().GetObjectKind()+" "+want.GetSpec().GetObjectName()] = true
	}
	if !names["workload web"] || names["workload web-2"] || names["workload other"] || len(names) != 2 {
		t.Errorf("events about %v", names)
	}
}
