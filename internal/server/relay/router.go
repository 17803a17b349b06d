package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
)

// Any server accepts any call. A call that only the leader can answer is relayed to it, over a connection that
// authenticates this server, together with the caller that this server has authenticated. Only servers may name a
// caller (package auth).
//
// While there is no leader a call waits for one: an election costs callers a moment, not an error. If there has been
// none for longer than that, most servers are lost, and callers soon get an error.

const (
	// LeaderPatience is how long a call waits for a leader. It is leastPatience if others have waited for long already.
	LeaderPatience = 10 * time.Second
	leastPatience  = time.Second
	// streamPatience is the same for a stream: a caller that opens one, mostly an agent, should try another server
	// soon.
	streamPatience = 3 * time.Second
	// catchUpPatience is how long an unknown caller waits for the catch-up.
	catchUpPatience = 2 * time.Second
	// leaderPause is the pause before the next call to a server that should lead and does not.
	leaderPause = 50 * time.Millisecond

	// Consistency is the key by which a caller asks for stale reads.
	Consistency = "consistency"
	Stale       = "stale"
)

// Router takes each call to the server that can answer it.
type Router struct {
	core    *core.Core
	peers   *Conns
	Passing *passing
	// addresses returns the addresses of all servers.
	addresses func() []string
	expel     func()        // called when this server learns that it was removed
	Patience  time.Duration // of a unary call
}

// NewRouter returns the router of a server. addresses returns the addresses of all servers, and expel ends a removed
// server.
func NewRouter(core *core.Core, peers *Conns, addresses func() []string, expel func()) *Router {
	return &Router{core: core, peers: peers, Passing: newPassing(), addresses: addresses, expel: expel, Patience: LeaderPatience}
}

// wantsStale reports whether the caller accepts a stale answer of this server.
func wantsStale(ctx context.Context) bool {
	return slices.Equal(metadata.ValueFromIncomingContext(ctx, Consistency), []string{Stale})
}

// Unary answers a call here or relays it to the leader.
func (r *Router) Unary(ctx context.Context, request any, method string, handler grpc.UnaryHandler) (any, error) {
	r.tellServers(ctx)
	m, _ := api.MethodOf(method)
	if m.AnsweredBy == v1.Method_CALLED_SERVER {
		return handler(ctx, request)
	}
	if wantsStale(ctx) && m.AnsweredBy == v1.Method_ANY_SERVER {
		return handler(consensus.WithStale(ctx), request)
	}
	message, ok := request.(proto.Message)
	if !ok {
		return handler(ctx, request)
	}
	var response any
	maybeApplied := false // an earlier attempt may have taken effect
	err := r.untilLeader(ctx, r.Patience, m.MayRetry(message), func(leader string) (err error) {
		defer func() { maybeApplied = maybeApplied || uncertain(err) && !m.Reads }()
		if leader == r.core.Consensus.ID() {
			response, err = handler(ctx, repeatable(m, message))
			return err
		}
		if response, err = r.forward(ctx, leader, m, message); !notLeader(err) && !uncertain(err) {
			r.tellLeader(ctx, leader) // once, for any number of attempts
		}
		return r.elsewhere(ctx, err)
	})
	if maybeApplied {
		err = uncertainOutcome(err)
	}
	return response, err
}

// uncertainOutcome is the error of a call whose earlier attempt may have taken effect: that the last attempt did nothing
// does not prove that nothing happened. The caller may still retry at another server with the same key.
func uncertainOutcome(err error) error {
	last := core.StatusOf(err)
	switch status.Code(last) {
	case codes.Unavailable, codes.ResourceExhausted: // a server without room refuses before it reads the state
	default:
		return err // the state remembers the earlier attempt: this is the answer to both
	}
	reasons := []string{core.ReasonUncertain}
	if core.HasReason(last, core.ReasonNoLeader) {
		reasons = append(reasons, core.ReasonNoLeader)
	}
	return core.WithReasons(codes.Unknown, fmt.Sprintf("%v; by now: %s", consensus.ErrUncertain, status.Convert(last).Message()), reasons...)
}

