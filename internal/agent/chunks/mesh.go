package chunks

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Attempts to listen wait for minPause first, and then for twice as long each time, up to maxPause: the address appears
// when the node's network is there.
const (
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
)

// Addresses are those of this node inside of the mesh.
type Addresses struct {
	mu      sync.Mutex
	all     []netip.Addr
	changed chan struct{}
}

// NewAddresses returns none, until Set is called.
func NewAddresses() *Addresses { return &Addresses{changed: make(chan struct{})} }

// Set replaces the addresses.
func (a *Addresses) Set(all []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.all, all) {
		a.all = slices.Clone(all)
		close(a.changed)
		a.changed = make(chan struct{})
	}
}

// follow returns the addresses, and a channel that is closed when there are others.
func (a *Addresses) follow() ([]netip.Addr, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all, a.changed
}

// serveMesh answers other nodes at this node's address in the mesh until ctx ends.
func (c *Chunks) serveMesh(ctx context.Context) {
	for ctx.Err() == nil {
		addresses, changed := c.opts.Mesh.follow()
		here, stop := context.WithCancel(ctx)
		left := make(chan struct{})
		go func() {
			defer close(left)
			if len(addresses) > 0 {
				c.serveAt(here, netip.AddrPortFrom(addresses[0], c.opts.Port))
			}
		}()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		stop()
		<-left
	}
}

// serveAt answers other nodes at an address until ctx ends.
func (c *Chunks) serveAt(ctx context.Context, at netip.AddrPort) {
	for pause := minPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
		if err != nil {
			c.log.DebugContext(ctx, "other nodes cannot get chunks from this one yet", "address", at, "error", err)
			_ = sleep.For(ctx, pause)
			continue
		}
		pause = minPause
		c.disk.setAddress(listener.Addr().String())
		ended := context.AfterFunc(ctx, func() { _ = listener.Close() })
		err = c.toNodes.Serve(listener)
		ended()
		c.disk.setAddress("")
		if ctx.Err() == nil {
			c.log.WarnContext(ctx, "Other nodes cannot get chunks from this one for a moment.", "address", at, "error", err)
			_ = sleep.For(ctx, pause)
		}
	}
}
