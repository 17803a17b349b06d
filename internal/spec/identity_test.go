package spec_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func TestLifetimesOfIdentities(t *testing.T) {
	for ttl, want := range map[string]struct {
		ttl   time.Duration
		wrong string
	}{
		"":      {time.Hour, ""},
		"1m":    {time.Minute, ""},
		"1440m": {24 * time.Hour, ""},
		"59s":   {time.Minute, "spec.identity.ttl: must be from 1m to 24h"},
		"25h":   {24 * time.Hour, "spec.identity.ttl: must be from 1m to 24h"},
		"soon":  {time.Hour, "spec.identity.ttl"},
	} {
		w := &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "web:1", Identity: &v1.WorkloadIdentity{Ttl: ttl}}}
		err := spec.Validate(w)
		if (err != nil) != (want.wrong != "") || err != nil && !strings.Contains(err.Error(), want.wrong) {
			t.Errorf("ttl %q: %v", ttl, err)
		}
		if got := spec.IdentityTTL(w.Spec.Identity); got != want.ttl {
			t.Errorf("ttl %q means %s, want %s", ttl, got, want.ttl)
		}
	}
}

// An identity without settings is the same as one with the defaults, and different from none.
func TestEmptyIdentityTurnsItOn(t *testing.T) {
	spec1 := func(i *v1.WorkloadIdentity) *v1.WorkloadSpec { return &v1.WorkloadSpec{Image: "web:1", Identity: i} }
	if !spec.ReplacesNone(spec1(&v1.WorkloadIdentity{}), spec1(&v1.WorkloadIdentity{Ttl: "60m"})) {
		t.Error("the default lifetime replaces replicas")
	}
	if spec.ReplacesNone(spec1(nil), spec1(&v1.WorkloadIdentity{})) {
		t.Error("replicas do not get the identity that they ask for now")
	}
}
