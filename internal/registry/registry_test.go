package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel"

	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
)

func TestProgramIsPushedResolvedAndPulled(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	img, err := image.FromBinary(buildProgram(t), image.Options{Args: []string{"--greeting", "hi"}})
	if err != nil {
		t.Fatal(err)
	}
	to := parse(t, "team/hello:1")

	digest, err := image.Push(t.Context(), img, to, image.PushOptions{Transport: s.transport})
	if err != nil {
		t.Fatal(err)
	}

	want := registry.Descriptor{
		Digest:    digest,
		Size:      wholeSize(t, img),
		MediaType: "application/vnd.oci.image.manifest.v1+json",
		Platforms: []string{"linux/" + runtime.GOARCH},
	}
	for _, ref := range []string{"1", digest} {
		got, err := s.Resolve(t.Context(), "team/hello", ref)
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != want.Digest || got.Size != want.Size || got.MediaType != want.MediaType || !slices.Equal(got.Platforms, want.Platforms) {
			t.Errorf("Resolve(%s) = %+v, want %+v", ref, got, want)
		}
	}

	pulled, err := remote.Image(repository(t, to).Digest(digest), remote.WithTransport(s.transport), remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(pulled); err != nil { // reads every layer and compares all digests
		t.Errorf("the pulled image is not whole: %v", err)
	}
	config, err := pulled.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := append(config.Config.Entrypoint, config.Config.Cmd...); !slices.Equal(got, []string{"/hello", "--greeting", "hi"}) {
		t.Errorf("the pulled image starts %q", got)
	}
}

func TestSecondPushSendsNothing(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	program := buildProgram(t)
	push := func(to string) (string, []string) {
		t.Helper()
		img, err := image.FromBinary(program, image.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.takeRequests()
		digest, err := image.Push(t.Context(), img, parse(t, to), image.PushOptions{Transport: s.transport})
		if err != nil {
			t.Fatal(err)
		}
		return digest, s.takeRequests()
	}
	uploads := func(requests []string) (n int) {
		for _, r := range requests {
			if strings.HasPrefix(r, "PATCH ") || strings.HasPrefix(r, "POST ") {
				n++
			}
		}
		return n
	}

	first, requests := push("hello:1")
	if uploads(requests) == 0 {
		t.Fatalf("the first push sent nothing: %q", requests)
	}
	second, requests := push("hello:2")
	if second != first {
		t.Errorf("the same program has digest %s, then %s", first, second)
	}
	if n := uploads(requests); n != 0 {
		t.Errorf("the second push sent %d uploads: %q", n, requests)
	}
}

func TestResolveOfIndexNamesEveryPlatform(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}}},
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
	to := parse(t, "multi")
	if err := remote.WriteIndex(repository(t, to).Tag(to.Tag), index, remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}

	got, err := s.Resolve(t.Context(), to.Repository, to.Reference())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"linux/amd64", "linux/arm/v7"}; !slices.Equal(got.Platforms, want) {
		t.Errorf("platforms are %q, want %q", got.Platforms, want)
	}
}

func TestResolveOfAMissingImage(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	digest := s.push(t, "hello:1", randomImage(t))
	absent := "sha256:" + strings.Repeat("0", 64)

	for _, c := range []struct{ name, ref string }{
		{"nothing", "1"}, {"hello", "2"}, {"hello", absent}, {"nothing", digest},
	} {
		if _, err := s.Resolve(t.Context(), c.name, c.ref); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("Resolve(%s, %s): %v, want ErrNotFound", c.name, c.ref, err)
		}
	}
	for _, c := range []struct{ name, ref string }{
		{"Hello", "1"}, {"../hello", "1"}, {"hello", "../../x"}, {"hello", ""}, {"", "1"},
	} {
		if _, err := s.Resolve(t.Context(), c.name, c.ref); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("Resolve(%q, %q): %v, want it refused as malformed", c.name, c.ref, err)
		}
	}
}

