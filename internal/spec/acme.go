package spec

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"net/mail"
	"net/url"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/suggest"
)

// LetsEncrypt is the directory of the authority that is asked if the configuration names no other.
const LetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// DirectoryOf is the address of the directory of the cluster's ACME authority.
func DirectoryOf(a *v1.Acme) string { return cmp.Or(a.GetDirectory(), LetsEncrypt) }

// DNSProvider is a provider of DNS whose API the cluster speaks.
type DNSProvider struct {
	Name string
	// Required and Optional are the names of its settings.
	Required, Optional []string
}

// DNSProviders are all of them. Package acme has their clients.
var DNSProviders = []DNSProvider{
	{Name: "acmedns", Required: []string{"username", "password", "subdomain", "serverUrl"}},
	{Name: "cloudflare", Required: []string{"apiToken"}, Optional: []string{"zoneToken"}},
	{Name: "desec", Required: []string{"token"}},
	{Name: "digitalocean", Required: []string{"apiToken"}},
	{Name: "gandi", Required: []string{"token"}},
	{Name: "hetzner", Required: []string{"apiToken"}},
	{Name: "ovh", Required: []string{"endpoint", "applicationKey", "applicationSecret", "consumerKey"}},
	{Name: "rfc2136", Required: []string{"server", "keyName", "keyAlgorithm", "key"}},
}

// DNSProviderNamed is the provider with a name; false if the cluster does not speak its API.
func DNSProviderNamed(name string) (DNSProvider, bool) {
	i := slices.IndexFunc(DNSProviders, func(p DNSProvider) bool { return p.Name == name })
	if i < 0 {
		return DNSProvider{}, false
	}
	return DNSProviders[i], true
}

// DNSProviderNames are the names of all of them.
func DNSProviderNames() []string {
	var names []string
	for _, p := range DNSProviders {
		names = append(names, p.Name)
	}
	return names
}

// MaxDNSSetting bounds a setting of a DNS provider: sealed, it must fit into the configuration.
const MaxDNSSetting = 2048

// normalAcme removes empty parts.
func normalAcme(a *v1.Acme) *v1.Acme {
	if a == nil {
		return nil
	}
	a.Dns = unlessEmpty(a.Dns)
	return unlessEmpty(a)
}

// checkAcme checks the settings of the ACME authority. The values of the DNS settings may be sealed.
func checkAcme(path string, a *v1.Acme, found *violations) {
	if text := a.GetDirectory(); text != "" {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
			found.add(path+".directory", "must be the address of the authority's directory, such as %s", LetsEncrypt)
		}
	}
	if text := a.GetEmail(); text != "" {
		if one, err := mail.ParseAddress(text); err != nil || one.Address != text {
			found.add(path+".email", "must be one e-mail address such as ops@example.org")
		}
	}
	if text := a.GetCa(); text != "" {
		if _, problem := certificatesOf([]byte(text)); problem != "" {
			found.add(path+".ca", "%s", problem)
		}
	}
	checkDNS(path+".dns", a.GetDns(), found)
}

func checkDNS(path string, d *v1.AcmeDns, found *violations) {
	if d == nil {
		return
	}
	if d.GetProvider() == "" {
		if len(d.GetSettings()) > 0 {
			found.add(path+".provider", "is missing: the settings are those of a provider; name it, or leave the settings out")
		}
		return
	}
	p, known := DNSProviderNamed(d.GetProvider())
	if !known {
		words := "the cluster knows " + strings.Join(DNSProviderNames(), ", ")
		if near := suggest.To(d.GetProvider(), slices.Values(DNSProviderNames())); near != "" {
			words = "did you mean " + near + "? " + words
		}
		found.add(path+".provider", "%q is not a DNS provider that the cluster can use; %s", d.GetProvider(), words)
		return
	}
	all := slices.Concat(p.Required, p.Optional)
	for key := range d.GetSettings() {
		if !slices.Contains(all, key) {
			found.add(entryPath(path+".settings", key), "is not a setting of %s, which has %s", p.Name, strings.Join(all, ", "))
		}
	}
	for _, key := range p.Required {
		// An empty value keeps the stored one.
		if _, given := d.GetSettings()[key]; !given {
			found.add(entryPath(path+".settings", key), "is missing: %s needs it; give its value", p.Name)
		}
	}
}

// certificatesOf reads PEM that has nothing but certificates.
func certificatesOf(text []byte) (all []*x509.Certificate, problem string) {
	for rest := text; len(strings.TrimSpace(string(rest))) > 0; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil:
			return nil, "is not PEM: it must consist of blocks that begin with -----BEGIN CERTIFICATE-----"
		case strings.Contains(block.Type, "PRIVATE KEY"):
			return nil, "has a private key in it; give only certificates here"
		case block.Type != "CERTIFICATE":
			return nil, "has a block of type " + block.Type + "; it must have only blocks of type CERTIFICATE"
		case len(all) == maxChain:
			return nil, "has too many certificates; at most 16 are allowed"
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, "has a certificate that cannot be read: " + err.Error()
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, "is empty: give at least one certificate in PEM"
	}
	return all, ""
}

const maxChain = 16
