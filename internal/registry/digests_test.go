package registry_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cloudless/cloudless/internal/registry"
)

// A cached digest must not outlive a push to the same tag or a deletion, once the client
// has its answer.
func TestDigestFollowsPushesAndDeletions(t *testing.T) {
	s := serve(t, t.TempDir(), slog.New(slog.DiscardHandler))
	for range 3 {
		pushed := s.push(t, "hello:1", randomImage(t))
		for range 2 { // from the storage, and from memory
			got, err := s.Digest(t.Context(), "hello", "1")
			if err != nil {
				t.Fatal(err)
			}
			if got != pushed {
				t.Fatalf("the tag stands for %s after a push of %s", got, pushed)
			}
		}
	}
	last, err := s.Digest(t.Context(), "hello", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(repository(t, parse(t, "hello")).Digest(last), remote.WithTransport(s.transport)); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"1", last} {
		if got, err := s.Digest(t.Context(), "hello", ref); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("the deleted image is still found by %s: %s, %v", ref, got, err)
		}
	}
}
