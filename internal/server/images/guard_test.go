package images

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/image"
)

func TestPrivateAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"10.1.2.3": true, "172.16.0.1": true, "192.168.1.1": true, "127.0.0.1": true, "169.254.169.254": true, "100.64.0.1": true,
		"0.0.0.0": true, "224.0.0.1": true, "255.255.255.255": true, "198.18.0.1": true,
		"::1": true, "::": true, "fe80::1": true, "fd00::1": true, "ff02::1": true, "::ffff:10.0.0.1": true, "64:ff9b::a00:1": true,
		"2002:a00:1::": true, "fec0::1": true,
		"8.8.8.8": false, "172.32.0.1": false, "2606:4700::1111": false, "64:ff9b::808:808": false, "::ffff:8.8.8.8": false,
	} {
		if got := private(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is private: %t", address, got)
		}
	}
}

func TestRegistriesAreNamedByHost(t *testing.T) {
	named := []string{"registry.lan:5000", "Other.lan", "[fd00::1]:5000", "10.0.0.1"}
	for address, want := range map[string]bool{
		"registry.lan:5000": true, "REGISTRY.lan:5000": true, "registry.lan:5001": false, "registry.lan:443": false,
		"other.lan:443": true, "other.lan:80": true, "other.lan:5000": false, "[fd00::1]:5000": true, "10.0.0.1:443": true,
		"x.registry.lan:5000": false,
	} {
		if got := names(named, address); got != want {
			t.Errorf("%s is named: %t", address, got)
		}
	}
}

// A registry at a private address is asked only if it is named. What counts is where a connection leads, so a redirect and a
// name that resolves to another address do not help.
func TestPrivateRegistryIsAskedOnlyIfItIsNamed(t *testing.T) {
	asked := 0
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if strings.HasSuffix(r.URL.Path, "/manifests/away") {
			http.Redirect(w, r, "http://localhost:1/secret", http.StatusFound)
			return
		}
		w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("a", 64))
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Content-Length", "2")
	}))
	defer registry.Close()
	host := registry.Listener.Addr().String()
	var named []string
	f := newForeign(nil, time.Now, func() []string { return named })
	_, err := f.digest(t.Context(), image.Name{Registry: host, Repository: "app", Tag: "1"}, nil)
	if !errors.Is(err, errPrivate) || asked > 0 {
		t.Fatalf("asked %d times, answered with %v", asked, err)
	}
	if words := refusePrivateRegistry(image.Name{Registry: host, Repository: "app", Tag: "1"}, err).Error(); !strings.Contains(words, "at the private address 127.0.0.1") ||
		!strings.Contains(words, "security.privateRegistries="+host) {
		t.Errorf("the refusal is %q", words)
	}
	_, port, _ := net.SplitHostPort(host)
	if _, err := f.digest(t.Context(), image.Name{Registry: "localhost:" + port, Repository: "app", Tag: "1"}, nil); !errors.Is(err, errPrivate) {
		t.Errorf("by a name that resolves to it: %v", err)
	}
	named = []string{host}
	if digest, err := f.digest(t.Context(), image.Name{Registry: host, Repository: "app", Tag: "1"}, nil); err != nil || digest == "" {
		t.Errorf("named, it answers %q, %v", digest, err)
	}
	if _, err := f.digest(t.Context(), image.Name{Registry: host, Repository: "app", Tag: "away"}, nil); !errors.Is(err, errPrivate) {
		t.Errorf("by a redirect: %v", err)
	}
}

// Questions beyond the limit wait for their turn, and end with their call.
func TestQuestionsAreBounded(t *testing.T) {
	f := newForeign(nil, time.Now, func() []string { return nil })
	for range lookUps {
		if _, err := f.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.digest(ctx, image.Name{Registry: "example.org", Repository: "app", Tag: "1"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("one too many is answered with %v", err)
	}
}
