package image_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/cloudless/cloudless/internal/image"
)

func TestPushReportsProgressAndDigest(t *testing.T) {
	host, transport := serve(t, nil)
	img := randomImage(t)
	to := parse(t, host+"/x:1") // one letter is enough for a name

	var reports [][2]int64
	progress := func(done, total int64) { reports = append(reports, [2]int64{done, total}) }
	got, err := image.Push(t.Context(), img, to, image.PushOptions{Transport: transport, Progress: progress})
	if err != nil {
		t.Fatal(err)
	}

	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got != want.String() {
		t.Errorf("digest %s, want %s", got, want)
	}
	checkReports(t, reports, blobBytes(t, img))

	reports = nil
	if _, err := image.Push(t.Context(), img, parse(t, host+"/x:2"), image.PushOptions{Transport: transport, Progress: progress}); err != nil {
		t.Fatal(err)
	}
	checkReports(t, reports, blobBytes(t, img))
}

func TestFailedAttemptIsRemovedFromTheProgress(t *testing.T) {
	var failed atomic.Bool
	host, transport := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodPatch || failed.Swap(true) {
			return false
		}
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	img, err := random.Image(1024, 1)
	if err != nil {
		t.Fatal(err)
	}
	var reports [][2]int64
	_, err = image.Push(t.Context(), img, parse(t, host+"/hello:1"), image.PushOptions{
		Transport: transport,
		Progress:  func(done, total int64) { reports = append(reports, [2]int64{done, total}) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !failed.Load() {
		t.Fatal("no attempt failed")
	}
	checkReports(t, reports, blobBytes(t, img))
}

// A push continues as long as it makes progress, even if it keeps meeting empty registries.
func TestPushSurvivesLostRegistries(t *testing.T) {
	var now atomic.Pointer[http.Handler]
	replaceRegistry := func() {
		empty := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		now.Store(&empty)
	}
	replaceRegistry()
	left := 10 // registries that are lost before they have the manifest
	host, transport := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/manifests/") && left > 0 {
			left--
			replaceRegistry()
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}`)
			return true
		}
		(*now.Load()).ServeHTTP(w, req)
		return true
	})
	if _, err := image.Push(t.Context(), randomImage(t), parse(t, host+"/hello:1"), image.PushOptions{Transport: transport}); err != nil {
		t.Errorf("with %d registries left to lose: %v", left, err)
	}
}

// While the servers of a cluster elect one leader after the other, each new leader has forgotten the upload.
func TestPushOutlastsUploadsThatAreLost(t *testing.T) {
	img, other := randomImage(t), randomImage(t)
	synctest.Test(t, func(t *testing.T) {
		handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		var left atomic.Int64
		left.Store(10)
		transport := handled(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPatch && left.Add(-1) >= 0 {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			handler.ServeHTTP(w, req)
		})
		if _, err := image.Push(t.Context(), img, parse(t, "registry.test/hello:1"), image.PushOptions{Transport: transport}); err != nil {
			t.Errorf("with %d uploads left to lose: %v", left.Load(), err)
		}
		left.Store(1 << 40)
		_, err := image.Push(t.Context(), other, parse(t, "registry.test/other:1"), image.PushOptions{Transport: transport})
		if err == nil || !strings.Contains(err.Error(), "does not know the upload any more") {
			t.Errorf("a registry that forgets every upload: %v", err)
		}
	})
}

// handled is a transport without a network.
type handled http.HandlerFunc

func (h handled) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	if req.Body == nil {
		req.Body = http.NoBody
	}
	h(answer, req)
	return answer.Result(), nil
}

// A push gives up on a registry that stores nothing, or never believes that it has a blob.
func TestPushGivesUpOnAForgetfulRegistry(t *testing.T) {
	for what, forget := range map[string]bool{"forgets all": true, "has all": false} {
		host, transport := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/manifests/") {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}`)
				return true
			}
			if forget && req.Method == http.MethodHead {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
			return false
		})
		if _, err := image.Push(t.Context(), randomImage(t), parse(t, host+"/hello:1"), image.PushOptions{Transport: transport}); err == nil {
			t.Errorf("a registry that %s takes the image", what)
		}
	}
}

func TestPushNamesWhatFailed(t *testing.T) {
	host, transport := serve(t, func(w http.ResponseWriter, req *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	_, err := image.Push(t.Context(), randomImage(t), parse(t, host+"/hello:1"), image.PushOptions{Transport: transport})
	if err == nil || !strings.Contains(err.Error(), "push "+host+"/hello:1") {
		t.Errorf("got %v, want it to name the image", err)
	}
}

func TestPushRefusesAnotherImagesDigest(t *testing.T) {
	host, transport := serve(t, nil)
	_, err := image.Push(t.Context(), randomImage(t), parse(t, host+"/hello@"+digest), image.PushOptions{Transport: transport})
	if err == nil || !strings.Contains(err.Error(), "give the name a tag") {
		t.Errorf("got %v, want a refusal with the way out", err)
	}
}

// serve starts an empty registry behind TLS; intercept may answer in its place.
func serve(t *testing.T, intercept func(http.ResponseWriter, *http.Request) bool) (string, http.RoundTripper) {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if intercept == nil || !intercept(w, req) {
			handler.ServeHTTP(w, req)
		}
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), srv.Client().Transport
}

// checkReports wants the sum to stay within the total and to end there.
func checkReports(t *testing.T, reports [][2]int64, total int64) {
	t.Helper()
	if len(reports) == 0 {
		t.Fatal("no progress was reported")
	}
	for _, r := range reports {
		if r[0] <= 0 || r[0] > r[1] || r[1] != total {
			t.Errorf("reported %d of %d, the total is %d", r[0], r[1], total)
		}
	}
	if last := reports[len(reports)-1]; last[0] != total {
		t.Errorf("ended at %d of %d", last[0], total)
	}
}

func blobBytes(t *testing.T, img v1.Image) int64 {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	total := m.Config.Size
	for _, l := range m.Layers {
		total += l.Size
	}
	return total
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(64<<10, 2)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func parse(t *testing.T, s string) image.Name {
	t.Helper()
	n, err := image.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
