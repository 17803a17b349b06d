// Package images is the leader's loop that copies images to every server: each should have the images of all tags and
// revisions, and no other tag.
//
// It knows which images the servers should have, and not how images are stored or copied.
package images

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// mirrorPause is how often the leader looks for servers that lack an image.
const mirrorPause = 15 * time.Second

// Images are the images of this server, and its access to those of the others.
type Images interface {
	// ImportTags imports the tags that older releases stored only in their registries.
	ImportTags(ctx context.Context) error
	// ForgetDeleted forgets the deleted images that can no longer be restored, and those that over names.
	ForgetDeleted(ctx context.Context, over func(registry.Deleted) bool) error
	// FollowTags makes the tags of this server's registry match the state.
	FollowTags(ctx context.Context)
	// Tagged are the images that have a tag, and Untagged those that are needed without one.
	Tagged(snap *state.Snapshot) []*v1.ImageCopy
	Untagged(snap *state.Snapshot) []*v1.ImageCopy
	// Have fetches an image from another server unless it is here.
	Have(ctx context.Context, repository, digest string) error
	// CopiesAt are the tagged images that another server has.
	CopiesAt(ctx context.Context, server string) ([]*v1.ImageCopy, error)
	// CopyTo makes another server copy an image from this one, and DropAt makes it delete one.
	CopyTo(server string, image *v1.ImageCopy) error
	DropAt(ctx context.Context, server, repository, reference string, now bool) error
}

// Consensus lists the servers.
type Consensus interface {
	ID() string
	Servers() []consensus.Server
}

// Loop copies images to every server while this one leads.
type Loop struct {
	Store     *state.Store
	Consensus Consensus
	Images    Images
	Logger    *slog.Logger

	failures telemetry.Failures
	mu       sync.Mutex
	// has are the images without tags that a server has, by its uid.
	has map[string]map[string]bool
}

// Run gives every server the images of all tags and revisions, and no other tag, this server first, until ctx ends. It
// runs on the leader.
func (l *Loop) Run(ctx context.Context) error {
	ticker := time.NewTicker(mirrorPause)
	defer ticker.Stop()
	for {
		l.Round(ctx)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// Round does so once.
func (l *Loop) Round(ctx context.Context) {
	err := l.Images.ImportTags(ctx)
	l.note(ctx, "the tags of images of older servers could not be taken over; trying again", "", nil, err)
	if err != nil {
		return // tags that no server has reported yet must not be dropped
	}
	err = l.Images.ForgetDeleted(ctx, func(registry.Deleted) bool { return false })
	l.note(ctx, "deleted images could not be forgotten; trying again", "", nil, err)
	l.followHere(ctx)
	servers := l.Consensus.Servers()
	l.forgetOthers(servers)
	var all sync.WaitGroup
	defer all.Wait()
	for _, other := range servers {
		if other.ID != l.Consensus.ID() {
			all.Go(func() { l.followThere(ctx, other.ID) })
		}
	}
}

// followHere fetches the images of all tags, and those needed without one, into this server's registry. Images that
// only an unreachable server has come in a later round, or on demand.
func (l *Loop) followHere(ctx context.Context) {
	l.Images.FollowTags(ctx)
	snap := l.Store.Snapshot()
	for _, image := range append(l.Images.Tagged(snap), l.Images.Untagged(snap)...) {
		if ctx.Err() != nil {
			return
		}
		err := l.Images.Have(ctx, image.GetRepository(), image.GetDigest())
		l.note(ctx, "an image could not be had from any other server; trying again", "", image, err)
	}
}

// followThere sends another server the images that it lacks and removes deleted ones from it. An image that fails, as
// on a full disk, delays no other.
func (l *Loop) followThere(ctx context.Context, server string) {
	have, err := l.Images.CopiesAt(ctx, server)
	if err != nil {
		return // it follows when it is back
	}
	there := map[string]string{}
	for _, image := range have {
		there[state.TagUID(image.GetRepository(), image.GetTag())] = image.GetDigest()
	}
	// It got tags only after they were committed, so this state includes them.
	snap := l.Store.Snapshot()
	for _, image := range l.Images.Tagged(snap) {
		if ctx.Err() != nil {
			return
		}
		if there[state.TagUID(image.GetRepository(), image.GetTag())] != image.GetDigest() {
			l.note(ctx, "an image could not be copied to a server; trying again", server, image, l.Images.CopyTo(server, image))
		}
	}
	l.bringUntagged(ctx, server, l.Images.Untagged(snap))
	for _, image := range have {
		if snap.Tag(image.GetRepository(), image.GetTag()).GetDigest() == "" {
			err := l.Images.DropAt(ctx, server, image.GetRepository(), image.GetTag(), false)
			l.note(ctx, "a server still has an image that was deleted; trying again", server, image, err)
		}
	}
}

// bringUntagged sends another server images without tags. It does not list those, but says so if it has one already:
// each is offered once.
func (l *Loop) bringUntagged(ctx context.Context, server string, wanted []*v1.ImageCopy) {
	had := l.had(server)
	has := map[string]bool{}
	for _, image := range wanted {
		if ctx.Err() != nil {
			return
		}
		name := image.GetRepository() + "@" + image.GetDigest()
		if !had[name] {
			err := l.Images.CopyTo(server, image)
			l.note(ctx, "an image that is needed without a tag could not be copied to a server; trying again", server, image, err)
			if err != nil {
				continue
			}
		}
		has[name] = true
	}
	l.remember(server, has)
}

// note logs a failure once, not in every round.
func (l *Loop) note(ctx context.Context, message, server string, image *v1.ImageCopy, err error) {
	l.failures.Note(ctx, l.Logger, message, err, "server", server, "image", image.GetRepository(), "tag", image.GetTag())
}

// had are the images without tags that a server is known to have.
func (l *Loop) had(server string) map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.has[server]
}

func (l *Loop) remember(server string, has map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.has == nil {
		l.has = map[string]map[string]bool{}
	}
	l.has[server] = has
}

// forgetOthers forgets servers that are gone.
func (l *Loop) forgetOthers(servers []consensus.Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.has, func(uid string, _ map[string]bool) bool {
		return !slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.ID == uid })
	})
}
