package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

type forwardServer = grpc.BidiStreamingServer[cloudlessv1.ForwardRequest, cloudlessv1.ForwardResponse]

func (c *cluster) Forward(s forwardServer) error { return c.forward(s) }

// forwarding is the command forward, which runs until interrupt is called.
type forwarding struct {
	stdout    *bufio.Reader
	stderr    *bufio.Reader
	interrupt context.CancelFunc
	code      <-chan int
}

func (c *cluster) forwards(t *testing.T, args ...string) *forwarding {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	t.Cleanup(interrupt)
	stdout, out := io.Pipe()
	stderr, errs := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, Options{Args: append([]string{"forward", "--config", c.config}, args...), Stdin: strings.NewReader(""), Stdout: out, Stderr: errs})
		_ = errors.Join(out.Close(), errs.Close())
	}()
	return &forwarding{stdout: bufio.NewReader(stdout), stderr: bufio.NewReader(stderr), interrupt: interrupt, code: code}
}

// replicasInTurn answers each connection with one line and the name of the next replica.
func replicasInTurn(names ...string) func(forwardServer) error {
	var mu sync.Mutex
	return func(s forwardServer) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		mu.Lock()
		name := names[0]
		names = names[1:]
		mu.Unlock()
		if name == "" {
			return status.Error(codes.FailedPrecondition, "nothing listens on TCP port 8080 in replica web-a")
		}
		messages := []*cloudlessv1.ForwardResponse{{Message: &cloudlessv1.ForwardResponse_Started{Started: &cloudlessv1.ForwardStarted{Replica: name}}}}
		if !first.GetStart().GetCheck() {
			messages = append(messages,
				&cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_Data{Data: []byte(name + " after " + first.GetStart().GetPrefer() + "\n")}},
				&cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_End{End: true}},
				&cloudlessv1.ForwardResponse{Message: &cloudlessv1.ForwardResponse_Done{Done: &cloudlessv1.ForwardDone{}}})
		}
		for _, m := range messages {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}
}

func (f *forwarding) line(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	line, err := from.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// read connects to an address and reads until the end. A connection that is reset at once may fail to connect already.
func read(address string) (string, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	all, err := io.ReadAll(conn)
	return string(all), err
}

func TestForwardGoesToAnotherReplicaWhenOneIsGone(t *testing.T) {
	c := newCluster(t)
	c.forward = replicasInTurn("web-a", "web-a", "web-b", "", "web-b")
	f := c.forwards(t, "web", ":8080", "-o", "json")
	var said struct {
		Local, Replica string
		Port           int
	}
	if err := json.Unmarshal([]byte(f.line(t, f.stdout)), &said); err != nil || said.Replica != "web-a" || said.Port != 8080 || !strings.HasPrefix(said.Local, "127.0.0.1:") {
		t.Fatalf("%+v, %v", said, err)
	}
	if got, err := read(said.Local); err != nil || got != "web-a after web-a\n" {
		t.Errorf("%q, %v", got, err)
	}
	moved := make(chan string, 1)
	go func() { moved <- f.line(t, f.stderr) }()
	if got, err := read(said.Local); err != nil || got != "web-b after web-a\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got := <-moved; got != "cloudless: web-a is gone: new connections go to replica web-b\n" {
		t.Errorf("noted %q", got)
	}
	// A refused connection is reset, and the next one works.
	if got, err := read(said.Local); err == nil {
		t.Errorf("a refused connection ends in good order, with %q", got)
	}
	if got := f.line(t, f.stderr); got != "cloudless: connection to port 8080: nothing listens on TCP port 8080 in replica web-a\n" {
		t.Errorf("noted %q", got)
	}
	if got, err := read(said.Local); err != nil || got != "web-b after web-b\n" {
		t.Errorf("%q, %v", got, err)
	}
	f.interrupt()
	if code := <-f.code; code != 0 {
		t.Errorf("an interrupt ends it with code %d", code)
	}
	if conn, err := net.Dial("tcp", said.Local); err == nil {
		conn.Close()
		t.Error("the local port is still open")
	}
}

func TestForwardRefusesWhatItCannotDo(t *testing.T) {
	c := newCluster(t)
	c.forward = replicasInTurn("web-a", "web-a", "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	c.run(t.Context(), "", "forward", "web", port+":8080").expect(t, 1, "",
		"cloudless: local port "+port+" is in use: choose another, or any free one with: cloudless forward web :8080\n")
	c.run(t.Context(), "", "forward", "web", ":8080", "--address", "192.0.2.1").expect(t, 1, "",
		"cloudless: 192.0.2.1 is not an address of this machine: choose another with --address\n")
	c.run(t.Context(), "", "forward", "web", ":8080").expect(t, 1, "", "cloudless: nothing listens on TCP port 8080 in replica web-a\n")
	for _, args := range [][]string{{"forward"}, {"forward", "web"}, {"forward", "web", "9000:"}, {"forward", "web", "0:1"}, {"forward", "web", "1:70000"}, {"forward", "web", "a:b"}} {
		if got := c.run(t.Context(), "", args...); got.code != 2 || !strings.Contains(got.stderr, "See: cloudless forward --help") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
