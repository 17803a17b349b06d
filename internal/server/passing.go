package server

import (
	"context"
	"errors"
	"io"
	"sync"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxPassed is the largest request that shares a stream with others: large ones
// would hold them up.
const maxPassed = 64 << 10

// passing passes calls on to other servers, those that come together in one
// message. It keeps one stream for each connection.
type passing struct {
	mu    sync.Mutex
	lines map[*grpc.ClientConn]*line
}

func newPassing() *passing { return &passing{lines: map[*grpc.ClientConn]*line{}} }

// call has the server at the other end of a connection answer a call. An answer
// is not looked at: it is given to the caller as it came.
func (p *passing) call(ctx context.Context, conn *grpc.ClientConn, method string, request proto.Message, out protoreflect.MessageType) (proto.Message, error) {
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	response := out.New()
	if len(data) > maxPassed {
		return response.Interface(), conn.Invoke(outgoing(ctx), method, request, response.Interface())
	}
	answer, err := p.line(conn).call(ctx, &v1.PassedCall{Method: method, Request: data, Metadata: passedMetadata(ctx)})
	if status.Code(err) == codes.Unimplemented { // by a server of an older release
		return response.Interface(), conn.Invoke(outgoing(ctx), method, request, response.Interface())
	}
	if err != nil {
		return nil, err
	}
	if len(answer.GetFailure()) > 0 {
		var failure statuspb.Status
		if err := proto.Unmarshal(answer.GetFailure(), &failure); err != nil {
			return nil, status.Error(codes.Internal, "the leader's answer cannot be read")
		}
		return nil, status.ErrorProto(&failure)
	}
	response.SetUnknown(answer.GetResponse()) // which is encoded to the very same bytes
	return response.Interface(), nil
}

// passedMetadata is what the leader is told about a call.
func passedMetadata(ctx context.Context) map[string]string {
	md, _ := metadata.FromOutgoingContext(outgoing(ctx))
	told := make(map[string]string, len(md))
	for key, values := range md {
		told[key] = values[0]
	}
	return told
}

// line returns the open stream of a connection.
func (p *passing) line(conn *grpc.ClientConn) *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open := p.lines[conn]; open != nil && open.broken() == nil {
		return open
	}
	for other := range p.lines {
		if other.GetState() == connectivity.Shutdown {
			delete(p.lines, other) // its line is broken
		}
	}
	opened := openLine(conn)
	p.lines[conn] = opened
	return opened
}

// line is a stream of calls to another server. It ends with its connection, or
// when that server ends it.
type line struct {
	// calls are to be sent, in the order of their numbers; gone are the numbers
	// of those that nobody waits for any more.
	calls *mailbox[*v1.PassedCall]
	gone  *mailbox[uint64]

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan<- *v1.PassedAnswer
	err     error // why nothing more can be asked
}

// openLine does not wait for the stream.
func openLine(conn *grpc.ClientConn) *line {
	l := &line{calls: newMailbox[*v1.PassedCall](), gone: newMailbox[uint64](), waiting: map[uint64]chan<- *v1.PassedAnswer{}}
	go l.run(conn) // ends with the connection
	return l
}

func (l *line) run(conn *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := v1.NewPeerServiceClient(conn).PassCalls(ctx)
	if err != nil {
		l.breakUp(errors.Join(errNotConnected, err)) // nothing was sent
		return
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	var speaking sync.Mutex // a stream takes one message at a time
	say := func(request *v1.PassCallsRequest) error {
		speaking.Lock()
		defer speaking.Unlock()
		return stream.Send(request)
	}
	tasks.Go(func() {
		l.calls.deliver(ctx, func(batch []*v1.PassedCall) error { return say(&v1.PassCallsRequest{Calls: batch}) })
		if ctx.Err() == nil { // it was closed, because the other server stops
			speaking.Lock()
			defer speaking.Unlock()
			_ = stream.CloseSend()
		}
	})
	tasks.Go(func() {
		l.gone.deliver(ctx, func(batch []uint64) error { return say(&v1.PassCallsRequest{Gone: batch}) })
	})
	for {
		response, err := stream.Recv()
		if err != nil {
			l.breakUp(unanswered(err))
			return
		}
		l.hear(response.GetAnswers())
		if response.GetStopping() {
			l.finish()
		}
	}
}

// unanswered is what callers hear whose calls were sent and not answered.
func unanswered(err error) error {
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the leader stopped before it had answered")
	}
	return err
}

func (l *line) call(ctx context.Context, call *v1.PassedCall) (*v1.PassedAnswer, error) {
	answer := make(chan *v1.PassedAnswer, 1)
	if err := l.ask(call, answer); err != nil {
		return nil, err
	}
	select {
	case a, heard := <-answer:
		if !heard {
			return nil, l.broken()
		}
		return a, nil
	case <-ctx.Done():
		l.mu.Lock()
		delete(l.waiting, call.GetNumber())
		l.mu.Unlock()
		l.gone.put(call.GetNumber())
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (l *line) ask(call *v1.PassedCall, answer chan<- *v1.PassedAnswer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return errors.Join(errNotConnected, l.err) // it was not even sent
	}
	l.last++
	call.Number = l.last
	l.waiting[call.Number] = answer
	l.calls.put(call)
	return nil
}

func (l *line) hear(answers []*v1.PassedAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range answers {
		if waiting := l.waiting[a.GetNumber()]; waiting != nil {
			delete(l.waiting, a.GetNumber())
			waiting <- a
		}
	}
}

// finish asks for nothing more; what was asked is still answered.
func (l *line) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = status.Error(codes.Unavailable, errStopping.Error())
	}
	l.calls.close()
}

// breakUp lets all who wait know that they wait in vain.
func (l *line) breakUp(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for number, waiting := range l.waiting {
		delete(l.waiting, number)
		close(waiting)
	}
}

func (l *line) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
