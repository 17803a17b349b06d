package peering

import (
	"context"
	"errors"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/membership"
	"github.com/cloudless/cloudless/internal/state"
)

// gossipKey is the newest key of the gossip that this server knows.
type gossipKey struct {
	bytes   []byte
	version uint64
}

// takeStoredKey takes the key that the state has, if it is newer.
func (p *Peers) takeStoredKey() error {
	key, version, err := p.Server.GossipKey()
	if errors.Is(err, identity.ErrUnknownKey) {
		p.logger.Debug("the key of the gossip in the state is of an earlier time; this server is still catching up", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	return p.takeKey(key, version)
}

// takeKey uses a key from now on, unless this server knows a newer one: a server that was away has an old one.
func (p *Peers) takeKey(key []byte, version uint64) error {
	if len(key) == 0 || version <= p.key.version {
		return nil
	}
	p.key = gossipKey{bytes: key, version: version}
	if g := p.gossip.Load(); g != nil {
		return g.UseKey(key)
	}
	return nil
}

// lonelyPause is how often a server that hears no other asks for the key.
const lonelyPause = time.Second

// followGossipKey uses the newest key of the state and forgets removed servers. While this server hears no other, it
// asks the others for the key: it may have been away when the key changed, or be new.
func (p *Peers) followGossipKey(ctx context.Context) error {
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
			err = p.take(news.Changes)
		}
		if err != nil {
			return err
		}
		p.noteMoves(seen.Snapshot, news)
		seen = news
	}
}

// takeAnew does what take does, for all changes that may have been missed.
func (p *Peers) takeAnew(snap *state.Snapshot) error {
	if err := p.takeStoredKey(); err != nil {
		return err
	}
	for _, s := range p.gossip.Load().Servers() {
		if snap.Revocation(s.ID) != nil {
			p.forgetServer(s.ID)
		}
	}
	return nil
}

// take acts on changes of the key and on removals. The key comes first, so that the others understand this server.
func (p *Peers) take(changes []state.Change) error {
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
func (p *Peers) forgetServer(uid string) {
	if uid == p.Self.UID {
		return
	}
	if err := p.gossip.Load().Expel(uid); err != nil {
		p.logger.Debug("the others were not told that a server was removed", "error", err)
	}
}

// lonely reports whether there are other servers and none is heard.
func (p *Peers) lonely() bool {
	others := false
	for _, s := range p.known() {
		if s.ID == p.Self.UID {
			continue
		}
		others = true
		if s.ID != "" && p.heard(s.ID).Alive {
			return false
		}
	}
	return others
}

// askForKey asks the others, one after the other, until one knows a newer key. It fails if one knows that this server
// was removed: a server that no other reaches would not learn of its removal in another way.
func (p *Peers) askForKey(ctx context.Context) error {
	before := p.key.version
	for _, s := range p.known() {
		if s.ID == p.Self.UID || s.Address == "" || p.key.version != before {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, lonelyPause)
		key, version, err := p.Server.AskGossipKey(asking, s.Address)
		cancel()
		if err == nil {
			err = p.takeKey(key, version)
		}
		if errors.Is(err, membership.ErrRemoved) {
			return err
		}
		if err != nil {
			p.logger.Debug("the key of the gossip was not to be had", "from", s.Address, "error", err)
		}
	}
	return nil
}
