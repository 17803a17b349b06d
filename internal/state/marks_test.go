package state_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// The version of a mark tells whether anything has changed that a placement relies on.
func TestChangesThatPlacementsRelyOnAdvanceMarks(t *testing.T) {
	store, index := state.New(), uint64(0)
	do := func(add func(*state.Batch)) {
		t.Helper()
		index++
		var b state.Batch
		add(&b)
		if _, err := store.Apply(index, b.Transaction(noon)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, layout, web uint64) {
		t.Helper()
		if s := store.Snapshot(); s.MarkVersion(state.MarkLayout) != layout || s.MarkVersion("web") != web {
			t.Fatalf("%s: the layout is at %d, web at %d, want %d and %d", what, s.MarkVersion(state.MarkLayout), s.MarkVersion("web"), layout, web)
		}
	}
	web := workload("web", "web")
	one := &v1.Replica{
		Metadata: &v1.Metadata{Uid: "one", Name: "one"},
		Spec:     &v1.ReplicaSpec{WorkloadUid: "web"}, Status: &v1.ReplicaStatus{},
	}
	edit := func(change func(r *v1.Replica)) {
		t.Helper()
		change(one)
		do(func(b *state.Batch) { b.Put(proto.CloneOf(one)) })
	}
	do(func(b *state.Batch) { b.Create(proto.CloneOf(web)); b.Create(proto.CloneOf(one)) })
	expect("a workload is created", 0, 0)
	do(func(b *state.Batch) { b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: "n", Name: "n"}}) })
	expect("a node is created", 2, 0)
	relabel := func(app string) {
		t.Helper()
		web.Metadata.Labels = map[string]string{"app": app}
		do(func(b *state.Batch) { b.Put(proto.CloneOf(web)) })
	}
	relabel("site")
	expect("the labels of a workload without placed replicas change", 2, 0)
	edit(func(r *v1.Replica) { r.Spec.NodeUid = "n" })
	edit(func(r *v1.Replica) { r.Status.Phase = "running" })
	expect("a replica is placed and runs", 2, 0)
	relabel("shop")
	expect("the labels of its workload change", 6, 0)
	web.Spec = &v1.WorkloadSpec{Image: "web:2"}
	relabel("shop")
	expect("the image of its workload changes", 6, 0)
	edit(func(r *v1.Replica) { r.Status.EndTime = timestamppb.New(noon) })
	expect("the replica ends", 6, 8)
	edit(func(r *v1.Replica) { r.Status.Reason = "tired" })
	relabel("site")
	expect("the reason of its end changes", 6, 8)
	do(func(b *state.Batch) { b.Delete(state.KindReplica, "one") })
	expect("the replica is deleted", 6, 8)
	do(func(b *state.Batch) { b.Delete(state.KindWorkload, "web") })
	expect("the workload is deleted", 12, 0)
	do(func(b *state.Batch) { b.Delete(state.KindNode, "n") })
	expect("the node is deleted", 13, 0)
}

// The marks of routes advance with what routes claim and, once there is a route, with what workloads publish. A check before
// all changes sees the marks as they were.
func TestClaimsOfRoutesAdvanceMarks(t *testing.T) {
	store, index := state.New(), uint64(0)
	do := func(what string, routes, published uint64, add func(*state.Batch)) {
		t.Helper()
		index++
		var b state.Batch
		add(&b)
		b.CheckFirst(state.KindMark, state.MarkRoutes, store.Snapshot().MarkVersion(state.MarkRoutes))
		if _, err := store.Apply(index, b.Transaction(noon)); err != nil {
			t.Fatal(err)
		}
		if s := store.Snapshot(); s.MarkVersion(state.MarkRoutes) != routes || s.MarkVersion(state.MarkPublished) != published {
			t.Errorf("%s: routes are at %d, published ports at %d, want %d and %d", what, s.MarkVersion(state.MarkRoutes), s.MarkVersion(state.MarkPublished), routes, published)
		}
	}
	web := workload("web", "web")
	publish := func(port int32) func(*state.Batch) {
		return func(b *state.Batch) {
			web.Spec = &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80, Publish: port}}}
			b.Put(proto.CloneOf(web))
		}
	}
	route := &v1.Route{Metadata: &v1.Metadata{Uid: "r", Name: "r", Namespace: "default"}, Spec: &v1.RouteSpec{Host: "a.org"}}
	change := func(f func(*v1.RouteSpec)) func(*state.Batch) {
		return func(b *state.Batch) { f(route.Spec); b.Put(proto.CloneOf(route)) }
	}
	do("a workload publishes before the first route", 0, 0, publish(8080))
	do("a route is created", 2, 0, change(func(*v1.RouteSpec) {}))
	do("a workload publishes another port", 2, 3, publish(8081))
	do("it stays as it is", 2, 3, publish(8081))
	do("a route leads elsewhere", 2, 3, change(func(s *v1.RouteSpec) { s.Backends = []*v1.RouteBackend{{Service: "api"}} }))
	do("a route has another host", 6, 3, change(func(s *v1.RouteSpec) { s.Host = "b.org" }))
	do("a route is deleted", 6, 3, func(b *state.Batch) { b.Delete(state.KindRoute, "r") })

	var late state.Batch
	late.Create(&v1.Route{Metadata: &v1.Metadata{Uid: "l", Name: "l", Namespace: "default"}, Spec: &v1.RouteSpec{Host: "a.org"}})
	late.CheckFirst(state.KindMark, state.MarkRoutes, 2)
	if _, err := store.Apply(index+1, late.Transaction(noon)); !state.MovedOn(err) {
		t.Errorf("a claim that was judged on an older state ends with %v", err)
	}
}

func TestTransactionsCannotChangeMarks(t *testing.T) {
	for what, change := range map[string]func(*state.Batch){
		"put":    func(b *state.Batch) { b.Put(&statev1.Mark{Metadata: &v1.Metadata{Uid: state.MarkLayout}}) },
		"delete": func(b *state.Batch) { b.Delete(state.KindMark, state.MarkLayout) },
	} {
		var b state.Batch
		change(&b)
		if _, err := state.New().Apply(1, b.Transaction(noon)); err == nil {
			t.Errorf("%s: it was accepted", what)
		} else if _, ok := errors.AsType[*state.InvalidError](err); !ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}
