package images_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/images"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/state"
)

// servers are a leader and one other server.
type servers struct{}

func (servers) ID() string { return "s-1" }

func (servers) Servers() []consensus.Server {
	return []consensus.Server{{ID: "s-1", Voter: true}, {ID: "s-2", Voter: true}}
}

// played are images whose copies are only recorded.
type played struct {
	untagged []*v1.ImageCopy
	there    []*v1.ImageCopy // at the other server
	full     bool            // its disk is full

	mu   sync.Mutex
	done []string
}

func (p *played) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, what)
}

func (p *played) ImportTags(context.Context) error { return nil }

func (p *played) ForgetDeleted(context.Context, func(registry.Deleted) bool) error { return nil }

func (p *played) FollowTags(context.Context) {}

func (p *played) Tagged(snap *state.Snapshot) (all []*v1.ImageCopy) {
	for t := range snap.Tags() {
		all = append(all, &v1.ImageCopy{Repository: "web", Tag: "1", Digest: t.GetDigest()})
	}
	return all
}

func (p *played) Untagged(*state.Snapshot) []*v1.ImageCopy { return p.untagged }

func (p *played) Have(_ context.Context, _, digest string) error {
	p.note("have " + digest)
	return nil
}

func (p *played) CopiesAt(context.Context, string) ([]*v1.ImageCopy, error) { return p.there, nil }

func (p *played) CopyTo(server string, image *v1.ImageCopy) error {
	p.note("copy " + image.GetDigest() + " to " + server)
	if p.full {
		return errors.New("its disk is full")
	}
	return nil
}

func (p *played) DropAt(_ context.Context, server, repository, reference string, _ bool) error {
	p.note("drop " + repository + ":" + reference + " at " + server)
	return nil
}

// round is what one round of the loop does.
func (p *played) round(t *testing.T, l *images.Loop) []string {
	t.Helper()
	p.done = nil
	l.Round(t.Context())
	return p.done
}

func TestOtherServersGetWhatTheyLackAndLoseWhatWasDeleted(t *testing.T) {
	store := state.New()
	var b state.Batch
	b.Create(&statev1.Tag{Metadata: &v1.Metadata{Uid: state.TagUID("web", "1")}, Digest: "sha256:new"})
	if _, err := store.Apply(1, b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
	p := &played{
		untagged: []*v1.ImageCopy{{Repository: "web", Digest: "sha256:run"}},
		there:    []*v1.ImageCopy{{Repository: "web", Tag: "1", Digest: "sha256:old"}, {Repository: "web", Tag: "gone", Digest: "sha256:old"}},
	}
	l := &images.Loop{Store: store, Consensus: servers{}, Images: p, Logger: slog.New(slog.DiscardHandler)}
	here := []string{"have sha256:new", "have sha256:run"}
	// A failed copy is retried; an untagged image that has arrived is offered once.
	for _, full := range []bool{true, false} {
		p.full = full
		want := append(slices.Clone(here), "copy sha256:new to s-2", "copy sha256:run to s-2", "drop web:gone at s-2")
		if got := p.round(t, l); !slices.Equal(got, want) {
			t.Errorf("with a full disk: %t, the loop did %q, want %q", full, got, want)
		}
	}
	p.there = []*v1.ImageCopy{{Repository: "web", Tag: "1", Digest: "sha256:new"}}
	if got := p.round(t, l); !slices.Equal(got, here) {
		t.Errorf("with nothing left to do, the loop did %q", got)
	}
}
