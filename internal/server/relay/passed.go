package relay

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// PassedCalls answers the calls that other servers relay over one stream (see passing), by
// the same handlers and behind the same guard as all others.
type PassedCalls struct {
	// Guard intercepts every call.
	Guard   grpc.UnaryServerInterceptor
	Methods map[string]Passable
	// Stopping ends when the server stops.
	Stopping context.Context
}

// Passable is a method that can be called without its own stream.
type Passable struct {
	Service any
	Call    grpc.MethodHandler
}

// PassCalls answers until the relaying server ends the stream. A server that stops says so,
// and still answers the calls that arrive before the other server has noticed.
func (p *PassedCalls) PassCalls(stream grpc.BidiStreamingServer[v1.PassCallsRequest, v1.PassCallsResponse]) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stream.Context()))
	out := newAnswers(stream.Send)
	var delivering sync.WaitGroup
	delivering.Go(func() { out.deliver(ctx) })
	calls := &runningCalls{cancels: map[uint64]context.CancelFunc{}}
	defer func() {
		out.silence(cancel)
		calls.running.Wait()
		delivering.Wait()
	}()
	defer context.AfterFunc(p.Stopping, func() { _ = out.say(ctx, &v1.PassCallsResponse{Stopping: true}) })()
	receive := func() (*v1.PassCallsRequest, error) {
		out.unsent.wait(stream.Context())
		return stream.Recv()
	}
	err := calls.take(ctx, receive, func(ctx context.Context, call *v1.PassedCall) { out.put(ctx, p.answer(ctx, call)) })
	if !errors.Is(err, io.EOF) {
		return err
	}
	calls.running.Wait()
	out.small.close()
	delivering.Wait()
	return nil
}

func (p *PassedCalls) answer(ctx context.Context, call *v1.PassedCall) *v1.PassedAnswer {
	response, err := p.call(ctx, call)
	var data []byte
	if err == nil {
		data, err = proto.Marshal(response)
	}
	if err == nil {
		return &v1.PassedAnswer{Number: call.GetNumber(), Response: data}
	}
	failure, err := proto.Marshal(status.Convert(err).Proto())
	if err != nil {
		failure, _ = proto.Marshal(status.New(codes.Internal, "the server failed to say why the call failed").Proto())
	}
	return &v1.PassedAnswer{Number: call.GetNumber(), Failure: failure}
}

func (p *PassedCalls) call(ctx context.Context, call *v1.PassedCall) (proto.Message, error) {
	method, ok := p.Methods[call.GetMethod()]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "%s is not a method of this server", call.GetMethod())
	}
	ctx = core.WithPrincipal(ctx, core.Principal{}) // not the relaying server
	ctx = metadata.NewIncomingContext(ctx, metadata.New(call.GetMetadata()))
	ctx = grpc.NewContextWithServerTransportStream(ctx, headless(call.GetMethod()))
	response, err := method.Call(method.Service, ctx, func(request any) error {
		return proto.Unmarshal(call.GetRequest(), request.(proto.Message))
	}, p.Guard)
	if err != nil {
		return nil, err
	}
	message, ok := response.(proto.Message)
	if !ok { // it must not end the process, whatever the reason
		return nil, status.Errorf(codes.Internal, "%s has no answer", call.GetMethod())
	}
	return message, nil
}

// runningCalls are the calls of one stream that are being answered.
type runningCalls struct {
	running sync.WaitGroup
	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

// take starts calls until no more come.
func (r *runningCalls) take(ctx context.Context, receive func() (*v1.PassCallsRequest, error), answer func(context.Context, *v1.PassedCall)) error {
	for {
		request, err := receive()
		if err != nil {
			return err
		}
		for _, call := range request.GetCalls() {
			during := r.begin(ctx, call.GetNumber())
			r.running.Go(func() {
				defer r.end(call.GetNumber())
				answer(during, call)
			})
		}
		for _, number := range request.GetGone() {
			r.end(number)
		}
	}
}

func (r *runningCalls) begin(ctx context.Context, number uint64) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancels[number] = cancel
	return ctx
}

func (r *runningCalls) end(number uint64) {
	r.mu.Lock()
	cancel := r.cancels[number]
	delete(r.cancels, number)
	r.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// headless is the transport of a call without its own stream. It knows only the method, and
// drops headers.
type headless string

func (h headless) Method() string             { return string(h) }
func (headless) SetHeader(metadata.MD) error  { return nil }
func (headless) SendHeader(metadata.MD) error { return nil }
func (headless) SetTrailer(metadata.MD) error { return nil }
