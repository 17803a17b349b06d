package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// workloads is the far side of the streams, one function each.
type workloads struct {
	cloudlessv1.UnimplementedWorkloadServiceServer
	logs  func(grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error
	asked *cloudlessv1.LogsRequest // by the newest call for logs
	watch func(grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error
	exec  func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error
	copy  func(copyServer) error

	forward func(forwardServer) error
}

func (w *workloads) Logs(asked *cloudlessv1.LogsRequest, s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
	w.asked = asked
	return w.logs(s)
}

func (w *workloads) WatchWorkloads(_ *cloudlessv1.WatchWorkloadsRequest, s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
	return w.watch(s)
}

func (w *workloads) Exec(s grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
	return w.exec(s)
}

func (w *workloads) dial(t *testing.T) *client.Client {
	t.Helper()
	a := newAuthority(t, "one")
	return dial(t, a.context(a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) {
		cloudlessv1.RegisterWorkloadServiceServer(r, w)
	})))
}

func TestLogsJoinLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entry := func(replica, stream, line string, partial bool) *cloudlessv1.LogEntry {
		at = at.Add(time.Second)
		return &cloudlessv1.LogEntry{Time: timestamppb.New(at), Replica: replica, Stream: stream, Text: line, Partial: partial}
	}
	entries := []*cloudlessv1.LogEntry{
		entry("a", "stdout", "one ", true),
		entry("b", "stdout", "whole", false),
		entry("a", "stderr", "other ", true),
		entry("a", "stdout", "line", false),
		{Replica: "b", Error: "its node is offline"},
		entry("a", "stderr", "stream", false),
		entry("b", "stdout", "never ended", true),
	}
	srv := &workloads{logs: func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
		for _, e := range entries {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "the server stops")
	}}
	var got []string
	var last error
	for line, err := range srv.dial(t).Logs(t.Context(), &cloudlessv1.LogsRequest{Workload: "web"}) {
		if last = err; err == nil {
			got = append(got, fmt.Sprintf("%d %s %s %s%s", line.Time.Second()%60, line.Replica, line.Stream, line.Line, line.Missing))
		}
	}
	want := []string{
		"7 b stdout whole", "6 a stdout one line", "0 b  its node is offline", "8 a stderr other stream", "11 b stdout never ended",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if status.Code(last) != codes.Unavailable {
		t.Errorf("ended with %v", last)
	}
}

// A stream may outlive all the servers that were known when it began: it says which ones it knows and learns of others,
// as every call does.
func TestStreamLearnsOfNewServers(t *testing.T) {
	const other = "192.0.2.7:7700"
	srv := &workloads{logs: func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
		if known := metadata.ValueFromIncomingContext(s.Context(), "x-cloudless-known"); len(known) != 1 {
			t.Errorf("it says that it knows %v", known)
		}
		return errors.Join(s.SetHeader(metadata.Pairs("x-cloudless-servers", other)), s.Send(&cloudlessv1.LogEntry{Replica: "a"}))
	}}
	c := srv.dial(t)
	first := c.Addresses()[0]
	for _, err := range c.Logs(t.Context(), &cloudlessv1.LogsRequest{Workload: "web"}) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := c.Addresses(); len(got) != 2 || got[0] != first || got[1] != other {
		t.Errorf("it knows %v", got)
	}
}

// A server that sends no positions is of an older version: its log cannot resume, and is not repeated.
func TestLogOfAnOlderServerEndsWithIt(t *testing.T) {
	calls := 0
	srv := &workloads{logs: func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
		calls++
		return errors.Join(s.Send(&cloudlessv1.LogEntry{Replica: "a", Text: "line"}), status.Error(codes.Unavailable, "the server stops"))
	}}
	var got []string
	var last error
	for line, err := range srv.dial(t).Logs(t.Context(), &cloudlessv1.LogsRequest{Workload: "web", Follow: true}) {
		if last = err; err == nil {
			got = append(got, string(line.Line))
		}
	}
	if len(got) != 1 || calls != 1 || status.Code(last) != codes.Unavailable {
		t.Errorf("got %q after %d calls, and then %v", got, calls, last)
	}
}

