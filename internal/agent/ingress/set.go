package ingress

import (
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// set is what the messages of servers add up to.
type set struct {
	settings   *v1.Ingress
	routes     map[string]*v1.IngressRoute
	certs      map[string]*v1.IngressCertificate
	challenges map[string]*v1.IngressChallenge
	services   map[string]*v1.IngressService
}

func newSet() *set {
	return &set{
		routes: map[string]*v1.IngressRoute{}, certs: map[string]*v1.IngressCertificate{},
		challenges: map[string]*v1.IngressChallenge{}, services: map[string]*v1.IngressService{},
	}
}

// empty reports whether the node answers for no route.
func (s *set) empty() bool { return len(s.routes) == 0 }

func (s *set) merge(d *v1.IngressDown) {
	if d.GetFull() {
		*s = *newSet()
	}
	if d.GetSettings() != nil {
		s.settings = d.GetSettings()
	}
	update(s.routes, d.GetRoutes(), d.GetRemovedRoutes(), (*v1.IngressRoute).GetUid)
	update(s.certs, d.GetCertificates(), d.GetRemovedCertificates(), (*v1.IngressCertificate).GetUid)
	update(s.challenges, d.GetChallenges(), d.GetRemovedChallenges(), (*v1.IngressChallenge).GetUid)
	update(s.services, d.GetServices(), d.GetRemovedServices(), (*v1.IngressService).GetUid)
}

func update[T any](known map[string]T, changed []T, removed []string, uid func(T) string) {
	for _, gone := range removed {
		delete(known, gone)
	}
	for _, one := range changed {
		known[uid(one)] = one
	}
}

// full is everything as one message.
func (s *set) full() *v1.IngressDown {
	return &v1.IngressDown{
		Full: true, Settings: s.settings, Routes: slices.Collect(maps.Values(s.routes)), Certificates: slices.Collect(maps.Values(s.certs)),
		Challenges: slices.Collect(maps.Values(s.challenges)), Services: slices.Collect(maps.Values(s.services)),
	}
}
