package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Lists that are too large to go together in one message cost nobody else the answer to a write.
func TestLargeAnswersBreakNoOtherCalls(t *testing.T) {
	leader, follower := pair(t)
	secret := leader.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "ann"})
	annotations := map[string]string{}
	for i := range 12 {
		annotations[fmt.Sprintf("value%d", i)] = strings.Repeat("x", 4000)
	}
	at, through := leader.dial(nil, secret), follower.dial(nil, secret)
	const many = 40
	for i := range many {
		_, err := at.CreateWorkload(leader.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
			Metadata: &v1.Metadata{Name: fmt.Sprintf("w%d", i), Annotations: annotations},
			Spec:     &v1.WorkloadSpec{Image: "docker.io/library/busybox:1", Replicas: proto.Int32(0)},
		}})
		must(t, err)
	}
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			list, err := through.ListWorkloads(follower.ctx, &v1.ListWorkloadsRequest{})
			if err != nil || len(list.GetItems()) != many {
				t.Errorf("list %d: %d workloads, %v", i, len(list.GetItems()), err)
			}
		})
		all.Go(func() {
			_, err := through.CreateToken(follower.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: fmt.Sprintf("u%d", i)})
			if err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// answerOf is a message of about so many bytes.
func answerOf(size int) *v1.WhoAmIRequest {
	m := &v1.WhoAmIRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), bytes.Repeat([]byte("x"), size)))
	return m
}

// An answer that is larger than a message may be arrives whole, and so does a long refusal.
func TestAnAnswerOfAnySizeArrives(t *testing.T) {
	leader, follower := pair(t)
	whole, refused := answerOf(65<<20), status.Error(codes.Aborted, strings.Repeat("y", 3*maxPassed))
	var asked atomic.Int32
	call := passMethod(t, leader, follower, func(context.Context) (proto.Message, error) {
		if asked.Add(1) > 1 {
			return nil, refused
		}
		return whole, nil
	})
	got, err := call(follower.ctx)
	must(t, err)
	if want := whole.ProtoReflect().GetUnknown(); !bytes.Equal(got.ProtoReflect().GetUnknown(), want) {
		t.Errorf("%d bytes of %d arrived, or others", len(got.ProtoReflect().GetUnknown()), len(want))
	}
	if _, err := call(follower.ctx); !proto.Equal(status.Convert(err).Proto(), status.Convert(refused).Proto()) {
		t.Errorf("a refusal of %d bytes arrived as %.100v", 3*maxPassed, err)
	}
}

// playedStream is the stream of another server, word by word.
type playedStream struct {
	grpc.ServerStream
	ctx   context.Context
	asks  chan *v1.PassCallsRequest // closed when the other server asks no more
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

// playStream answers a stream: call number n with so many bytes as sizes has there.
func playStream(t *testing.T, sizes ...int) (played *playedStream, end func() error) {
	methods := map[string]passable{}
	for n, size := range sizes {
		methods[fmt.Sprintf("/%d", n)] = passable{call: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return answerOf(size), nil
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	played = &playedStream{ctx: ctx, asks: make(chan *v1.PassCallsRequest), hears: make(chan *v1.PassCallsResponse)}
	service := &peerService{Server: &Server{passed: &passedCalls{methods: methods}, stopping: context.Background()}}
	ended := make(chan error, 1)
	go func() { ended <- service.PassCalls(played) }()
	return played, func() error {
		defer cancel()
		close(played.asks)
		return <-ended
	}
}

// A small answer waits for a piece of each large one, not for all of them.
func TestASmallAnswerOvertakesLargeOnes(t *testing.T) {
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
		// All the others come whole, too.
		done := make(chan error)
		go func() { done <- end() }()
		for {
			select {
			case <-played.hears:
				continue
			case err := <-done:
				must(t, err)
			}
			return
		}
	})
}

// Who does not wait for a large answer any more is not sent the rest of it.
func TestNobodyIsSentTheRestOfAnAnswerHeDoesNotWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		played, end := playStream(t, 100*maxPassed)
		played.asks <- ask(0)
		<-played.hears
		played.asks <- &v1.PassCallsRequest{Gone: []uint64{0}}
		synctest.Wait()
		select {
		case <-played.hears: // which was on its way
		default:
		}
		must(t, end()) // though nobody hears anything more
	})
}

// A server that does not take its answers is not given more of them to hold.
func TestAServerThatTakesNoAnswersIsAskedNothingMore(t *testing.T) {
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
		for range taken * (size/maxPassed + 1) { // it goes on when they are taken
			<-played.hears
		}
		must(t, end())
	})
}

