package ingress

import (
	"net"
	"strconv"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/proxyproto"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// serveTCP connects a client of a TCP route with an endpoint.
func (e *Engine) serveTCP(c *client, p port, r *route) {
	began := time.Now()
	if len(r.allow) > 0 && !within(r.allow, c.from.Addr()) {
		return
	}
	var conn net.Conn = c
	if r.tls {
		encrypted, _, ok := e.handshake(c, e.tlsForPort(p))
		if !ok {
			return
		}
		conn = encrypted
	} else if c.r == nil { // without a layer in between, the kernel can copy
		conn = c.Conn
	}
	c.busy.Store(true)
	backend, one, ok := e.dialBackend(r, "tcp")
	if !ok {
		r.local.answered(time.Since(began), true)
		return
	}
	defer func() { _ = backend.Close() }()
	one.meter.answered(time.Since(began), false)
	one.meter.open.Add(1)
	defer one.meter.open.Add(-1)
	if version := r.spec.GetProxyProtocol(); version != "" {
		if _, err := backend.Write(proxyproto.Append(nil, version, c.from, c.to)); err != nil {
			return
		}
	}
	t := tunnel{idle: r.idle, received: &one.meter.received, sent: &one.meter.sent}
	t.run(conn, conn, backend, backend)
	_ = conn.Close()
}

// dialBackend connects to an endpoint of a route, and waits for one if there may be one soon.
func (e *Engine) dialBackend(r *route, network string) (net.Conn, choice, bool) {
	var tried []*endpoint
	for attempt := 0; attempt <= r.retries; attempt++ {
		one, ok := r.choose(tried, false)
		if !ok && len(tried) == 0 {
			one, ok = e.hold(e.ctx, r, false, mostHold, nil)
		}
		if !ok {
			return nil, one, false
		}
		conn, err := one.to.dial(e.ctx, network, r.connect)
		if err == nil {
			return conn, one, true
		}
		tried = append(tried, one.to)
	}
	return nil, choice{}, false
}
