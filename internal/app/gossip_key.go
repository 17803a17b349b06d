package app

import (
	"context"
	"errors"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server"
	"github.com/cloudless/cloudless/internal/state"
)

// gossipKey is the newest key of the gossip that this server knows.
type gossipKey struct {
	bytes   []byte
	version uint64
}

// takeStoredKey takes the key that the state has, if it is newer.
func (p *controlPlane) takeStoredKey() error {
	key, version, err := p.server.GossipKey()
	if err != nil {
		return err
	}
	return p.takeKey(key, version)
}

// takeKey uses a key from now on, unless this server knows a newer one: who was
// away answers with an old one.
func (p *controlPlane) takeKey(key []byte, version uint64) error {
	if len(key) == 0 || version <= p.fellows.key.version {
		return nil
	}
	p.fellows.key = gossipKey{bytes: key, version: version}
	if g := p.fellows.gossip.Load(); g != nil {
		return g.UseKey(key)
	}
	return nil
}

// lonelyPause is how often a server that hears nobody asks for the key.
const lonelyPause = time.Second

// followGossipKey uses the key that the state has, whenever that changes, forgets
// the servers that are removed, and asks others for the key while this server
// hears of none of them: it may have been away when the key changed, or be new.
func (p *controlPlane) followGossipKey(ctx context.Context) error {
	feed := p.store.Follow()
	seen := feed.Newest()
	if err := p.takeAnew(seen.Snapshot); err != nil {
		return err
	}
	var asked time.Time
	for {
		if time.Since(asked) >= lonelyPause && p.lonely() {
			if err := p.askForKey(ctx); err != nil {
				return err
			}
			asked = time.Now()
		}
		patience, cancel := context.WithTimeout(ctx, lonelyPause)
		news, err := feed.Next(patience)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			continue
		case err != nil:
			return err
		case news.Resync:
			err = p.takeAnew(news.Snapshot)
		default:
			err = p.heed(news.Changes)
		}
		if err != nil {
			return err
		}
		p.noteMoves(seen.Snapshot, news)
		seen = news
	}
}

// takeAnew does what heed does, for all that may have been missed.
func (p *controlPlane) takeAnew(snap *state.Snapshot) error {
	if err := p.takeStoredKey(); err != nil {
		return err
	}
	for _, s := range p.fellows.gossip.Load().Servers() {
		if snap.Revocation(s.ID) != nil {
			p.forgetServer(s.ID)
		}
	}
	return nil
}

// heed acts on the changes that concern the gossip: first it speaks as the others
// do, then it forgets whom they have removed.
func (p *controlPlane) heed(changes []state.Change) error {
	for _, c := range changes {
		if c.Kind == state.KindGossipKey {
			if err := p.takeStoredKey(); err != nil {
				return err
			}
		}
	}
	for _, c := range changes {
		revoked, ok := c.New.(*statev1.Revocation)
		if !ok {
			continue
		}
		if id, err := identity.ParseID(revoked.GetId()); err == nil && id.Kind() == identity.KindServer {
			p.forgetServer(id.Name())
		}
	}
	return nil
}

// forgetServer has the gossip forget a server that was removed.
func (p *controlPlane) forgetServer(uid string) {
	if uid == p.fellows.self.UID {
		return
	}
	if err := p.fellows.gossip.Load().Expel(uid); err != nil {
		p.logger.Debug("the others were not told that a server was removed", "error", err)
	}
}

// lonely reports whether there are other servers and none is heard.
func (p *controlPlane) lonely() bool {
	others := false
	for _, s := range p.known() {
		if s.ID == p.fellows.self.UID {
			continue
		}
		others = true
		if s.ID != "" && p.heard(s.ID).Alive {
			return false
		}
	}
	return others
}

// askForKey asks the others, one after the other, until one knows a newer key. It
// fails if one knows that this server was removed: where nobody reaches it, it
// would not learn of that in another way.
func (p *controlPlane) askForKey(ctx context.Context) error {
	before := p.fellows.key.version
	for _, s := range p.known() {
		if s.ID == p.fellows.self.UID || s.Address == "" || p.fellows.key.version != before {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, lonelyPause)
		key, version, err := p.server.AskGossipKey(asking, s.Address)
		cancel()
		if err == nil {
			err = p.takeKey(key, version)
		}
		if errors.Is(err, server.ErrRemoved) {
			return err
		}
		if err != nil {
			p.logger.Debug("the key of the gossip was not to be had", "from", s.Address, "error", err)
		}
	}
	return nil
}
