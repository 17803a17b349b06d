package agent

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/logfile"
)

// running is a node with one running replica, "a".
func running(t *testing.T) (*node, *session) {
	t.Helper()
	n := newNode(t)
	n.start()
	s := n.join()
	s.send(t, full(assignment("a")))
	s.await(t, "a", "running")
	go func() { // heartbeats and reports must not queue up
		for {
			select {
			case <-s.ups:
			case <-s.stream.Context().Done():
				return
			}
		}
	}()
	return n, s
}

func openLogs(o *v1.OpenLogs) *v1.Open {
	return &v1.Open{Id: "stream-1", What: &v1.Open_Logs{Logs: o}}
}

// lines receives count log lines, or all of them if count is negative.
func (a *attached) lines(t *testing.T, count int) (lines []string, refusal string) {
	t.Helper()
	for len(lines) != count {
		up, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if up.GetError() != "" {
			refusal = up.GetError()
			continue
		}
		if up.GetLog().GetStream() != "stdout" || up.GetLog().GetTime() == nil || up.GetLog().GetReplica() != "web-a" {
			t.Errorf("log entry: %v", up)
		}
		lines = append(lines, up.GetLog().GetText())
	}
	return lines, refusal
}

func TestLogsFollowAcrossAttempts(t *testing.T) {
	n, s := running(t)
	for i := range 5 {
		n.tasks.print(t, "a-1", fmt.Sprint("line ", i))
	}
	s.open(t, openLogs(&v1.OpenLogs{ReplicaUid: "a", Follow: true, Tail: new(int32(2))}))
	log := <-n.server.attached
	defer close(log.end)
	if log.id != "stream-1" {
		t.Errorf("the stream is named %q", log.id)
	}
	if got, _ := log.lines(t, 2); !slices.Equal(got, []string{"line 3", "line 4"}) {
		t.Errorf("tail: %q", got)
	}
	n.tasks.exit("a-1", driver.Exit{Code: 1})
	n.tasks.awaitStart("a-2")
	n.tasks.print(t, "a-2", "second attempt")
	if got, _ := log.lines(t, 1); !slices.Equal(got, []string{"second attempt"}) {
		t.Errorf("followed: %q", got)
	}
	n.tasks.print(t, "a-2", "last words")
	s.send(t, delta(stopped(assignment("a"))))
	if got, _ := log.lines(t, -1); !slices.Equal(got, []string{"last words"}) {
		t.Errorf("at the end: %q", got)
	}
}

// A server that asks for the log after a position gets exactly that, beginning with a mark.
func TestLogsResumeAfterAPosition(t *testing.T) {
	n, s := running(t)
	for i := range 3 {
		n.tasks.print(t, "a-1", fmt.Sprint("line ", i))
	}
	entry := func(log *attached) *v1.LogEntry {
		t.Helper()
		up, err := log.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return up.GetLog()
	}
	s.open(t, openLogs(&v1.OpenLogs{ReplicaUid: "a", Follow: true, Mark: true}))
	log := <-n.server.attached
	if mark := entry(log); !mark.GetMark() || mark.GetPosition() == "" || mark.GetStream() != "" {
		t.Errorf("first came %v", mark)
	}
	second := []*v1.LogEntry{entry(log), entry(log)}[1]
	close(log.end)
	s.open(t, openLogs(&v1.OpenLogs{ReplicaUid: "a", Follow: true, Mark: true, Tail: new(int32(0)), After: second.GetPosition()}))
	log = <-n.server.attached
	defer close(log.end)
	if mark := entry(log); !mark.GetMark() || mark.GetPosition() != second.GetPosition() {
		t.Errorf("resumed with %v", mark)
	}
	if got := entry(log); second.GetText() != "line 1" || got.GetText() != "line 2" {
		t.Errorf("behind %q came %q", second.GetText(), got.GetText())
	}
}

func TestLogsAfterAnInvalidPositionAreRefused(t *testing.T) {
	n, s := running(t)
	s.open(t, openLogs(&v1.OpenLogs{ReplicaUid: "a", After: "yesterday"}))
	log := <-n.server.attached
	defer close(log.end)
	if _, refusal := log.lines(t, -1); !strings.Contains(refusal, `"yesterday" is not a position in a log`) {
		t.Errorf("refusal: %q", refusal)
	}
}

func TestGapInALogIsNotALine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := logEntry("web-1", logfile.Entry{Time: at, Gap: true})
	if got.GetError() == "" || got.GetText() != "" || got.GetStream() != "" || !got.GetTime().AsTime().Equal(at) || got.GetReplica() != "web-1" {
		t.Errorf("a gap is sent as %v", got)
	}
}

func TestLogsOfAnUnknownReplicaAreRefused(t *testing.T) {
	n, s := running(t)
	s.open(t, openLogs(&v1.OpenLogs{ReplicaUid: "stranger", Follow: true}))
	log := <-n.server.attached
	defer close(log.end)
	if _, refusal := log.lines(t, -1); !strings.Contains(refusal, `no log of replica "stranger"`) {
		t.Errorf("refusal: %q", refusal)
	}
}

