// Package config adds up what a node has been told of routes: a full set, then deltas.
//
// It keeps the messages as they are, keys included, in memory only. It must not know what the routes mean, nor where the
// messages come from.
package config

import (
	"maps"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Config is everything that a node knows of routes. The zero value knows nothing.
type Config struct {
	// Known says that there was a full set.
	Known        bool
	Routes       map[string]*v1.IngressRoute
	Certificates map[string]*v1.IngressCertificate
	Challenges   map[string]*v1.IngressChallenge
	Services     map[string]*v1.IngressService
	Settings     *v1.Ingress
}

// Apply adds a message, whose parts must not change any more.
func (c *Config) Apply(down *v1.IngressDown) {
	if down.GetFull() {
		*c = Config{Known: true, Settings: &v1.Ingress{}}
	}
	change(&c.Routes, down.GetRoutes(), down.GetRemovedRoutes())
	change(&c.Certificates, down.GetCertificates(), down.GetRemovedCertificates())
	change(&c.Challenges, down.GetChallenges(), down.GetRemovedChallenges())
	change(&c.Services, down.GetServices(), down.GetRemovedServices())
	if s := down.GetSettings(); s != nil {
		c.Settings = s
	}
}

type object interface{ GetUid() string }

func change[T object](all *map[string]T, changed []T, removed []string) {
	if *all == nil {
		*all = map[string]T{}
	}
	for _, uid := range removed {
		delete(*all, uid)
	}
	for _, o := range changed {
		(*all)[o.GetUid()] = o
	}
}

// Full is one message with everything.
func (c *Config) Full() *v1.IngressDown {
	return &v1.IngressDown{
		Full: true, Settings: c.Settings,
		Routes: sorted(c.Routes), Certificates: sorted(c.Certificates), Challenges: sorted(c.Challenges), Services: sorted(c.Services),
	}
}

func sorted[T object](all map[string]T) []T {
	return slices.SortedFunc(maps.Values(all), func(a, b T) int { return strings.Compare(a.GetUid(), b.GetUid()) })
}