// elsewhere sends a caller to another server if the leader has removed this one. That is not the caller's fault, unless
// the caller is the removed server itself.
func (r *Router) elsewhere(ctx context.Context, err error) error {
	switch {
	case core.HasReason(err, core.ReasonRemoved):
		if core.Caller(ctx).ID.Kind() != identity.KindServer {
			r.expel()
		}
		return core.WithReason(core.ReasonNoLeader, "the server that was asked was removed from the cluster: ask another one")
	case core.HasReason(err, core.ReasonNotMember):
		return core.WithReason(core.ReasonNoLeader, "the server that was asked is not a member of the cluster: ask another one")
	}
	return err
}

// untilLeader calls do with the leader until a confirmed leader has answered, or the patience ends. If retry is set, it
// calls do again after an attempt that may have taken effect.
func (r *Router) untilLeader(ctx context.Context, most time.Duration, retry bool, do func(leader string) error) error {
	var patience <-chan time.Time // begins when it is needed
	for {
		changed := r.core.Consensus.Changed()
		leader, known := r.core.Consensus.Leader()
		err := error(&consensus.NotLeaderError{})
		if known {
			if leader.ID != r.core.Consensus.ID() && auth.IsForwarded(ctx) {
				return &consensus.NotLeaderError{Leader: leader} // the relaying server knows better by now
			}
			err = do(leader.ID)
		}
		again := notLeader(err) || retry && (uncertain(err) || unavailable(err))
		if !again || auth.IsForwarded(ctx) {
			return err
		}
		pause := time.After(leaderPause)
		if !known {
			pause = nil
		}
		if patience == nil {
			patience = time.After(patienceAfter(most, r.core.Consensus.Leaderless()))
		}
		select {
		case <-changed:
		case <-pause:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience:
			if unavailable(err) {
				return err // it leads, and says why it cannot answer
			}
			return r.noLeader(err)
		}
	}
}

// patienceAfter returns how long to wait for a leader if there has been none for a while.
func patienceAfter(most, leaderless time.Duration) time.Duration {
	return max(most-leaderless, leastPatience)
}

// noLeader says that nothing can be changed now.
func (r *Router) noLeader(last error) error {
	voters := 0
	for _, s := range r.core.Consensus.Servers() {
		if s.Voter {
			voters++
		}
	}
	if voters < 2 {
		return core.Refuse(codes.Unavailable, "%s", last)
	}
	return core.WithReason(core.ReasonNoLeader, fmt.Sprintf("this server reaches no leader: %d of the %d voting servers must run and reach each other; "+
		"look at them with: cloudless cluster status; what was known last is shown by commands with --stale", voters/2+1, voters))
}

// notLeader reports whether a call was not even begun because the called server does not lead.
func notLeader(err error) bool {
	if errors.Is(err, consensus.ErrNotLeader) || errors.Is(err, ErrNotConnected) {
		return true
	}
	return core.HasReason(err, core.ReasonNotLeader)
}

// uncertain reports whether it is unknown if a call has taken effect.
func uncertain(err error) bool {
	return errors.Is(err, consensus.ErrUncertain) || core.HasReason(err, core.ReasonUncertain)
}

// unavailable reports whether another server has said that it cannot answer now, for a reason of its own.
func unavailable(err error) bool {
	return status.Code(err) == codes.Unavailable && !notLeader(err) && !core.HasReason(err, core.ReasonNoLeader)
}

var ErrNotConnected = errors.New("the leader cannot be reached")

// forward relays a call to the leader.
func (r *Router) forward(ctx context.Context, leader string, method api.Method, request proto.Message) (any, error) {
	_, out, err := messagesOf(method.Name)
	if err != nil {
		return nil, err
	}
	conn, err := r.peers.Ready(ctx, leader)
	if err != nil {
		return nil, errors.Join(ErrNotConnected, err)
	}
	during, cancel := r.UntilSucceeded(ctx, leader, method.MayRetry(request))
	defer cancel()
	response, err := r.Passing.Call(during, conn, method.Name, request, out)
	if status.Code(err) == codes.Canceled && errors.Is(context.Cause(during), errSucceeded) {
		return nil, lost(errSucceeded)
	}
	if err != nil {
		return nil, err
	}
	return response, nil
}

