package auth

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/server/redaction"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Router passes admitted calls to the server that answers them.
type Router interface {
	Unary(ctx context.Context, request any, method string, handler grpc.UnaryHandler) (any, error)
	Stream(service any, stream *GuardedStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error
}

// Guard handles every gRPC call: it authenticates, authorizes and validates, and maps the
// errors of the handler to codes.
type Guard struct {
	Auth        *Authenticator
	MemberCalls *MemberCalls
	Revoked     *Revocations
	Logger      *slog.Logger
	Metrics     *telemetry.Server
	Tracing     *telemetry.Tracing
	Router      Router
	// Stopping ends every stream, so that the server can stop.
	Stopping context.Context
}

func (g *Guard) admit(ctx context.Context, method string) (context.Context, error) {
	if open(method) {
		return ctx, nil
	}
	p, err := g.Auth.authenticateCall(ctx, method)
	if err != nil {
		return ctx, err
	}
	g.MemberCalls.add()
	p, err = g.Auth.decide(ctx, p, func(p core.Principal) error { return g.Auth.Authorize(p, method) })
	return core.WithPrincipal(ctx, p), err
}

// admitRequest refuses a call by what its first message is about.
func (g *Guard) admitRequest(ctx context.Context, method string, request any) (context.Context, error) {
	if open(method) {
		return ctx, nil
	}
	p, err := g.Auth.decide(ctx, core.Caller(ctx), func(p core.Principal) error { return g.Auth.AuthorizeRequest(p, method, request) })
	return core.WithPrincipal(ctx, p), err
}

// precise returns a refusal that also names the namespace, which the request says.
func (g *Guard) precise(ctx context.Context, method string, request any, refusal error) error {
	if _, forbidden := errors.AsType[*core.Forbidden](refusal); !forbidden {
		return refusal
	}
	return cmp.Or(g.Auth.AuthorizeRequest(core.Caller(ctx), method, request), refusal)
}

// NoSuchMethod answers calls to methods that do not exist. gRPC itself would answer them
// before the guard, and an unauthenticated caller could find out which methods exist.
func NoSuchMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return status.Errorf(codes.Unimplemented, "%s is not a method of this server", strings.TrimPrefix(method, "/"))
}

// Unary guards unary calls.
func (g *Guard) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, call := g.begin(ctx, info.FullMethod, false)
	_ = grpc.SetHeader(ctx, metadata.Pairs(telemetry.RequestIDHeader, telemetry.RequestID(ctx)))
	defer func() { err = g.finish(ctx, call, recover(), err) }()
	if ctx, err = g.admit(ctx, info.FullMethod); err != nil {
		return nil, g.precise(ctx, info.FullMethod, request, err)
	}
	if err = shortEnough(info.FullMethod, request); err != nil {
		return nil, err
	}
	if ctx, err = g.admitRequest(ctx, info.FullMethod, request); err != nil {
		return nil, err
	}
	response, err = g.Router.Unary(ctx, request, info.FullMethod, func(ctx context.Context, request any) (any, error) {
		// The server that answers validates, not those that relay the call. The handler of
		// an open method authenticates its caller first.
		if !open(info.FullMethod) {
			if err := validate(request); err != nil {
				return nil, err
			}
		}
		answer, err := handler(ctx, request)
		return redaction.Hide(core.Caller(ctx), answer), err
	})
	if err == nil && !asksOnly(info.FullMethod) {
		oneport.StrangerOf(ctx).Authenticated()
	}
	return response, err
}

// Stream guards streams.
func (g *Guard) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	if _, known := api.MethodOf(info.FullMethod); !known { // not counted, because any client can make up names
		if _, err := g.Auth.authenticateCall(stream.Context(), info.FullMethod); err != nil {
			return core.StatusOf(err)
		}
		return NoSuchMethod(service, stream) // nor is a method answered that no caller may call
	}
	ctx, call := g.begin(stream.Context(), info.FullMethod, true)
	_ = stream.SetHeader(metadata.Pairs(telemetry.RequestIDHeader, telemetry.RequestID(ctx)))
	defer func() { err = g.finish(ctx, call, recover(), err) }()
	ctx, err = g.admit(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	gate := &gate{guard: g, method: info.FullMethod}
	ctx, release := g.Revoked.Bind(ctx, core.Caller(ctx), gate.still)
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.Stopping, func() { cancel(core.ErrStopping) })()
	if p := core.Caller(ctx); p.IsUser() && g.Auth.snapshot().Token(p.TokenUID) == nil {
		return status.Error(codes.Unauthenticated, ErrUnknownToken.Error()) // revoked before it was bound
	}
	err = g.Router.Stream(service, &GuardedStream{ServerStream: stream, ctx: ctx, gate: gate, revocable: core.Caller(ctx).IsUser()}, info, handler)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, core.ErrStopping):
		return status.Error(codes.Unavailable, cause.Error())
	case errors.Is(cause, ErrUnknownToken):
		return status.Error(codes.Unauthenticated, cause.Error())
	case isChange(cause):
		return core.StatusOf(cause)
	}
	return err
}

