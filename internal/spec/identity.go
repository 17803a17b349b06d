package spec

import (
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// How long a certificate or token of a workload may be valid.
const (
	defaultIdentityTTL  = "1h"
	shortestIdentityTTL = time.Minute
	longestIdentityTTL  = 24 * time.Hour
)

// IdentityTTL is how long the certificates and tokens of a workload are valid.
func IdentityTTL(i *v1.WorkloadIdentity) time.Duration {
	ttl, err := ParseDuration(i.GetTtl())
	if err != nil || i.GetTtl() == "" {
		return time.Hour
	}
	return min(max(ttl, shortestIdentityTTL), longestIdentityTTL)
}

func normalIdentity(i *v1.WorkloadIdentity) {
	if i != nil {
		normalDuration(&i.Ttl, defaultIdentityTTL)
	}
}

// checkIdentity refuses lifetimes that would load the servers, or that would outlive the replica for long.
func checkIdentity(s *v1.WorkloadSpec, found *violations) {
	if s.GetIdentity() == nil {
		return
	}
	const path = "spec.identity.ttl"
	ttl, ok := readAmount(path, s.GetIdentity().GetTtl(), ParseDuration, found)
	if ok && (ttl < shortestIdentityTTL || ttl > longestIdentityTTL) {
		found.add(path, "must be from 1m to 24h")
	}
}
