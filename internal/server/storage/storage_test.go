package storage

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/names"
	"github.com/cloudless/cloudless/internal/server/s3/s3test"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// newStorage is the object store of a server that is alone, and its names.
func newStorage(t *testing.T) (*Storage, *names.Group) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	group, err := names.Open(t.Context(), names.Options{
		Dir: filepath.Join(dir, "names"), Reached: filepath.Join(dir, "reached"), ServerID: "server-1", Bootstrap: true, Logger: logger,
	})
	must(t, err)
	t.Cleanup(func() { must(t, group.Close()) })
	must(t, group.WaitLeader(t.Context()))
	s, err := New(Options{
		ID: "server-1", Names: group, Disks: objecttest.NewDisks("one", "two"), State: state.New(), Logger: logger, Scrape: telemetry.NewRegistry(),
		News: NewNews(&core.Core{Logger: logger}, nil),
	})
	must(t, err)
	return s, group
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var bucket = object.Bucket{UID: "uid-photos", Name: "photos", Namespace: "default", NamespaceUID: "default"}

func (s *Storage) leads(t *testing.T) bool {
	t.Helper()
	status, err := s.loops.Status(t.Context())
	must(t, err)
	return status.Leading
}

// The engine works as soon as it is open. The loops run while Run does, and nothing is left after Close.
func TestTheStoreStartsAndEnds(t *testing.T) {
	s, group := newStorage(t)
	put := func(key string) error {
		_, err := s.Put(t.Context(), bucket, object.PutRequest{Key: key, Body: strings.NewReader("meow"), Size: 4})
		return err
	}
	must(t, put("before the loops"))
	if s.leads(t) {
		t.Error("the loops run before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for !s.leads(t) { // the loops begin in a moment
		select {
		case err := <-ended:
			t.Fatalf("Run ended with %v", err)
		case <-group.Changed():
		default:
		}
	}
	must(t, s.loops.RepairNow(t.Context(), nil))
	must(t, put("beside the loops"))
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
	if s.leads(t) {
		t.Error("the loops run after Run")
	}
	must(t, put("after the loops")) // requests end later than the loops
	s.Close()
	s.Close() // of a server that was stopped while it started
}

func answer(h http.Handler, method string, headers map[string]string) string {
	r := httptest.NewRequest(method, "/photos/cat", nil)
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Body.String()
}

// S3 clients and browsers that ask for them get to the gateway, and all others past it.
func TestFrontEnds(t *testing.T) {
	s, _ := newStorage(t)
	defer s.Close()
	passed := atomic.Int32{}
	others := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { passed.Add(1) })
	if answer(s.Handler(others), http.MethodGet, signed()); passed.Load() != 1 {
		t.Error("before Serve, a signed request did not get past the gateway")
	}
	server := grpc.NewServer()
	must(t, s.Serve(server, s3test.NewDirectory(s.Store)))
	for _, service := range []string{"cloudless.v1.ObjectService", "cloudless.v1.StorageService"} {
		if _, there := server.GetServiceInfo()[service]; !there {
			t.Errorf("there is no %s", service)
		}
	}
	h := s.Handler(others)
	if got := answer(h, http.MethodGet, signed()); !strings.Contains(got, "InvalidAccessKeyId") {
		t.Errorf("a signed request got %q", got)
	}
	answer(h, http.MethodOptions, map[string]string{"Origin": "https://example.com", "Access-Control-Request-Method": "GET"})
	if passed.Load() != 1 {
		t.Error("the question of a browser got past the gateway")
	}
	answer(h, http.MethodGet, nil)
	answer(h, http.MethodOptions, map[string]string{"Origin": "https://example.com"})
	if passed.Load() != 3 {
		t.Errorf("%d requests of others got past the gateway, want 2", passed.Load()-1)
	}
}

// signed are the headers of a request that is signed by an access key that does not exist.
func signed() map[string]string {
	now := time.Now().UTC()
	return map[string]string{
		"Authorization": "AWS4-HMAC-SHA256 Credential=clabcdefghijklmnopqr/" + now.Format("20060102") +
			"/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0", 64),
		"X-Amz-Date": now.Format("20060102T150405Z"), "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD",
	}
}

// A process can answer S3 clients once. Another server in it goes on without, and takes over when the first one has ended.
func TestOneServerOfAProcessAnswersS3Clients(t *testing.T) {
	first, _ := newStorage(t)
	must(t, first.Serve(grpc.NewServer(), s3test.NewDirectory(first.Store)))
	second, _ := newStorage(t)
	must(t, second.Serve(grpc.NewServer(), s3test.NewDirectory(second.Store)))
	if first.gateway == nil || second.gateway != nil {
		t.Error("not the first server answers S3 clients")
	}
	second.Close()
	first.Close()
	third, _ := newStorage(t)
	must(t, third.Serve(grpc.NewServer(), s3test.NewDirectory(third.Store)))
	if third.gateway == nil {
		t.Error("the gateway of a server that has ended is still there")
	}
	third.Close()
}