func TestDeletedImageIsNotFound(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	digest := s.push(t, "hello:1", randomImage(t))
	if err := remote.Delete(repository(t, parse(t, "hello")).Digest(digest), remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context(), "hello", digest); !errors.Is(err, registry.ErrNotFound) {
		t.Errorf("after the deletion: %v, want ErrNotFound", err)
	}
}

func TestListShowsRepositoriesAndTags(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	if got, err := s.List(t.Context()); err != nil || len(got) != 0 {
		t.Fatalf("an empty registry lists %+v, %v", got, err)
	}
	for _, to := range []string{"web:2", "web:1", "team/api:latest", "team:x"} {
		s.push(t, to, randomImage(t))
	}

	got, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []registry.Repository{
		{Name: "team", Tags: []string{"x"}},
		{Name: "team/api", Tags: []string{"latest"}},
		{Name: "web", Tags: []string{"1", "2"}},
	}
	if !slices.EqualFunc(got, want, func(a, b registry.Repository) bool { return a.Name == b.Name && slices.Equal(a.Tags, b.Tags) }) {
		t.Errorf("listed %+v, want %+v", got, want)
	}
	other, err := remote.Catalog(t.Context(), repository(t, parse(t, "web:1")).Registry, remote.WithTransport(s.transport))
	if err != nil || !slices.Equal(other, []string{"team", "team/api", "web"}) {
		t.Errorf("other clients see %q, %v", other, err)
	}
}

func TestUploadSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	before := serve(t, dir, slog.New(slog.DiscardHandler))
	location := before.do(t, http.MethodPost, "/v2/hello/blobs/uploads/", "", http.StatusAccepted)
	location = before.do(t, http.MethodPatch, location, "half and ", http.StatusAccepted)
	before.stop()

	after := serve(t, dir, slog.New(slog.DiscardHandler))
	location = after.do(t, http.MethodPatch, location, "half", http.StatusAccepted)
	digest, _, err := v1.SHA256(strings.NewReader("half and half"))
	if err != nil {
		t.Fatal(err)
	}
	after.do(t, http.MethodPut, location+"&digest="+digest.String(), "", http.StatusCreated)
	after.do(t, http.MethodHead, "/v2/hello/blobs/"+digest.String(), "", http.StatusOK)
}

func TestUploadSecretIsPrivateAndDamageIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	serve(t, dir, slog.New(slog.DiscardHandler)).stop()
	secret := filepath.Join(dir, "upload-secret")
	info, err := os.Stat(secret)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the secret has mode %v, want 0600", info.Mode().Perm())
	}

	if err := os.WriteFile(secret, []byte("cut o"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = registry.Open(t.Context(), registry.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged secret gives %v, want the file and the way out", err)
	}
}

func TestOpenRefusesMissingOptions(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, opts := range []registry.Options{{Logger: log}, {Dir: t.TempDir()}} {
		if _, err := registry.Open(t.Context(), opts); err == nil {
			t.Errorf("Open(%+v) did not refuse", opts)
		}
	}
}

func TestLogsGoToTheInjectedLoggerOnly(t *testing.T) {
	var elsewhere, debug, info lockedBuffer
	logrus.SetOutput(&elsewhere) // where the library would write without our logger
	t.Cleanup(func() { logrus.SetOutput(os.Stderr) })

	for _, c := range []struct {
		out   *lockedBuffer
		level slog.Level
	}{{&debug, slog.LevelDebug}, {&info, slog.LevelInfo}} {
		s := serve(t, t.TempDir(), slog.New(slog.NewTextHandler(c.out, &slog.HandlerOptions{Level: c.level})))
		s.push(t, "hello:1", randomImage(t))
		s.do(t, http.MethodGet, "/v2/hello/manifests/absent", "", http.StatusNotFound)
		if _, err := s.Resolve(t.Context(), "hello", "1"); err != nil {
			t.Fatal(err)
		}
		s.stop()
	}

	if got := elsewhere.String(); got != "" {
		t.Errorf("the process-wide logger got:\n%s", got)
	}
	if got := info.String(); got != "" {
		t.Errorf("ordinary requests are worth more than debug messages:\n%s", got)
	}
	if got := debug.String(); !strings.Contains(got, "repository=hello") || !strings.Contains(got, "status=201") {
		t.Errorf("the debug log does not tell of the push:\n%s", got)
	}
	if strings.Contains(debug.String(), "_state=") {
		t.Error("the log contains the signed state of an upload")
	}
}

func TestEnvironmentStartsNoExporter(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	s.push(t, "hello:1", randomImage(t))

	_, span := otel.Tracer("test").Start(t.Context(), "test")
	defer span.End()
	if span.IsRecording() {
		t.Error("the registry has started to trace")
	}
}

func TestCloseEndsEveryGoroutine(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	s.push(t, "hello:1", randomImage(t))
	// Where the goroutines of the registry and of its library come from.
	sources := []string{"internal/registry.purgeUploads", "go-events.(*Broadcaster).run"}
	running := goroutines(t)
	for _, source := range sources {
		if !strings.Contains(running, source) {
			t.Errorf("%s does not run: this test no longer sees what it should", source)
		}
	}

	s.stop()

	running = goroutines(t)
	for _, source := range append(sources, "distribution/distribution/") {
		if strings.Contains(running, source) {
			t.Errorf("%s still runs after Close:\n%s", source, running)
		}
	}
}

func TestClosedRegistryAnswers503(t *testing.T) {
	r, err := registry.Open(t.Context(), registry.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // closing twice is harmless
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", w.Code)
	}
}

// server is a registry behind TLS under its real host name.
type server struct {
	*registry.Registry
	transport *http.Transport
	stop      func()

	mu       sync.Mutex
	requests []string
}

func serve(t *testing.T, dir string, log *slog.Logger) *server {
	t.Helper()
	return serveWith(t, registry.Options{Dir: dir, Logger: log})
}

func serveWith(t *testing.T, opts registry.Options) *server {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := registry.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Registry: r}
	handler := r.Handler()
	listener := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, req.Method+" "+req.URL.Path)
		s.mu.Unlock()
		handler.ServeHTTP(w, req)
	}))
	s.transport = listener.Client().Transport.(*http.Transport).Clone()
	s.transport.TLSClientConfig.ServerName = "example.com" // the name in httptest's certificate
	s.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", listener.Listener.Addr().String())
	}
	s.stop = sync.OnceFunc(func() {
		s.transport.CloseIdleConnections()
		listener.Close()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *server) takeRequests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.requests
	s.requests = nil
	return taken
}

func (s *server) push(t *testing.T, to string, img v1.Image) string {
	t.Helper()
	digest, err := image.Push(t.Context(), img, parse(t, to), image.PushOptions{Transport: s.transport})
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// do makes one request and returns the Location of the answer.
func (s *server) do(t *testing.T, method, path, body string, want int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+image.ClusterRegistry+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != want {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, resp.StatusCode, want, answer)
	}
	location := resp.Header.Get("Location")
	if location != "" && !strings.HasPrefix(location, "/v2/") {
		t.Errorf("%s %s: location %q depends on the host", method, path, location)
	}
	return location
}

func parse(t *testing.T, s string) image.Name {
	t.Helper()
	n, err := image.ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func repository(t *testing.T, n image.Name) name.Repository {
	t.Helper()
	r, err := name.NewRepository(n.Registry + "/" + n.Repository)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(1024, 2)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// wholeSize is what a pull of the image fetches.
func wholeSize(t *testing.T, img v1.Image) int64 {
	t.Helper()
	total, err := img.Size()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	total += manifest.Config.Size
	for _, layer := range manifest.Layers {
		total += layer.Size
	}
	return total
}

// buildProgram builds a small static program.
func buildProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "hello", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "hello")
}

func goroutines(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 2); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
