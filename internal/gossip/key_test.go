package gossip_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/gossip"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// Servers switch to another key while they gossip. A server with the old key, or none, is ignored until it has the new
// one.
func TestOnlyTheCurrentKeyIsUnderstood(t *testing.T) {
	a := start(t, "a")
	b := start(t, "b", a)
	for _, s := range []*server{a, b} {
		if err := s.UseKey(key(1)); err != nil {
			t.Fatal(err)
		}
	}
	b.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b") })
	for _, s := range []*server{a, b} {
		if err := s.UseKey(key(2)); err != nil {
			t.Fatal(err)
		}
	}
	c := start(t, "c", a, b)
	old := start(t, "old", a, b)
	if err := old.UseKey(key(1)); err != nil {
		t.Fatal(err)
	}
	if err := c.UseKey(key(2)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*server{a, b, c} {
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b", "c") })
	}
	for _, s := range []*server{a, b, c} {
		if got := s.Server("old"); got.ID != "" {
			t.Errorf("%s has heard of a server with the old key: %+v", s.id, got)
		}
	}
	if got := old.Server("a"); got.ID != "" {
		t.Errorf("a server with the old key has understood %+v", got)
	}
	if err := old.UseKey(key(2)); err != nil {
		t.Fatal(err)
	}
	a.until(t, func(all map[string]gossip.Server) bool { return alive(all, "b", "c", "old") })
	if err := a.UseKey([]byte("short")); err == nil {
		t.Error("a key of five bytes is used")
	}
}

// An expelled server is forgotten at once by the server that expels it, and by those that hear of that.
func TestExpelledServerIsForgotten(t *testing.T) {
	a := start(t, "a")
	b := start(t, "b", a)
	c := start(t, "c", a)
	for _, s := range []*server{a, b} {
		s.until(t, func(all map[string]gossip.Server) bool { return alive(all, "a", "b", "c") })
	}
	c.crash()
	began := time.Now()
	if err := a.Expel("c"); err != nil {
		t.Fatal(err)
	}
	if a.Server("c").Alive {
		t.Errorf("a still hears of c %s after it has expelled it", time.Since(began))
	}
	b.until(t, func(all map[string]gossip.Server) bool { return !all["c"].Alive })
}
