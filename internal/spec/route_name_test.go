package spec_test

import (
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/spec"
)

func TestCertificatesAreNamedAfterTheirHost(t *testing.T) {
	for host, want := range map[string]string{
		"shop.example.org":     "tls-shop-example-org",
		"*.example.org":        "tls-wildcard-example-org",
		"localhost":            "tls-localhost",
		"my-shop.example.org":  "tls-my-shop-example-org-1de66ec3",
		"my.shop.example.org":  "tls-my-shop-example-org",
		"wildcard.example.org": "tls-wildcard-example-org-07bc2b8e",
	} {
		if got := spec.CertificateName(host); got != want {
			t.Errorf("the certificate of %s is %s, want %s", host, got, want)
		}
	}
	long := strings.Repeat("a.", 100)
	first, second := spec.CertificateName(long+"org"), spec.CertificateName(long+"net")
	if first == second || len(first) != 63 && len(first) != 62 {
		t.Errorf("the certificates of two long hosts are %s and %s", first, second)
	}
}