func TestLogsBreakEndlessLines(t *testing.T) {
	part := bytes.Repeat([]byte("x"), 1<<20)
	const parts = 20
	srv := &workloads{logs: func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
		for i := range parts {
			if err := s.Send(&cloudlessv1.LogEntry{Replica: "a", Text: string(part), Partial: i < parts-1}); err != nil {
				return err
			}
		}
		return nil
	}}
	var sizes []int
	for line, err := range srv.dial(t).Logs(t.Context(), &cloudlessv1.LogsRequest{Workload: "web"}) {
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(line.Line))
	}
	if len(sizes) != 2 || sizes[0] != client.LongestLogLine || sizes[0]+sizes[1] != parts<<20 {
		t.Errorf("lines of %v bytes", sizes)
	}
}

func TestLogsEndWhenTheReaderHasEnough(t *testing.T) {
	ended := make(chan error, 1)
	srv := &workloads{logs: func(s grpc.ServerStreamingServer[cloudlessv1.LogEntry]) error {
		for {
			if err := s.Send(&cloudlessv1.LogEntry{Replica: "a", Text: "again"}); err != nil {
				ended <- err
				return err
			}
		}
	}}
	for range srv.dial(t).Logs(t.Context(), &cloudlessv1.LogsRequest{Workload: "web", Follow: true}) {
		break
	}
	if err := <-ended; status.Code(err) != codes.Canceled && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Unavailable {
		t.Errorf("the server's stream ended with %v", err)
	}
}

func TestWaitWorkloadSurvivesTheServer(t *testing.T) {
	var opened int
	change := func(s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange], what string, phase string) error {
		return s.Send(&cloudlessv1.WorkloadChange{Change: what, Workload: &cloudlessv1.Workload{Status: &cloudlessv1.WorkloadStatus{Phase: phase}}})
	}
	srv := &workloads{watch: func(s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
		opened++ // one stream at a time
		if opened == 1 {
			_ = change(s, "added", "pending")
			return status.Error(codes.Unavailable, "the server stops")
		}
		_ = change(s, "added", "pending")
		_ = s.Send(&cloudlessv1.WorkloadChange{Change: "synced"})
		_ = change(s, "changed", "running")
		<-s.Context().Done()
		return nil
	}}
	got, err := srv.dial(t).WaitWorkload(t.Context(), "default", "web", func(w *cloudlessv1.Workload) (bool, error) {
		return w.GetStatus().GetPhase() == "running", nil
	})
	if err != nil || got.GetStatus().GetPhase() != "running" || opened != 2 {
		t.Errorf("WaitWorkload = %v, %v after %d watches", got, err, opened)
	}
}

func TestWaitWorkloadSeesAMissingWorkload(t *testing.T) {
	srv := &workloads{watch: func(s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
		_ = s.Send(&cloudlessv1.WorkloadChange{Change: "synced"})
		<-s.Context().Done()
		return nil
	}}
	got, err := srv.dial(t).WaitWorkload(t.Context(), "default", "web", func(w *cloudlessv1.Workload) (bool, error) {
		return w == nil, nil
	})
	if got != nil || err != nil {
		t.Errorf("WaitWorkload = %v, %v", got, err)
	}
}

