package chunks

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Attempts to listen wait for minPause first, and then for twice as long each time, up to maxPause: the address appears
// when the node's network is there.
const (
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
)

// serveMesh answers other nodes at this node's address in the mesh until ctx ends.
func (c *Chunks) serveMesh(ctx context.Context) {
	if c.opts.Mesh == nil {
		return
	}
	for ctx.Err() == nil {
		addresses, changed := c.opts.Mesh()
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
