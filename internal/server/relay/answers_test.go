package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// answerOf returns a message of about that many bytes.
func answerOf(size int) *v1.WhoAmIRequest {
	m := &v1.WhoAmIRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), bytes.Repeat([]byte("x"), size)))
	return m
}

// playedStream is the stream of another server, message by message.
type playedStream struct {
	grpc.ServerStream
	ctx   context.Context
	asks  chan *v1.PassCallsRequest // closed when the other server sends no more calls
	hears chan *v1.PassCallsResponse
}

func (s *playedStream) Context() context.Context { return s.ctx }

func (s *playedStream) Recv() (*v1.PassCallsRequest, error) {
	select {
	case request, more := <-s.asks:
		if !more {
			return nil, io.EOF
		}
		return request, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *playedStream) Send(response *v1.PassCallsResponse) error {
	select {
	case s.hears <- response:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func ask(numbers ...uint64) *v1.PassCallsRequest {
	request := &v1.PassCallsRequest{}
	for _, number := range numbers {
		request.Calls = append(request.Calls, &v1.PassedCall{Number: number, Method: fmt.Sprintf("/%d", number)})
	}
	return request
}

// playStream answers a stream: call number n with sizes[n] bytes.
func playStream(t *testing.T, sizes ...int) (played *playedStream, end func() error) {
	methods := map[string]Passable{}
	for n, size := range sizes {
		methods[fmt.Sprintf("/%d", n)] = Passable{Call: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return answerOf(size), nil
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	played = &playedStream{ctx: ctx, asks: make(chan *v1.PassCallsRequest), hears: make(chan *v1.PassCallsResponse)}
	service := &PassedCalls{Methods: methods, Stopping: context.Background()}
	ended := make(chan error, 1)
	go func() { ended <- service.PassCalls(played) }()
	return played, func() error {
		defer cancel()
		close(played.asks)
		return <-ended
	}
}

// A small answer waits for a piece of each large one, not for all of them.
func TestSmallAnswerOvertakesLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const large = 100 * maxPassed
		played, end := playStream(t, 1, large, large, large, large, large, large)
		played.asks <- ask(1, 2, 3, 4, 5, 6)
		<-played.hears
		synctest.Wait()
		played.asks <- ask(0)
		synctest.Wait()
		for waited := 0; ; waited++ {
			if first := (<-played.hears).GetAnswers()[0]; first.GetNumber() == 0 {
				break
			}
			if waited > maxLarge {
				t.Fatalf("it waited for more than %d messages", waited)
			}
		}
		// All the others arrive whole, too.
		done := make(chan error)
		go func() { done <- end() }()
		for {
			select {
			case <-played.hears:
				continue
			case err := <-done:
				must.Succeed(t, err)
			}
			return
		}
	})
}

// A caller that has left does not get the rest of a large answer.
func TestAnswerStopsWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		played, end := playStream(t, 100*maxPassed)
		played.asks <- ask(0)
		<-played.hears
		played.asks <- &v1.PassCallsRequest{Gone: []uint64{0}}
		synctest.Wait()
		select {
		case <-played.hears: // was on its way
		default:
		}
		must.Succeed(t, end()) // although the receiver has stopped
	})
}

// A server that does not read its answers must not make this one hold more and more of them.
func TestBacklogOfAnswersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, most = 8 << 20, maxUnsent/(8<<20) + 1
		played, end := playStream(t, slices.Repeat([]int{size}, most+1)...)
		taken := 0
		for blocked := false; !blocked && taken <= most; {
			synctest.Wait()
			select {
			case played.asks <- ask(uint64(taken)):
				taken++
			default:
				blocked = true
			}
		}
		if taken > most {
			t.Errorf("%d answers of %d bytes wait", taken, size)
		}
		for range taken * (size/maxPassed + 1) { // goes on when the answers are read
			<-played.hears
		}
		must.Succeed(t, end())
	})
}