func TestExecConnectsBothSides(t *testing.T) {
	var start *cloudlessv1.ExecStart
	var heard []string
	srv := &workloads{exec: func(s grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
		first, err := s.Recv()
		if err != nil {
			return err
		}
		start = first.GetStart()
		if err := s.Send(&cloudlessv1.ExecResponse{Message: &cloudlessv1.ExecResponse_Started{Started: &cloudlessv1.ExecStarted{Replica: "web-1"}}}); err != nil {
			return err
		}
		for len(heard) < 4 {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			switch m := req.GetMessage().(type) {
			case *cloudlessv1.ExecRequest_Stdin:
				heard = append(heard, "stdin "+string(m.Stdin))
			case *cloudlessv1.ExecRequest_CloseStdin:
				heard = append(heard, "end")
			case *cloudlessv1.ExecRequest_Resize:
				heard = append(heard, fmt.Sprintf("resize %dx%d", m.Resize.GetWidth(), m.Resize.GetHeight()))
			case *cloudlessv1.ExecRequest_Signal:
				heard = append(heard, "signal "+m.Signal)
			}
		}
		for _, m := range []*cloudlessv1.ExecResponse{
			{Message: &cloudlessv1.ExecResponse_Stdout{Stdout: []byte("out")}},
			{Message: &cloudlessv1.ExecResponse_Stderr{Stderr: []byte("err")}},
			{Message: &cloudlessv1.ExecResponse_Exit{Exit: &cloudlessv1.ExecExit{Code: 42}}},
		} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}}
	resize, signals := make(chan client.TerminalSize, 1), make(chan string, 1)
	resize <- client.TerminalSize{Width: 100, Height: 40}
	signals <- "SIGINT"
	var stdout, stderr bytes.Buffer
	var replica string
	code, err := srv.dial(t).Exec(t.Context(), client.ExecOptions{
		Namespace: "default", Workload: "web", Command: []string{"sh", "-c", "x"}, Terminal: true,
		Size:  client.TerminalSize{Width: 80, Height: 24},
		Stdin: strings.NewReader("hello"), Stdout: &stdout, Stderr: &stderr,
		Resize: resize, Signals: signals, Started: func(name string) { replica = name },
	})
	if err != nil || code != 42 {
		t.Fatalf("Exec = %d, %v", code, err)
	}
	if stdout.String() != "out" || stderr.String() != "err" || replica != "web-1" {
		t.Errorf("stdout %q, stderr %q, replica %q", &stdout, &stderr, replica)
	}
	if !start.GetStdin() || !start.GetTerminal() || start.GetSize().GetWidth() != 80 || len(start.GetCommand()) != 3 {
		t.Errorf("start is %v", start)
	}
	text := strings.Join(heard, ", ")
	for _, want := range []string{"stdin hello", "end", "resize 100x40", "signal SIGINT"} {
		if !strings.Contains(text, want) {
			t.Errorf("the command heard %q, but not %q", text, want)
		}
	}
	if strings.Index(text, "stdin") > strings.Index(text, "end") {
		t.Errorf("the end of the input came before it: %q", text)
	}
}

func TestExecSaysWhyThereIsNoExitCode(t *testing.T) {
	exit := func(e *cloudlessv1.ExecExit) func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
		return func(s grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
			return s.Send(&cloudlessv1.ExecResponse{Message: &cloudlessv1.ExecResponse_Exit{Exit: e}})
		}
	}
	for want, far := range map[string]func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error{
		"no such file": exit(&cloudlessv1.ExecExit{Code: 127, Error: "no such file"}),
		"no replica of web runs": func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
			return status.Error(codes.FailedPrecondition, "no replica of web runs")
		},
		"the connection to the command in replica web-1 was lost, and the command ends with it": func(s grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
			started := &cloudlessv1.ExecResponse_Started{Started: &cloudlessv1.ExecStarted{Replica: "web-1"}}
			return errors.Join(s.Send(&cloudlessv1.ExecResponse{Message: started}), status.Error(codes.Unavailable, "the server leads no more"))
		},
		"ended before the command did": func(grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]) error {
			return nil
		},
	} {
		_, err := (&workloads{exec: far}).dial(t).Exec(t.Context(), client.ExecOptions{
			Workload: "web", Command: []string{"x"}, Stdin: blocked(t),
		})
		if err == nil || !strings.Contains(client.Message(err), want) {
			t.Errorf("Exec = %v, want %q", err, want)
		}
	}
}

// blocked is an input without data.
func blocked(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return r
}

func TestAllPages(t *testing.T) {
	pages := map[string][]int{"": {1, 2}, "b": {3}, "c": {4}}
	next := map[string]string{"": "b", "b": "c"}
	got, err := client.AllPages(func(p *cloudlessv1.Page) ([]int, string, error) {
		return pages[p.GetToken()], next[p.GetToken()], nil
	})
	if err != nil || fmt.Sprint(got) != "[1 2 3 4]" {
		t.Errorf("AllPages = %v, %v", got, err)
	}
	if _, err := client.AllPages(func(*cloudlessv1.Page) ([]int, string, error) { return nil, "again", nil }); err == nil {
		t.Error("a server that gives the same page for ever was not noticed")
	}
}

func TestMessageIsOneLine(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{context.Canceled, "interrupted"},
		{status.Error(codes.NotFound, "workload web does not exist"), "workload web does not exist"},
		{errors.New("spec.a: bad\nspec.b: worse\n"), "spec.a: bad; spec.b: worse"},
		{fmt.Errorf("a\x1b[31m\tb: %w", io.EOF), "a [31m b: EOF"},
	} {
		if got := client.Message(test.err); got != test.want {
			t.Errorf("Message(%v) = %q, want %q", test.err, got, test.want)
		}
	}
}
