package sessions

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/gcpacer"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// heard is what the leader's book heard, and which services were woken.
type heard struct{ calls, woken []string }

func (h *heard) Began(node string) { h.calls = append(h.calls, "began "+node) }
func (h *heard) Reported(node string, up *v1.IngressUp) {
	for _, sample := range up.GetTraffic() {
		h.calls = append(h.calls, node+" "+sample.GetRouteUid())
	}
}
func (h *heard) Ended(node string) { h.calls = append(h.calls, "ended "+node) }

// shopRoutes are a node, and a route with a certificate whose key is sealed as the given text.
func shopRoutes(sealed string) []state.Object {
	in := func(uid, name string) *v1.Metadata { return &v1.Metadata{Uid: uid, Name: name, Namespace: "default"} }
	return []state.Object{
		&v1.Node{Metadata: &v1.Metadata{Uid: "n-eu", Name: "eu", Labels: map[string]string{"zone": "eu"}}},
		&v1.Service{Metadata: in("s-api", "api")},
		&v1.Certificate{Metadata: in("cert", "mine"), Spec: &v1.CertificateSpec{Chain: "CHAIN"}},
		&statev1.CertificateKey{Metadata: &v1.Metadata{Uid: "cert"}, Sealed: []byte(sealed)},
		&v1.Route{Metadata: in("rt-shop", "shop"), Spec: &v1.RouteSpec{
			Host: "shop.example.org", Nodes: "zone=eu", Backends: []*v1.RouteBackend{{Service: "api"}}, Tls: &v1.RouteTls{Mode: "own", Certificate: "mine"},
		}},
	}
}

// ingressSessions are sessions that open keys which were sealed by putting their use before them.
func ingressSessions(t *testing.T, store *state.Store, book Traffic, wake func(string)) *Sessions {
	t.Helper()
	return New(Options{
		Core:      &core.Core{UID: "s-1", Store: store, Clock: time.Now, Logger: slog.New(slog.DiscardHandler)},
		Collector: (*gcpacer.Collector)(nil), Traffic: book, Wake: wake,
		Unseal: func(sealed []byte, use string) ([]byte, error) {
			if string(sealed) != "sealed for "+use {
				return nil, errors.New("it was not sealed for that")
			}
			return []byte("KEY"), nil
		},
	})
}

func TestNodeHearsOfItsRoutesWithOpenKeys(t *testing.T) {
	store := storeWith(t, shopRoutes("sealed for "+state.CertificateKeyContext("cert"))...)
	s := ingressSessions(t, store, nil, nil)
	one := &session{node: "n-eu"}
	full := s.ingressNews(one)
	if !full.GetFull() || len(full.GetRoutes()) != 1 || len(full.GetServices()) != 1 || string(full.GetCertificates()[0].GetKey()) != "KEY" {
		t.Fatalf("the node hears %v", full)
	}
	if again := s.ingressNews(one); again != nil {
		t.Errorf("it hears again %v", again)
	}
	feed := store.Follow()
	feed.Newest()
	var b state.Batch
	b.Delete(state.KindRoute, "rt-shop")
	_, err := store.Apply(2, b.Transaction(time.Now()))
	must.Succeed(t, err)
	for _, c := range feed.Newest().Changes {
		s.Route(c)
	}
	if !s.ingress.follow(store.Snapshot) {
		t.Fatal("the removal of a route concerns no node")
	}
	gone := s.ingressNews(one)
	if gone.GetFull() || !slices.Equal(gone.GetRemovedRoutes(), []string{"rt-shop"}) || !slices.Equal(gone.GetRemovedCertificates(), []string{"cert"}) {
		t.Errorf("after the route was removed, the node hears %v", gone)
	}
}

// A session of a node that answers for nothing begins with an empty set: the node may have answered for routes before.
func TestNodeWithoutRoutesHearsSo(t *testing.T) {
	s := ingressSessions(t, storeWith(t, shopRoutes("x")...), nil, nil)
	if got := s.ingressNews(&session{node: "n-unknown"}); !got.GetFull() || len(got.GetRoutes())+len(got.GetCertificates()) != 0 {
		t.Errorf("it hears %v", got)
	}
}

func TestKeyThatIsSealedForSomethingElseReachesNoNode(t *testing.T) {
	s := ingressSessions(t, storeWith(t, shopRoutes("sealed for "+state.ChallengeKeyContext("cert"))...), nil, nil)
	if got := s.ingressNews(&session{node: "n-eu"}); len(got.GetRoutes()) != 1 || len(got.GetCertificates()) != 0 {
		t.Errorf("the node hears %v", got)
	}
}

func TestReportsReachTheBookAndWakeServices(t *testing.T) {
	book := &heard{}
	s := ingressSessions(t, state.New(), book, func(service string) { book.woken = append(book.woken, service) })
	s.hearIngress("n-eu", &v1.IngressUp{Traffic: []*v1.TrafficSample{{RouteUid: "rt-shop"}}, Wake: []string{"s-api"}})
	if !slices.Equal(book.calls, []string{"n-eu rt-shop"}) || !slices.Equal(book.woken, []string{"s-api"}) {
		t.Errorf("the book heard %v, and woken are %v", book.calls, book.woken)
	}
}
