package acme

import (
	"errors"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

// A host that has got too many certificates keeps no other host from its own. Let's Encrypt has limits of both kinds.
func TestLimitOfOneHostDoesNotStopOthers(t *testing.T) {
	for _, c := range []struct {
		host, detail string
		busy         bool
	}{
		{"shop.example.org", "too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s", false},
		{"shop.example.org", "too many failed authorizations (5) for \"shop.example.org\" in the last 1h0m0s", false},
		{"shop.example.org", "too many new orders (300) from this account in the last 3h0m0s", true},
		{"", "too many new registrations (10) from this IP address in the last 3h0m0s", true},
	} {
		s := &session{retry: &retryAfter{until: time.Now().Add(time.Hour)}}
		err := (&Authority{}).explain(s, c.host, acme.Problem{Type: acme.ProblemTypeRateLimited, Detail: c.detail})
		f, ok := errors.AsType[*Failure](err)
		if !ok || f.Busy != c.busy || f.Wait < time.Hour-time.Minute {
			t.Errorf("%q: %+v, want busy %t and the wait that was asked for", c.detail, f, c.busy)
		}
	}
}
