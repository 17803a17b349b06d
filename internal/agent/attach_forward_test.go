package agent

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

// program is what listens inside a replica. It hands over its connections.
func program(t *testing.T) (port uint32, accepted <-chan *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan *net.TCPConn, 1)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn.(*net.TCPConn)
		}
	}()
	return uint32(listener.Addr().(*net.TCPAddr).Port), conns
}

func (s *session) forward(t *testing.T, n *node, uid string, port uint32) *attached {
	t.Helper()
	s.open(t, &v1.Open{Id: "forward-1", What: &v1.Open_Forward{Forward: &v1.OpenForward{
		ReplicaUid: uid, Start: &v1.ForwardStart{Port: port},
	}}})
	return <-n.server.attached
}

func (a *attached) sendForward(t *testing.T, request *v1.ForwardRequest) {
	t.Helper()
	if err := a.stream.Send(&v1.AttachDown{Message: &v1.AttachDown_Forward{Forward: request}}); err != nil {
		t.Fatal(err)
	}
}

func toReplica(data string) *v1.ForwardRequest {
	return &v1.ForwardRequest{Message: &v1.ForwardRequest_Data{Data: []byte(data)}}
}

var callerEnds = &v1.ForwardRequest{Message: &v1.ForwardRequest_End{End: true}}

// forwarded is what came from a replica.
type forwarded struct {
	replica, data, refusal string
	end                    bool
	done                   *v1.ForwardDone
}

// forwarded receives until the condition holds, or until the stream ends.
func (a *attached) forwarded(t *testing.T, enough func(forwarded) bool) (got forwarded) {
	t.Helper()
	for !enough(got) {
		up, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got.refusal += up.GetError()
		m := up.GetForward()
		got.replica += m.GetStarted().GetReplica()
		got.data += string(m.GetData())
		got.end = got.end || m.GetEnd()
		if m.GetDone() != nil {
			got.done = m.GetDone()
		}
	}
	return got
}

func never(forwarded) bool { return false }

func TestForwardEndsEachDirectionByItself(t *testing.T) {
	n, s := running(t)
	port, accepted := program(t)
	f := s.forward(t, n, "a", port)
	defer close(f.end)
	inside := <-accepted
	f.sendForward(t, toReplica("question"))
	f.sendForward(t, callerEnds)
	if got, err := io.ReadAll(inside); err != nil || string(got) != "question" {
		t.Errorf("the program reads %q, %v", got, err)
	}
	answer := strings.Repeat("x", 1_000_000)
	go func() {
		_, _ = io.WriteString(inside, answer)
		inside.Close()
	}()
	got := f.forwarded(t, never)
	if got.replica != "web-a" || got.data != answer || !got.end || got.done == nil || got.done.GetError() != "" {
		t.Errorf("replica %q, %d bytes, end %v, done %v", got.replica, len(got.data), got.end, got.done)
	}
}

func TestForwardGoesOnAfterTheReplicaEndedItsSide(t *testing.T) {
	n, s := running(t)
	port, accepted := program(t)
	f := s.forward(t, n, "a", port)
	defer close(f.end)
	inside := <-accepted
	if err := inside.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := f.forwarded(t, func(got forwarded) bool { return got.end }); got.done != nil {
		t.Errorf("the end of one side is taken for that of both: %v", got.done)
	}
	f.sendForward(t, toReplica("late"))
	f.sendForward(t, callerEnds)
	if got, err := io.ReadAll(inside); err != nil || string(got) != "late" {
		t.Errorf("the program reads %q, %v", got, err)
	}
	if got := f.forwarded(t, never); got.done == nil || got.done.GetError() != "" {
		t.Errorf("done: %v", got.done)
	}
}

func TestForwardPassesResetsOn(t *testing.T) {
	n, s := running(t)
	port, accepted := program(t)
	f := s.forward(t, n, "a", port)
	defer close(f.end)
	inside := <-accepted
	f.forwarded(t, func(got forwarded) bool { return got.replica != "" })
	if err := errors.Join(inside.SetLinger(0), inside.Close()); err != nil {
		t.Fatal(err)
	}
	if got := f.forwarded(t, never); got.end || !strings.Contains(got.done.GetError(), "in replica web-a broke: connection reset by peer") {
		t.Errorf("end %v, done %v", got.end, got.done)
	}

	f = s.forward(t, n, "a", port)
	inside = <-accepted
	close(f.end) // the caller is gone
	if _, err := inside.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the program sees %v instead of a reset", err)
	}
}

// The program does not read, and more is pending than all buffers can hold.
func TestForwardEndsWithItsStreamEvenWhenTheReplicaIsStuck(t *testing.T) {
	n, s := running(t)
	port, accepted := program(t)
	f := s.forward(t, n, "a", port)
	inside := <-accepted
	if err := inside.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	go func() {
		for chunk := strings.Repeat("x", 32<<10); ; {
			if f.stream.Send(&v1.AttachDown{Message: &v1.AttachDown_Forward{Forward: toReplica(chunk)}}) != nil {
				return
			}
		}
	}()
	f.forwarded(t, func(got forwarded) bool { return got.replica != "" })
	if up, err := f.stream.Recv(); err != nil || len(up.GetForward().GetData()) != 0 { // the agent asks whether the stream still exists
		t.Fatalf("%v, %v", up, err)
	}
	close(f.end)
	if _, err := io.Copy(io.Discard, inside); err == nil {
		t.Error("the connection to the program ended in good order")
	}
}

// An open connection would keep the network of the replica alive.
func TestForwardEndsWithTheReplica(t *testing.T) {
	n, s := running(t)
	port, accepted := program(t)
	f := s.forward(t, n, "a", port)
	defer close(f.end)
	inside := <-accepted
	if err := inside.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	f.forwarded(t, func(got forwarded) bool { return got.end })
	n.tasks.exit("a-1", driver.Exit{Code: 1})
	if got := f.forwarded(t, never); got.done == nil {
		t.Error("the connection outlives the replica")
	}
	if _, err := io.Copy(&bytes.Buffer{}, inside); err != nil {
		t.Errorf("the program sees %v", err)
	}
}

func TestForwardRefusals(t *testing.T) {
	n, s := running(t)
	port, _ := program(t)
	stranger := s.forward(t, n, "stranger", port)
	defer close(stranger.end)
	if got := stranger.forwarded(t, never); !strings.Contains(got.refusal, `no replica "stranger"`) {
		t.Errorf("refusal: %q", got.refusal)
	}
	nobody := s.forward(t, n, "a", 1)
	defer close(nobody.end)
	if got := nobody.forwarded(t, never); !strings.Contains(got.refusal, "nothing listens on TCP port 1 in replica web-a; see what its program says: cloudless logs web-a") {
		t.Errorf("refusal: %q", got.refusal)
	}
}
