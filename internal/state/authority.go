package state

import statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"

// TrustedAuthorities are the certificates of all authorities that members trust, the one that signs first.
func TrustedAuthorities(a *statev1.Authority) [][]byte {
	all := [][]byte{a.GetCertificate()}
	for _, der := range [][]byte{a.GetNextCertificate(), a.GetPreviousCertificate()} {
		if len(der) > 0 {
			all = append(all, der)
		}
	}
	return all
}
