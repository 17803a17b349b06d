package state_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Created namespaces are objects like others: found by name and uid, watched, saved and restored. Namespaces in use are
// found by their workloads.
func TestNamespaces(t *testing.T) {
	store := state.New()
	_, feed := store.Subscribe()
	var b state.Batch
	for i, in := range []string{"shop", "default", "shop", "lab", "shop-2"} {
		b.Create(&v1.Workload{Metadata: &v1.Metadata{Uid: string(rune('a' + i)), Name: "web" + string(rune('a'+i)), Namespace: in}})
	}
	for _, name := range []string{"shop", "empty"} {
		b.Create(&v1.Namespace{
			Metadata: &v1.Metadata{Uid: "uid-" + name, Name: name}, Spec: &v1.NamespaceSpec{Quota: &v1.Quota{Replicas: new(int64(0))}},
		})
	}
	if _, err := store.Apply(1, b.Transaction(time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	changes, err := feed.Next(t.Context())
	seen := 0
	for _, c := range changes {
		if c.Kind == state.KindNamespace && c.Old == nil && c.New != nil {
			seen++
		}
	}
	if err != nil || seen != 2 {
		t.Errorf("the feed tells of %d, %v", seen, err)
	}
	var saved bytes.Buffer
	if err := store.Snapshot().Save(&saved); err != nil {
		t.Fatal(err)
	}
	restored := state.New()
	if err := restored.Restore(&saved); err != nil {
		t.Fatal(err)
	}
	for what, snap := range map[string]*state.Snapshot{"kept": store.Snapshot(), "restored": restored.Snapshot()} {
		n := snap.NamespaceByName("shop")
		if n != snap.Namespace("uid-shop") || n.GetSpec().GetQuota().Replicas == nil || n.GetMetadata().GetVersion() != 1 {
			t.Errorf("%s: shop is %v", what, n)
		}
		var made []string
		for n := range snap.Namespaces("") {
			made = append(made, n.GetMetadata().GetName())
		}
		if used := slices.Collect(snap.NamespacesInUse(state.KindWorkload)); !slices.Equal(made, []string{"empty", "shop"}) || !slices.Equal(used, []string{"default", "lab", "shop", "shop-2"}) {
			t.Errorf("%s: made are %v, in use %v", what, made, used)
		}
		for range snap.NamespacesInUse(state.KindWorkload) {
			break // iteration may stop early
		}
	}
	var twice state.Batch
	twice.Create(&v1.Namespace{Metadata: &v1.Metadata{Uid: "other", Name: "shop"}})
	if _, err := store.Apply(2, twice.Transaction(time.Unix(2, 0))); err == nil {
		t.Error("two have the same name")
	}
}
