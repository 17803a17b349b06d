package containerd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// An image is pulled with the client for its registry: from an address that its name does
// not reveal, with the node's own certificate.
func TestPullFromOwnRegistry(t *testing.T) {
	opts := testOptions(t)
	var requests atomic.Int64
	client := ownRegistry(t, &requests)
	opts.Registries["registry.cloudless.internal"] = client
	t.Cleanup(func() { mustPurge(t, opts) })
	digest := push(t, client)

	d := mustOpen(t, opts)
	defer d.Close()
	task := counter(t, "registry.cloudless.internal/busybox@"+digest.String(), "pulled")
	if err := d.Prepare(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	pulled := requests.Load()
	if pulled == 0 {
		t.Fatal("nothing was asked of the registry")
	}
	if _, err := d.Start(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, task, "line 3")
	if err := d.Remove(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Prepare(t.Context(), task); err != nil || requests.Load() != pulled {
		t.Errorf("an image that is here was asked for again: %d requests, then %d, %v", pulled, requests.Load(), err)
	}
	task.Image = "registry.cloudless.internal/forbidden:1"
	if err := d.Prepare(t.Context(), task); !errors.Is(err, driver.ErrImage) {
		t.Errorf("a refused image: got %v", err)
	}
	task.Image = "busybox"
	if err := d.Prepare(t.Context(), task); !errors.Is(err, driver.ErrImage) {
		t.Errorf("a name without a registry: got %v", err)
	}
}

// An unreachable registry may be back soon: that is not the image's fault.
func TestUnreachableRegistry(t *testing.T) {
	opts := testOptions(t)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	opts.Registries["registry.cloudless.internal"] = clientFor(server, nil)
	server.Close()
	t.Cleanup(func() { mustPurge(t, opts) })
	d := mustOpen(t, opts)
	defer d.Close()
	err := d.Prepare(t.Context(), counter(t, "registry.cloudless.internal/busybox:1", "x"))
	if err == nil || errors.Is(err, driver.ErrImage) {
		t.Errorf("got %v", err)
	}
}

// ownRegistry requires a client certificate, and refuses forbidden images.
func ownRegistry(t *testing.T, requests *atomic.Int64) *http.Client {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if strings.HasPrefix(r.URL.Path, "/v2/forbidden/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		images.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	// The server's own certificate serves as the client's: a test needs no CA.
	return clientFor(server, server.TLS.Certificates)
}

func push(t *testing.T, client *http.Client) v1.Hash {
	t.Helper()
	_, archive := drivertest.Image(t)
	content, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference("registry.cloudless.internal/busybox:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image, remote.WithTransport(client.Transport)); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}
