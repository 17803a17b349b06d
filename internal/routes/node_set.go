package routes

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Set is what the nodes of one class must know. It never changes: another state makes another set, which shares the messages
// that are still the same.
type Set struct {
	settings   *v1.Ingress
	routes     map[string]*v1.IngressRoute
	certs      map[string]*Certificate
	services   map[string]*v1.IngressService
	challenges map[string]*Challenge
	// base is the set before, if nothing but these services has changed since; otherwise nil.
	base            *Set
	changedServices map[string]bool
}

// nothing is for nodes that answer for no route.
var nothing = &Set{}

// Empty reports whether the node answers for no route.
func (s *Set) Empty() bool { return len(s.routes) == 0 }

// For is what a node with these labels must know now.
func (i *Ingress) For(labels map[string]string) *Set {
	class := i.classOf(labels)
	if class == "" {
		return nothing
	}
	if i.classes[class] == nil {
		i.classes[class] = i.renew(class, nothing)
	}
	return i.classes[class]
}

// renew returns the set of a class, which is the old one if nothing differs.
func (i *Ingress) renew(class string, old *Set) *Set {
	chosen := map[string]bool{}
	for text := range strings.SplitSeq(class, "\n") {
		chosen[text[1:]] = true
	}
	s := &Set{settings: i.settings, routes: map[string]*v1.IngressRoute{}, certs: map[string]*Certificate{}, services: map[string]*v1.IngressService{}}
	for uid, r := range i.routes {
		if !chosen[r.selector] {
			continue
		}
		s.routes[uid] = r.message
		if c := i.certs[r.message.GetCertificateUid()]; c != nil {
			s.certs[r.message.GetCertificateUid()] = c
		}
		for _, service := range r.message.GetServiceUids() {
			if one := i.services[service]; one != nil {
				s.services[service] = one
			}
		}
	}
	if s.Empty() {
		return nothing
	}
	s.challenges = maps.Clone(i.challenges)
	if s.same(old) {
		return old
	}
	return s
}

// withServices is a set in which only services have changed: routes still lead to the same ones.
func (i *Ingress) withServices(old *Set) *Set {
	s := *old
	s.base, s.changedServices, s.services = old, i.changedServices, maps.Clone(old.services)
	concerned := false
	for uid := range i.changedServices {
		if old.services[uid] == nil {
			continue
		}
		concerned = true
		if s.services[uid] = i.services[uid]; s.services[uid] == nil {
			delete(s.services, uid)
		}
	}
	old.base = nil // so that sets do not keep all earlier ones
	if !concerned {
		return old
	}
	return &s
}

// same reports whether two sets have the same messages.
func (s *Set) same(other *Set) bool {
	return s.settings == other.settings && maps.Equal(s.routes, other.routes) && maps.Equal(s.certs, other.certs) &&
		maps.Equal(s.services, other.services) && maps.Equal(s.challenges, other.challenges)
}

// Unseal returns a key: that of the certificate with a uid, or of a challenge's certificate. It is nil if the key cannot be
// opened; nodes do not hear of the certificate then.
type Unseal func(uid string, challenge bool, sealed []byte) []byte

// Between is what a node must hear that knows one set and needs another, nil if that is nothing. From nil it is the full set.
// Many nodes ask for the same difference, which is computed once. The message must not be modified.
func (i *Ingress) Between(from, to *Set, unseal Unseal) *v1.IngressDown {
	key := [2]*Set{from, to}
	m, known := i.deltas[key]
	if !known {
		m = between(from, to, unseal)
		i.deltas[key] = m
	}
	return m
}

func between(from, to *Set, unseal Unseal) *v1.IngressDown {
	if from == to {
		return nil
	}
	if to.base == from && from != nil {
		m := &v1.IngressDown{}
		m.Services, m.RemovedServices = differ(only(from.services, to.changedServices), only(to.services, to.changedServices))
		return m
	}
	m := &v1.IngressDown{Full: from == nil}
	if from == nil {
		from = nothing
	}
	if m.GetFull() && !to.Empty() || to.settings != from.settings {
		m.Settings = to.settings
	}
	var certs []*Certificate
	var challenges []*Challenge
	m.Routes, m.RemovedRoutes = differ(from.routes, to.routes)
	m.Services, m.RemovedServices = differ(from.services, to.services)
	certs, m.RemovedCertificates = differ(from.certs, to.certs)
	challenges, m.RemovedChallenges = differ(from.challenges, to.challenges)
	for _, c := range certs {
		if key := unseal(c.Message.GetUid(), false, c.Sealed); key != nil {
			m.Certificates = append(m.Certificates, &v1.IngressCertificate{Uid: c.Message.GetUid(), Chain: c.Message.GetChain(), Key: key})
		}
	}
	for _, c := range challenges {
		one := c.Message
		if one.GetCertificate() != nil {
			key := unseal(one.GetUid(), true, c.Sealed)
			if key == nil {
				continue
			}
			one = proto.CloneOf(one)
			one.Certificate.Key = key
		}
		m.Challenges = append(m.Challenges, one)
	}
	return m
}

// only are the entries with these keys.
func only[T any](of map[string]T, keys map[string]bool) map[string]T {
	some := map[string]T{}
	for key := range keys {
		if one, exists := of[key]; exists {
			some[key] = one
		}
	}
	return some
}

// differ lists what is new or another one, and the uids of what is gone, in the order of their uids.
func differ[T comparable](from, to map[string]T) (changed []T, removed []string) {
	for _, uid := range slices.Sorted(maps.Keys(to)) {
		if old, known := from[uid]; !known || old != to[uid] {
			changed = append(changed, to[uid])
		}
	}
	for uid := range from {
		if _, stays := to[uid]; !stays {
			removed = append(removed, uid)
		}
	}
	slices.Sort(removed)
	return changed, removed
}

// LeadsTo lists the routes that lead to a service.
func LeadsTo(snap *state.Snapshot, s *v1.Service) (all []*v1.Route) {
	for r := range snap.Routes(s.GetMetadata().GetNamespace(), "") {
		for _, b := range r.GetSpec().GetBackends() {
			if b.GetService() == s.GetMetadata().GetName() { // never that of a bucket
				all = append(all, r)
				break
			}
		}
	}
	return all
}

// Serving is a route that serves a bucket; nil if there is none.
func Serving(snap *state.Snapshot, namespace, bucket string) *v1.Route {
	for r := range snap.Routes(namespace, "") {
		for _, b := range r.GetSpec().GetBackends() {
			if b.GetBucket() != nil && b.GetBucket().GetName() == bucket {
				return r
			}
		}
	}
	return nil
}