// Batches are as long as they may be and no longer, and keep the order.
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

// Whatever breaks a line says nothing about the calls: those that were sent may have been carried out, the others not.
// What callers are told of the former is not that they may repeat it.
func TestWhatBreaksALineIsNotTheAnswerToItsCalls(t *testing.T) {
	for _, why := range []error{
		status.Error(codes.ResourceExhausted, "received message larger than max"), status.Error(codes.Internal, "stream reset"),
		status.Error(codes.Unavailable, "connection lost"), io.EOF,
	} {
		l := newLine()
		sent, err := l.ask(&v1.PassedCall{})
		must(t, err)
		l.calls.take()
		unsent, err := l.ask(&v1.PassedCall{})
		must(t, err)
		l.breakUp(why)
		if err := (<-sent.outcome).err; status.Code(err) != codes.Unknown || !uncertain(err) || notLeader(err) {
			t.Errorf("after %v a call that was sent ends with %v", why, err)
		}
		if err := (<-unsent.outcome).err; !notLeader(err) {
			t.Errorf("after %v a call that was not sent ends with %v", why, err)
		}
	}
}

// A caller who leaves before his call was sent leaves nothing of it behind; after that the leader is told.
func TestACallerWhoLeavesLeavesNothingBehind(t *testing.T) {
	l := newLine()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for range 100 {
		_, err := l.call(ctx, &v1.PassedCall{Request: make([]byte, maxPassed)})
		wantCode(t, err, codes.Canceled)
	}
	if len(l.waiting)+len(l.calls.empty())+len(l.gone.empty()) != 0 {
		t.Error("something of the calls that were not sent is still there")
	}
	call := &v1.PassedCall{}
	_, err := l.ask(call)
	must(t, err)
	l.calls.take()
	l.leave(call.GetNumber())
	if gone := l.gone.empty(); len(gone) != 1 || gone[0] != call.GetNumber() || len(l.waiting) != 0 {
		t.Errorf("the leader is told to forget %v", gone)
	}
}

// Of a call that goes alone, only what the other server says is an answer.
func TestACallAloneThatIsNotAnsweredHasNoKnownOutcome(t *testing.T) {
	begun := make(chan struct{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		switch method, _ := grpc.MethodFromServerStream(stream); method {
		case "/test/Refuse":
			must(t, stream.SetHeader(metadata.Pairs(telemetry.RequestIDHeader, "1")))
			return status.Error(codes.Unavailable, "not now")
		case "/test/Unknown":
			return status.Error(codes.Unimplemented, "what?")
		}
		close(begun)
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	var serving sync.WaitGroup
	serving.Go(func() { check(t, server.Serve(listener)) })
	defer serving.Wait()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	call := func(method string) error {
		return callAlone(t.Context(), conn, method, &v1.WhoAmIRequest{}, &v1.WhoAmIRequest{})
	}
	if err := call("/test/Refuse"); status.Code(err) != codes.Unavailable || uncertain(err) {
		t.Errorf("a refusal arrives as %v", err)
	}
	wantCode(t, call("/test/Unknown"), codes.Unimplemented)
	go func() {
		<-begun
		server.Stop()
	}()
	if err := call("/test/Begin"); status.Code(err) != codes.Unknown || !uncertain(err) {
		t.Errorf("a call whose connection broke ends with %v", err)
	}
}

// Nobody but a server can pass calls on, whoever he says he is, and who passes one on is not its caller.
func TestOnlyServersPassCallsOn(t *testing.T) {
	leader, follower := pair(t)
	server, err := identity.NewID(leader.ca.Trust().Cluster(), identity.KindServer, "s-2")
	must(t, err)
	forged := metadata.NewOutgoingContext(leader.ctx, auth.MetadataOf(core.Principal{ID: server, Role: core.RoleServer}))
	for role, as := range map[string]*user{core.RoleAdmin: leader.as(core.RoleAdmin), core.RoleNode: leader.join("machine").user} {
		stream, err := v1.NewPeerServiceClient(as.conn).PassCalls(forged)
		must(t, err)
		_, err = stream.Recv()
		wantCode(t, err, codes.PermissionDenied, fmt.Sprintf("role %q", role))
	}
	call := passTo(t, leader, follower, func(ctx context.Context) error {
		if p := core.Caller(ctx); !p.ID.IsZero() || p.Role != "" {
			return status.Errorf(codes.Internal, "the call is taken for one of %v", p)
		}
		return nil
	})
	must(t, call(follower.ctx))
}
