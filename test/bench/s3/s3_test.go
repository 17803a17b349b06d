package s3

import (
	"context"
	"net/http/httptest"
	"testing"
)

// The floor does what clients rely on: it stores and returns objects, and refuses what is not signed with the key.
func TestPlainServesSignedRequests(t *testing.T) {
	server := httptest.NewTLSServer(&Plain{Dir: t.TempDir(), Key: "key", Secret: "secret"})
	defer server.Close()
	e := &Endpoint{URL: server.URL, Key: "key", Secret: "secret"}
	defer e.Close()
	ctx := context.Background()
	if err := e.Fill(ctx, "bucket", "a/%03d", 20, 5000); err != nil {
		t.Fatal(err)
	}
	if err := e.Get(ctx, "bucket", "a/019", 5000); err != nil {
		t.Error(err)
	}
	if e.Get(ctx, "bucket", "a/020", 5000) == nil {
		t.Error("an object that was not put is there")
	}
	stranger := &Endpoint{URL: server.URL, Key: "key", Secret: "another"}
	defer stranger.Close()
	if stranger.Get(ctx, "bucket", "a/019", 5000) == nil {
		t.Error("a request with a wrong signature was answered")
	}
}
