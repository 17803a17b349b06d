package auth

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/server/core"
)

// maxUses bounds the tokens whose last use is remembered.
const maxUses = 10_000

// Use is the last use of an API token at this server.
type Use struct {
	TokenUID, SecretID string
	Time               time.Time
	Address            netip.Addr
}

// Uses remembers when each API token was last used, and where from, until it is told to others.
type Uses struct {
	mu  sync.Mutex
	all map[string]Use
}

func (u *Uses) add(p core.Principal, from netip.Addr, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.all[p.TokenUID]; !known && len(u.all) >= maxUses {
		return
	}
	if u.all == nil {
		u.all = map[string]Use{}
	}
	u.all[p.TokenUID] = Use{TokenUID: p.TokenUID, SecretID: p.SecretID, Time: now, Address: from}
}

// Take returns the uses since the last time.
func (u *Uses) Take() []Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	var taken []Use
	for _, use := range u.all {
		taken = append(taken, use)
	}
	u.all = nil
	return taken
}
