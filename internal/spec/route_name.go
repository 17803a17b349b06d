package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// CertificateName is the name of the certificate that the cluster makes for a host of routes, in their namespace: such as
// tls-shop-example-org for shop.example.org, and tls-wildcard-example-org for *.example.org. Where another host could
// have the same name, it ends with a part of the host's hash.
func CertificateName(host string) string {
	const prefix, wildcard = "tls-", "wildcard-"
	rest, star := strings.CutPrefix(host, "*.")
	readable := prefix
	if star {
		readable += wildcard
	}
	readable += strings.ReplaceAll(rest, ".", "-")
	// Only dots become dashes, so hosts without a dash have names of their own.
	unique := !strings.Contains(rest, "-") && (star || !strings.HasPrefix(rest, "wildcard."))
	if unique && len(readable) <= maxName {
		return readable
	}
	sum := sha256.Sum256([]byte(host))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(readable[:min(len(readable), maxName-len(suffix))], "-") + suffix
}