// call is one call from its beginning to its end.
type call struct {
	method  string
	started time.Time
	span    *telemetry.Span
}

// begin gives a call its id, and continues its caller's trace.
func (g *Guard) begin(ctx context.Context, method string, stream bool) (context.Context, call) {
	chosen := "" // by the caller
	if values := metadata.ValueFromIncomingContext(ctx, telemetry.RequestIDHeader); len(values) == 1 {
		chosen = values[0]
	}
	ctx, _ = telemetry.WithRequestID(ctx, chosen)
	begun := call{method: method, started: time.Now()}
	ctx, begun.span = g.Tracing.Serve(ctx, method, stream)
	g.Metrics.CallBegan()
	return ctx, begun
}

// finish is the one place that maps errors to codes, that hides in them what the caller may not see, and that prevents
// a bug in one call from ending the process.
func (g *Guard) finish(ctx context.Context, c call, panicked any, err error) error {
	if panicked != nil {
		g.Logger.ErrorContext(ctx, "call panicked", "method", c.method, "panic", panicked, "stack", string(debug.Stack()))
		err = status.Error(codes.Internal, "the server failed to answer this call; its log says more")
	}
	err = redaction.HideInError(core.Caller(ctx), core.StatusOf(core.For(core.Caller(ctx), err)))
	code := status.Code(err)
	if code == codes.Internal {
		err = quotable(err, telemetry.RequestID(ctx))
	}
	took := time.Since(c.started)
	g.Metrics.CallEnded(c.method, code.String(), fault(code), took)
	c.span.End(err)
	if code == codes.Internal || code == codes.Unknown {
		g.Logger.ErrorContext(ctx, "call failed", "method", c.method, "error", err)
	}
	if g.Logger.Enabled(ctx, slog.LevelDebug) {
		g.Logger.DebugContext(ctx, "call", "method", c.method, "caller", callerOf(ctx), "code", code.String(), "took", took)
	}
	return err
}

// quotable adds the id of the call to an error that only the server's log explains.
func quotable(err error, id string) error {
	st := status.Convert(err).Proto()
	st.Message += " (request " + id + ")"
	return status.FromProto(st).Err()
}

// callerOf returns the caller for the log.
func callerOf(ctx context.Context) string {
	if id := core.Caller(ctx).ID; !id.IsZero() {
		return string(id.Kind()) + "/" + id.Name()
	}
	return "unknown"
}

// maxOpenMessage is the longest request in bytes to a method that needs no identity.
const maxOpenMessage = 64 << 10

// shortEnough refuses long messages to methods that need no identity.
func shortEnough(method string, request any) error {
	if !open(method) {
		return nil
	}
	if m, ok := request.(proto.Message); ok && proto.Size(m) > maxOpenMessage {
		return core.Refuse(codes.InvalidArgument, "the message has %d bytes, and this call takes at most %d bytes: give the machine fewer or shorter labels", proto.Size(m), maxOpenMessage)
	}
	return nil
}

func validate(message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	return spec.Validate(m)
}

// GuardedStream validates incoming messages and carries the principal.
type GuardedStream struct {
	grpc.ServerStream
	ctx  context.Context
	gate *gate
	// revocable streams end with their context even while they wait for the caller's next
	// message. Streams of members do without, which saves a goroutine.
	revocable bool
}

func (s *GuardedStream) Context() context.Context { return s.ctx }

// With returns the stream with another context.
func (s *GuardedStream) With(ctx context.Context) *GuardedStream {
	return &GuardedStream{ServerStream: s.ServerStream, ctx: ctx, gate: s.gate, revocable: s.revocable}
}

// SendMsg hides from the caller what it may not see.
func (s *GuardedStream) SendMsg(m any) error {
	return s.ServerStream.SendMsg(redaction.Hide(core.Caller(s.ctx), m))
}

func (s *GuardedStream) RecvMsg(m any) error {
	if err := s.receive(m); err != nil {
		return err
	}
	if err := s.gate.first(s.ctx, m); err != nil {
		return err
	}
	return validate(m)
}

func (s *GuardedStream) receive(m any) error {
	if !s.revocable {
		return s.ServerStream.RecvMsg(m)
	}
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(m) }() // ends with the call
	select {
	case err := <-received:
		return err
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// fault reports whether a code means that the server is to blame.
func fault(code codes.Code) bool {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unavailable, codes.ResourceExhausted:
		return true
	}
	return false
}
