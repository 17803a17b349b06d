package oneport

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/stats"
)

// Stranger is a connection without authentication by its handshake. All methods of a nil Stranger do nothing.
type Stranger struct{ conn *conn }

type strangerKey struct{}

// StrangerOf returns the connection of a call; nil if it is that of a member.
func StrangerOf(ctx context.Context) *Stranger {
	s, _ := ctx.Value(strangerKey{}).(*Stranger)
	return s
}

// Authenticated says that the caller has authenticated. The limits for strangers no longer apply to the connection.
func (s *Stranger) Authenticated() {
	if s == nil {
		return
	}
	if s.conn.refused.Load() != 0 {
		s.conn.refused.Store(0)
	}
	if s.Limited() {
		s.conn.port.gate.authenticated(s.conn)
	}
}

// Limited reports whether the limits for strangers apply to the connection.
func (s *Stranger) Limited() bool { return s != nil && s.conn.limited.Load() }

// Refused says that a call has ended without authentication, and reports whether the connection may make no other one
// before it authenticates. After that it is cut.
func (s *Stranger) Refused() (last bool) {
	if s == nil {
		return false
	}
	more := int64(s.conn.port.gate.limits.Refusals) - s.conn.refused.Add(1)
	if more < 0 {
		_ = s.conn.Close()
	}
	return more <= 0
}

// Begin reports whether an unauthenticated caller may make a call, which lasts as long as its context.
func (s *Stranger) Begin(ctx context.Context) bool {
	if !s.Limited() {
		return true
	}
	g, c := s.conn.port.gate, s.conn
	counted, may := g.call(c)
	if counted {
		context.AfterFunc(ctx, func() {
			g.callEnded(c)
			if s.Limited() { // else the call has authenticated
				s.Refused()
			}
		})
	}
	return may
}

// ConnContext is for the http.Server that serves [Port.HTTP].
func ConnContext(ctx context.Context, raw net.Conn) context.Context {
	secure, ok := raw.(*tls.Conn)
	if !ok {
		return ctx
	}
	c, ok := secure.NetConn().(*conn)
	if !ok || !c.limited.Load() {
		return ctx
	}
	return context.WithValue(ctx, strangerKey{}, &Stranger{c})
}

// GRPCStats is for the grpc.Server that serves [Port.GRPC] of strangers. It lets calls find their connection by
// [StrangerOf], and ends their contexts with it: gRPC does not end the context of a call that InTapHandle refuses.
func (p *Port) GRPCStats() stats.Handler { return connStats{p} }

type connStats struct{ port *Port }

type endKey struct{}

func (h connStats) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	if StrangerOf(ctx) == nil {
		if c := h.port.gate.find(info.RemoteAddr); c != nil {
			ctx = context.WithValue(ctx, strangerKey{}, &Stranger{c})
		}
	}
	ctx, end := context.WithCancel(ctx)
	return context.WithValue(ctx, endKey{}, end)
}

func (connStats) HandleConn(ctx context.Context, event stats.ConnStats) {
	if _, ended := event.(*stats.ConnEnd); ended {
		if end, ok := ctx.Value(endKey{}).(context.CancelFunc); ok {
			end()
		}
	}
}

func (connStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (connStats) HandleRPC(context.Context, stats.RPCStats)                       {}
