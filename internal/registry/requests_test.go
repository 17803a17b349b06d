package registry_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// A wrong manifest is the client's mistake, and the answer says what is wrong.
func TestWrongManifestsAreRefused(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	for body, want := range map[string]string{
		`{`:                   "not JSON",
		`[]`:                  "not JSON",
		`{}`:                  "schemaVersion is 0, and must be 2",
		`{"schemaVersion":1}`: "schemaVersion is 1, and must be 2",
		`{"schemaVersion":2,"config":{"digest":"sha256:zz"}}`: `digest \"sha256:zz\"`,
		`{"schemaVersion":2,"layers":[{"size":1}]}`:           "digest",
		strings.Repeat(" ", 5<<20):                            "bytes at most",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://registry/v2/web/manifests/1", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		answer, err := s.transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(said), "MANIFEST_INVALID") || !strings.Contains(string(said), want) {
			t.Errorf("%.60s: %s %s, want %q", body, answer.Status, said, want)
		}
	}
}