// errSucceeded ends the wait for a former leader.
var errSucceeded = errors.New("another server leads now")

// farewell is how long a former leader may take to answer calls that cannot be retried. A leader that has handed over
// answers at once, such as the call that transferred the leadership; a leader that hangs never does.
const farewell = time.Second

// UntilSucceeded returns a context that ends, by errSucceeded, once another server than this leader is known to lead:
// at once for a call that can be retried there. Otherwise a leader that hangs would block callers until its connection
// times out.
func (r *Router) UntilSucceeded(ctx context.Context, leader string, again bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the context
		if r.awaitSuccessor(ctx, leader) != nil {
			return
		}
		if !again {
			select {
			case <-time.After(farewell):
			case <-ctx.Done():
			}
		}
		cancel(errSucceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// awaitSuccessor returns when another server than this one is known to lead.
func (r *Router) awaitSuccessor(ctx context.Context, leader string) error {
	for {
		changed := r.core.Consensus.Changed()
		if now, known := r.core.Consensus.Leader(); known && now.ID != leader {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// repeatable is the request that a handler of this server gets. The handler may change the message. A call that may be
// retried elsewhere keeps its own copy, because the state recognizes it by its key and its content.
func repeatable(method api.Method, request proto.Message) proto.Message {
	if method.MayRetry(request) && method.AnsweredBy != v1.Method_ANY_SERVER {
		return proto.Clone(request)
	}
	return request
}

// Outgoing returns the context of a call that this server relays by itself, to a server that the router does not know of.
func Outgoing(ctx context.Context) context.Context { return outgoing(ctx) }

// outgoing returns the context of a relayed call: with the caller, and the mark that it was relayed. It drops
// everything else that the caller said about itself.
func outgoing(ctx context.Context) context.Context {
	md := metadata.MD{}
	if p := core.Caller(ctx); !p.ID.IsZero() {
		md = auth.MetadataOf(p)
	}
	md.Set(auth.MetadataForwarded, "true")
	if machine := auth.MachineOf(ctx); machine.IsValid() {
		md.Set(auth.MetadataMachine, machine.String())
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// messagesOf returns the types of a method's messages.
func messagesOf(method string) (in, out protoreflect.MessageType, err error) {
	m, ok := api.MethodOf(method)
	if !ok {
		return nil, nil, core.Refuse(codes.Unimplemented, "%s is not a method of this server", method)
	}
	if in, err = protoregistry.GlobalTypes.FindMessageByName(m.Descriptor.Input().FullName()); err != nil {
		return nil, nil, err
	}
	out, err = protoregistry.GlobalTypes.FindMessageByName(m.Descriptor.Output().FullName())
	return in, out, err
}

// Stream answers a stream here as long as this server leads, or relays it to the leader.
func (r *Router) Stream(service any, stream *auth.GuardedStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := stream.Context()
	r.tellServers(ctx)
	m, _ := api.MethodOf(info.FullMethod)
	if m.AnsweredBy == v1.Method_CALLED_SERVER {
		return handler(service, stream)
	}
	if wantsStale(ctx) && m.AnsweredBy == v1.Method_ANY_SERVER {
		return handler(service, stream.With(consensus.WithStale(ctx)))
	}
	return r.untilLeader(ctx, streamPatience, false, func(leader string) error {
		if leader != r.core.Consensus.ID() {
			return r.elsewhere(ctx, r.forwardStream(ctx, leader, stream, info))
		}
		during, cancel, err := r.core.Consensus.Term(ctx)
		if err != nil {
			return err
		}
		defer cancel()
		err = handler(service, stream.With(during))
		if ctx.Err() == nil && errors.Is(context.Cause(during), consensus.ErrNotLeader) {
			return leadsNoMore()
		}
		return begun(err)
	})
}

func leadsNoMore() error {
	return core.Refuse(codes.Unavailable, "the server that answered leads the cluster no more; call again")
}

// begun prevents a retry of a stream that has begun.
func begun(err error) error {
	if notLeader(err) {
		return core.Refuse(codes.Unavailable, "%s", err)
	}
	return err
}

func (r *Router) forwardStream(ctx context.Context, leader string, down grpc.ServerStream, info *grpc.StreamServerInfo) error {
	in, out, err := messagesOf(info.FullMethod)
	if err != nil {
		return err
	}
	conn, err := r.peers.Ready(ctx, leader)
	if err != nil {
		return errors.Join(ErrNotConnected, err)
	}
	ctx, end := r.UntilSucceeded(ctx, leader, false) // a leader that does not hang ends its streams itself
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	desc := &grpc.StreamDesc{ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream}
	up, err := conn.NewStream(outgoing(ctx), desc, info.FullMethod)
	if err != nil {
		return err
	}
	go func() { // ends with the caller's stream
		if err := passOn(up, down, in); err != nil {
			cancel(err)
		}
	}()
	if header, err := up.Header(); err == nil && core.HasBegun(header) {
		_ = core.BeginStream(down) // callers wait for it; it fails if another leader had begun
	}
	for {
		m := out.New().Interface()
		err := up.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			switch cause := context.Cause(ctx); {
			case errors.Is(cause, errSucceeded):
				return leadsNoMore()
			case cause != nil && !errors.Is(cause, context.Canceled):
				return cause
			}
			return begun(err)
		}
		if err := down.SendMsg(m); err != nil {
			return err
		}
	}
}

// passOn sends the caller's messages to the leader.
func passOn(up grpc.ClientStream, down grpc.ServerStream, in protoreflect.MessageType) error {
	for {
		m := in.New().Interface()
		err := down.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			return up.CloseSend()
		}
		if err != nil {
			return err
		}
		if err := up.SendMsg(m); err != nil {
			return nil // the receiving side learns why
		}
	}
}

// CatchUp waits until this server has applied what the leader had committed when it was called.
func (r *Router) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpPatience)
	defer cancel()
	if err := r.core.Consensus.WaitLeader(ctx); err != nil {
		return err
	}
	leader, known := r.core.Consensus.Leader()
	if !known {
		return ErrNotConnected
	}
	if leader.ID == r.core.Consensus.ID() {
		_, err := r.core.Consensus.Read(ctx)
		return err
	}
	conn, err := r.peers.Ready(ctx, leader.ID)
	if err != nil {
		return err
	}
	there, err := v1.NewPeerServiceClient(conn).GetProgress(ctx, &v1.GetProgressRequest{Leading: true})
	if err != nil {
		return err
	}
	return r.core.Consensus.WaitApplied(ctx, there.GetAppliedIndex())
}

// A client sends the servers that it knows, and gets the right list if that is outdated.
const (
	metadataKnown   = "x-cloudless-known"
	metadataServers = "x-cloudless-servers"
	// metadataLeader is the address of the leader, for a client whose call was relayed.
	metadataLeader = "x-cloudless-leader"
)

// tellServers sends the addresses of the servers to a client that asks for them and has an outdated list.
func (r *Router) tellServers(ctx context.Context) {
	known := metadata.ValueFromIncomingContext(ctx, metadataKnown)
	if len(known) != 1 {
		return
	}
	all := r.addresses()
	claimed := strings.Split(known[0], ",")
	if len(claimed) == len(all) && !slices.ContainsFunc(all, func(a string) bool { return !slices.Contains(claimed, a) }) {
		return
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(metadataServers, strings.Join(all, ","))) // on failure, the next call tells it
}

// tellLeader sends the address of the leader, so that the client can call the leader directly.
func (r *Router) tellLeader(ctx context.Context, leader string) {
	if len(metadata.ValueFromIncomingContext(ctx, metadataKnown)) == 1 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(metadataLeader, r.core.Store.Snapshot().Server(leader).GetSpec().GetAddress())) // on failure, the next call tells it
	}
}