// exec opens an exec of a shell script.
func (s *session) exec(t *testing.T, n *node, uid string, stdin bool, command ...string) *attached {
	t.Helper()
	s.open(t, &v1.Open{Id: "exec-1", What: &v1.Open_Exec{Exec: &v1.OpenExec{
		ReplicaUid: uid,
		Start:      &v1.ExecStart{Command: command, Stdin: stdin, Env: map[string]string{"WHO": "me"}},
	}}})
	return <-n.server.attached
}

func (a *attached) down(t *testing.T, request *v1.ExecRequest) {
	t.Helper()
	if err := a.stream.Send(&v1.AttachDown{Message: &v1.AttachDown_Exec{Exec: request}}); err != nil {
		t.Fatal(err)
	}
}

// result is the output of a process.
type result struct {
	stdout, stderr string
	exit           *v1.ExecExit
	refusal        string
}

// until collects output until stdout contains text, or until the end of the stream if text
// is empty.
func (a *attached) until(t *testing.T, text string) (r result) {
	t.Helper()
	for text == "" || !strings.Contains(r.stdout, text) {
		up, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		r.stdout += string(up.GetExec().GetStdout())
		r.stderr += string(up.GetExec().GetStderr())
		r.refusal += up.GetError()
		if up.GetExec().GetExit() != nil {
			r.exit = up.GetExec().GetExit()
		}
	}
	return r
}

func TestExecHasInputOutputAndExitCode(t *testing.T) {
	n, s := running(t)
	e := s.exec(t, n, "a", true, "sh", "-c", `echo "$WHO"; cat; echo to stderr >&2; exit 7`)
	defer close(e.end)
	if first, err := e.stream.Recv(); err != nil || first.GetExec().GetStarted().GetReplica() != "web-a" {
		t.Errorf("first message: %v, %v", first, err)
	}
	big := strings.Repeat("x", 100_000)
	e.down(t, &v1.ExecRequest{Message: &v1.ExecRequest_Stdin{Stdin: []byte(big)}})
	e.down(t, &v1.ExecRequest{Message: &v1.ExecRequest_CloseStdin{CloseStdin: true}})
	got := e.until(t, "")
	if want := "me\n" + big; got.stdout != want || got.stderr != "to stderr\n" {
		t.Errorf("stdout has %d bytes, want %d; stderr is %q", len(got.stdout), len(want), got.stderr)
	}
	if got.exit.GetCode() != 7 || got.exit.GetError() != "" {
		t.Errorf("exit: %v", got.exit)
	}
}

func TestExecIsSignalledAndResized(t *testing.T) {
	n, s := running(t)
	e := s.exec(t, n, "a", false, "sh", "-c", `trap 'exit 42' TERM; echo ready; while :; do sleep 0.01; done`)
	defer close(e.end)
	e.until(t, "ready")
	e.down(t, &v1.ExecRequest{Message: &v1.ExecRequest_Resize{Resize: &v1.TerminalSize{Width: 80, Height: 24}}})
	n.tasks.mu.Lock()
	process := n.tasks.execs[0]
	n.tasks.mu.Unlock()
	if size := <-process.sizes; size != [2]uint16{80, 24} {
		t.Errorf("resized to %v", size)
	}
	e.down(t, &v1.ExecRequest{Message: &v1.ExecRequest_Signal{Signal: "SIGTERM"}})
	if got := e.until(t, ""); got.exit.GetCode() != 42 {
		t.Errorf("exit: %v", got.exit)
	}
}

// The process does not read, and more input is pending than all buffers can hold.
func TestExecEndsWithItsStreamEvenWhenItIsStuck(t *testing.T) {
	n, s := running(t)
	e := s.exec(t, n, "a", true, "sh", "-c", `echo ready; exec sleep 1000`)
	e.until(t, "ready")
	chunk := &v1.ExecRequest{Message: &v1.ExecRequest_Stdin{Stdin: make([]byte, 32<<10)}}
	for range 23 { // more than the backlog, less than the stream's window
		e.down(t, chunk)
	}
	close(e.end)
	n.tasks.mu.Lock()
	stuck := n.tasks.execs[0]
	n.tasks.mu.Unlock()
	<-stuck.ended
}

func TestExecRefusals(t *testing.T) {
	n, s := running(t)
	stranger := s.exec(t, n, "stranger", false, "true")
	defer close(stranger.end)
	if got := stranger.until(t, ""); !strings.Contains(got.refusal, `no replica "stranger"`) {
		t.Errorf("refusal: %q", got.refusal)
	}
	missing := s.exec(t, n, "a", false, "/no/such/program")
	defer close(missing.end)
	if got := missing.until(t, ""); got.exit.GetCode() != 127 || !strings.Contains(got.exit.GetError(), `command "/no/such/program" does not exist in replica web-a`) {
		t.Errorf("exit: %v", got.exit)
	}
}
