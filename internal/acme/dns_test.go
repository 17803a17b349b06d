package acme

import (
	"testing"

	"github.com/cloudless/cloudless/internal/spec"
)

// Package spec names the providers, because it checks their settings; this package has their clients.
func TestEveryNamedProviderHasAClient(t *testing.T) {
	for _, p := range spec.DNSProviders {
		settings := map[string]string{}
		for _, key := range append(p.Required, p.Optional...) {
			settings[key] = "x"
		}
		if client, err := NewDNSProvider(p.Name, settings); err != nil || client == nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	if _, err := NewDNSProvider("route66", nil); err == nil {
		t.Error("an unknown provider has a client")
	}
}
