package sessions

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// numbered are the names of namespaces.
func numbered(prefix string, count int) (all []string) {
	for i := range count {
		all = append(all, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return all
}

// withServicesIn is a state with a service in each of these namespaces.
func withServicesIn(t *testing.T, namespaces ...string) *state.Store {
	t.Helper()
	var all []state.Object
	for _, namespace := range namespaces {
		all = append(all, &v1.Service{Metadata: &v1.Metadata{Uid: "s-" + namespace, Name: "api", Namespace: namespace}})
	}
	return storeWith(t, all...)
}

// follower is a session that has its first full set.
func follower(store *state.Store, hello ...string) (*session, []*v1.Network) {
	one := &session{wake: make(chan struct{}, 1), networkFull: true, asked: map[string]bool{}}
	one.follow(hello, store.Snapshot)
	return one, one.takeNetwork(store.Snapshot)
}

// asks is the answer to an agent that asks for namespaces.
func (s *session) asks(store *state.Store, namespaces ...string) *v1.Network {
	s.follow(namespaces, store.Snapshot)
	if sent := s.takeNetwork(store.Snapshot); len(sent) > 0 {
		return sent[0]
	}
	return nil
}

func TestNamespacesWithoutServicesLeaveRoomForOthers(t *testing.T) {
	store := withServicesIn(t, "shop")
	typos := numbered("typo", spec.MaxFollowed)
	one, full := follower(store, typos...)
	if !slices.Equal(full[0].GetFollowed(), typos) {
		t.Errorf("the full set answers %v", full[0].GetFollowed())
	}
	for _, namespace := range numbered("other", spec.MaxFollowed) {
		if got := one.asks(store, namespace); !slices.Equal(got.GetFollowed(), []string{namespace}) {
			t.Fatalf("the answer about %s is %v", namespace, got)
		}
	}
	if got := one.asks(store, "shop"); !slices.Equal(got.GetFollowed(), []string{"shop"}) || len(got.GetServices()) != 1 {
		t.Errorf("the answer about shop is %v", got)
	}
}

// A node that is told that it has all services of a namespace answers that others do not exist.
func TestNamespaceBeyondTheLimitIsNotConfirmed(t *testing.T) {
	many := numbered("shop", spec.MaxFollowed)
	store := withServicesIn(t, append(many, "late")...)
	one, _ := follower(store, many...)
	if got := one.asks(store, "late"); got != nil {
		t.Errorf("the answer is %v", got)
	}
	if got := one.asks(store, "late", "typo", many[0]); !slices.Equal(got.GetFollowed(), []string{"typo", many[0]}) || len(got.GetServices()) != 0 {
		t.Errorf("the answer is %v", got)
	}
	var b state.Batch
	b.Delete(state.KindService, "s-"+many[0])
	_, err := store.Apply(2, b.Transaction(time.Now()))
	must.Succeed(t, err)
	if got := one.asks(store, "late"); !slices.Equal(got.GetFollowed(), []string{"late"}) || len(got.GetServices()) != 1 {
		t.Errorf("after another namespace lost its services, the answer is %v", got)
	}
}
