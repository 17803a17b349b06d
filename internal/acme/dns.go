package acme

import (
	"fmt"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/acmedns"
	"github.com/libdns/cloudflare"
	"github.com/libdns/desec"
	"github.com/libdns/digitalocean"
	"github.com/libdns/gandi"
	"github.com/libdns/hetzner/v2"
	"github.com/libdns/ovh"
	"github.com/libdns/rfc2136"
)

// DNSProvider changes the records of a zone.
type DNSProvider = certmagic.DNSProvider

// The client of route53 is left out: it alone would make the binary a tenth larger. Its users delegate the record to an
// acme-dns server.

// NewDNSProvider makes the client of a provider out of its settings, which package spec names.
func NewDNSProvider(name string, settings map[string]string) (DNSProvider, error) {
	switch name {
	case "acmedns":
		return &acmedns.Provider{Username: settings["username"], Password: settings["password"], Subdomain: settings["subdomain"], ServerURL: settings["serverUrl"]}, nil
	case "cloudflare":
		return &cloudflare.Provider{APIToken: settings["apiToken"], ZoneToken: settings["zoneToken"]}, nil
	case "desec":
		return &desec.Provider{Token: settings["token"]}, nil
	case "digitalocean":
		return &digitalocean.Provider{APIToken: settings["apiToken"]}, nil
	case "gandi":
		return &gandi.Provider{BearerToken: settings["token"]}, nil
	case "hetzner":
		return hetzner.New(settings["apiToken"]), nil
	case "ovh":
		return &ovh.Provider{Endpoint: settings["endpoint"], ApplicationKey: settings["applicationKey"], ApplicationSecret: settings["applicationSecret"], ConsumerKey: settings["consumerKey"]}, nil
	case "rfc2136":
		return &rfc2136.Provider{Server: settings["server"], KeyName: settings["keyName"], KeyAlg: settings["keyAlgorithm"], Key: settings["key"]}, nil
	}
	return nil, fmt.Errorf("%q is not a DNS provider that this version can use", name)
}