// Batches are as long as permitted, and keep the order.
func TestBatchesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMailbox(func(size int) int { return size })
		all := rapid.SliceOfN(rapid.IntRange(1, 2*maxBatchBytes), 0, 300).Draw(t, "sizes")
		if rapid.Bool().Draw(t, "small") {
			for i := range all {
				all[i] = all[i]%1000 + 1
			}
		}
		for _, size := range all {
			m.put(size)
		}
		m.close()
		var got []int
		m.deliver(context.Background(), func(batch []int) error {
			bytes := 0
			for _, size := range batch {
				bytes += size
			}
			if len(batch) > maxBatch || len(batch) > 1 && bytes > maxBatchBytes {
				t.Fatalf("a batch of %d has %d bytes", len(batch), bytes)
			}
			if next := len(got) + len(batch); next < len(all) && len(batch) < maxBatch && bytes+all[next] <= maxBatchBytes {
				t.Fatalf("a batch of %d with %d bytes had room for one of %d", len(batch), bytes, all[next])
			}
			got = append(got, batch...)
			return nil
		})
		if fmt.Sprint(got) != fmt.Sprint(all) {
			t.Fatalf("delivered %v of %v", got, all)
		}
	})
}

// The error that breaks a stream says nothing about its calls: those that were sent may have taken effect, the others
// have not. The error of the former must not invite a retry.
func TestBrokenStreamLeavesTheOutcomeOfCallsUnknown(t *testing.T) {
	for _, why := range []error{
		status.Error(codes.ResourceExhausted, "received message larger than max"), status.Error(codes.Internal, "stream reset"),
		status.Error(codes.Unavailable, "connection lost"), io.EOF,
	} {
		l := newLine()
		sent, err := l.ask(&v1.PassedCall{})
		must.Succeed(t, err)
		l.calls.take()
		unsent, err := l.ask(&v1.PassedCall{})
		must.Succeed(t, err)
		l.breakUp(why)
		if err := (<-sent.outcome).err; status.Code(err) != codes.Unknown || !uncertain(err) || notLeader(err) {
			t.Errorf("after %v a call that was sent ends with %v", why, err)
		}
		if err := (<-unsent.outcome).err; !notLeader(err) {
			t.Errorf("after %v a call that was not sent ends with %v", why, err)
		}
	}
}

// A call whose caller leaves before it was sent leaves nothing behind; later the server tells the leader to cancel it.
func TestCallIsWithdrawnWhenItsCallerLeaves(t *testing.T) {
	l := newLine()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for range 100 {
		_, err := l.call(ctx, &v1.PassedCall{Request: make([]byte, maxPassed)})
		coretest.WantCode(t, err, codes.Canceled)
	}
	if len(l.waiting)+len(l.calls.empty())+len(l.gone.empty()) != 0 {
		t.Error("something of the calls that were not sent is still there")
	}
	call := &v1.PassedCall{}
	_, err := l.ask(call)
	must.Succeed(t, err)
	l.calls.take()
	l.leave(call.GetNumber())
	if gone := l.gone.empty(); len(gone) != 1 || gone[0] != call.GetNumber() || len(l.waiting) != 0 {
		t.Errorf("the leader was told to cancel %v", gone)
	}
}

// For a call with its own stream, only what the other server says is an answer.
func TestUnansweredSingleCallHasNoKnownOutcome(t *testing.T) {
	begun := make(chan struct{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		switch method, _ := grpc.MethodFromServerStream(stream); method {
		case "/test/Refuse":
			must.Succeed(t, stream.SetHeader(metadata.Pairs(telemetry.RequestIDHeader, "1")))
			return status.Error(codes.Unavailable, "not now")
		case "/test/Unknown":
			return status.Error(codes.Unimplemented, "what?")
		}
		close(begun)
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	defer serving.Wait()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Succeed(t, err)
	defer conn.Close()
	call := func(method string) error {
		return callAlone(t.Context(), conn, method, &v1.WhoAmIRequest{}, &v1.WhoAmIRequest{})
	}
	if err := call("/test/Refuse"); status.Code(err) != codes.Unavailable || uncertain(err) {
		t.Errorf("a refusal arrives as %v", err)
	}
	coretest.WantCode(t, call("/test/Unknown"), codes.Unimplemented)
	go func() {
		<-begun
		server.Stop()
	}()
	if err := call("/test/Begin"); status.Code(err) != codes.Unknown || !uncertain(err) {
		t.Errorf("a call whose connection broke ends with %v", err)
	}
}
