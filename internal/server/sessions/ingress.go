package sessions

import (
	"context"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Traffic receives what nodes report of the routes that they answer for. Its methods must not block.
type Traffic interface {
	// Began says that a node has a session: what it measured before may be lost.
	Began(node string)
	Reported(node string, up *v1.IngressUp)
	// Ended says that a node has no session any more.
	Ended(node string)
}

// noTraffic ignores what nodes report.
type noTraffic struct{}

func (noTraffic) Began(string)                   {}
func (noTraffic) Reported(string, *v1.IngressUp) {}
func (noTraffic) Ended(string)                   {}

// maxSamples bounds what one message of a node may hold; the agent sends the rest with the next ones.
const maxSamples = 20000

// ingress passes what nodes need for routes on to their sessions.
type ingress struct {
	wake chan struct{}

	noting  sync.Mutex
	changes []state.Change // noted since the last time

	mu   sync.Mutex
	view *routes.Ingress // nil until a session needs it
}

func newIngress() *ingress { return &ingress{wake: make(chan struct{}, 1)} }

// route notes a change of the state, if it concerns routes.
func (i *ingress) route(c state.Change) {
	if !routes.Matters(c) {
		return
	}
	i.noting.Lock()
	i.changes = append(i.changes, c)
	i.noting.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// forget drops everything: the next session that needs it computes it anew.
func (i *ingress) forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.noting.Lock()
	defer i.noting.Unlock()
	i.view, i.changes = nil, nil
}

// follow applies the changes that were noted, and reports whether any node may have to hear of them.
func (i *ingress) follow(snapshot func() *state.Snapshot) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.noting.Lock()
	changes := i.changes
	i.changes = nil
	i.noting.Unlock()
	return i.view != nil && i.view.Update(snapshot(), changes)
}

// spreadIngress wakes the sessions whose nodes may need something else for routes, until ctx ends.
func (s *Sessions) spreadIngress(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.ingress.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(networkPause):
		}
		if s.connected.count() == 0 {
			s.ingress.forget()
			continue
		}
		if s.ingress.follow(s.Store.Snapshot) {
			s.connected.each((*session).markIngress)
		}
	}
}

func (s *session) markIngress() { s.raise(&s.ingressDue) }

// sendIngress sends what the node does not know yet of the routes that it answers for. A node that answers for none gets an
// empty full set, so that it stops if it answered for some before.
func (s *Sessions) sendIngress(stream sessionStream, current *session) error {
	if !current.lower(&current.ingressDue) {
		return nil
	}
	if news := s.ingressNews(current); news != nil {
		return stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Ingress{Ingress: news}})
	}
	return nil
}

// ingressNews is what an agent must hear now; nil if that is nothing. Only the sender of the session calls it.
func (s *Sessions) ingressNews(current *session) *v1.IngressDown {
	s.ingress.mu.Lock()
	defer s.ingress.mu.Unlock()
	snap := s.Store.Snapshot()
	if s.ingress.view == nil {
		s.ingress.view = routes.NewIngress(snap)
	}
	known := current.ingressKnown
	current.ingressKnown = s.ingress.view.For(spec.NodeLabels(snap.Node(current.node)))
	return s.ingress.view.Between(known, current.ingressKnown, s.openKey)
}

// openKey opens the key of a certificate for the nodes that need it.
func (s *Sessions) openKey(uid string, challenge bool, sealed []byte) []byte {
	use := state.CertificateKeyContext(uid)
	if challenge {
		use = state.ChallengeKeyContext(uid)
	}
	key, err := s.unseal(sealed, use)
	if err != nil {
		s.Logger.Error("the key of a certificate cannot be opened, and nodes do not get it", "certificate", uid, "error", err)
		return nil
	}
	return key
}

// hearIngress handles what a node reports of its routes.
func (s *Sessions) hearIngress(node string, up *v1.IngressUp) {
	if len(up.GetTraffic()) > maxSamples {
		up.Traffic = up.GetTraffic()[:maxSamples]
	}
	s.traffic.Reported(node, up)
	for _, service := range up.GetWake() {
		s.wakeService(service)
	}
}
