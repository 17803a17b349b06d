package telemetry

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// DialOptions trace the calls of a connection. There are none without tracing. They come
// after the connection's other interceptors.
func (t *Tracing) DialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(t.unaryCall), grpc.WithChainStreamInterceptor(t.streamCall)}
}

func (t *Tracing) unaryCall(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, span := t.Start(ctx, SpanClient, "call "+method)
	err := invoke(outgoing(ctx), method, req, reply, conn, opts...)
	span.End(err)
	return err
}

// streamCall's span covers only the opening: the duration of a stream says little.
func (t *Tracing) streamCall(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !Traced(ctx) {
		return open(ctx, desc, conn, method, opts...)
	}
	ctx, span := t.Start(ctx, SpanClient, "open "+method)
	stream, err := open(outgoing(ctx), desc, conn, method, opts...)
	span.End(err)
	return stream, err
}

func outgoing(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, traceparent, Traceparent(ctx))
}

// Serve begins the span of an incoming call. A stream whose caller has
// no trace begins none: agents keep streams open for days.
func (t *Tracing) Serve(ctx context.Context, method string, stream bool) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	if values := metadata.ValueFromIncomingContext(ctx, traceparent); len(values) == 1 {
		ctx = WithTraceparent(ctx, values[0])
	}
	if stream && !Traced(ctx) {
		return ctx, nil
	}
	return t.Start(ctx, SpanServer, "serve "+method, "request", RequestID(ctx))
}
