package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

func entry(replica, line string, second int) *cloudlessv1.LogEntry {
	return &cloudlessv1.LogEntry{
		Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 5000, time.UTC)), Replica: replica, Stream: "stdout", Text: line,
	}
}

func TestLogsOfOneReplica(t *testing.T) {
	c := newCluster(t)
	c.replicas = []*cloudlessv1.Replica{replica("web-a", "web", "running", 0, time.Minute)}
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1), entry("web-a", "two\x00raw", 2)}
	c.run(t.Context(), "", "logs", "web").expect(t, 0, "one\ntwo\x00raw\n", "")
	c.run(t.Context(), "", "logs", "web", "--timestamps").expect(t, 0,
		"2026-01-02T03:04:01.000005Z one\n2026-01-02T03:04:02.000005Z two\x00raw\n", "")
	got := c.run(t.Context(), "", "logs", "web", "-o", "json")
	if first, _, _ := strings.Cut(got.stdout, "\n"); !json.Valid([]byte(first)) || !strings.Contains(first, `"text":"one"`) {
		t.Errorf("as the API's JSON: %+v", got)
	}
}

func TestLogsOfSeveralReplicasHavePrefixes(t *testing.T) {
	c := newCluster(t)
	c.replicas = []*cloudlessv1.Replica{replica("web-a", "web", "running", 0, time.Minute), replica("web-bcd", "web", "failed", 0, time.Minute)}
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1), entry("web-bcd", "two", 2), {Replica: "web-c", Error: "node box is offline"}}
	complaint := "cloudless: the output of web-c is not complete: node box is offline\n"
	c.run(t.Context(), "", "logs", "web", "--all").expect(t, 1, "web-a   | one\nweb-bcd | two\n", complaint)
	if !c.lastLogs.GetEnded() {
		t.Errorf("with --all it asks for %v", c.lastLogs)
	}
	c.run(t.Context(), "", "logs", "web", "--no-prefix").expect(t, 1, "one\ntwo\n", complaint)
	c.run(t.Context(), "", "logs", "web", "--replica", "web-a").expect(t, 0, "one\n", "")
}

// Replicas of a removed workload do not count as replicas of a new workload with the same name.
func TestLogsOfARecreatedWorkloadHaveNoPrefix(t *testing.T) {
	c := newCluster(t)
	former := replica("web-zzz", "web", "stopped", 0, time.Hour)
	former.Spec.WorkloadUid = "removed"
	c.replicas = []*cloudlessv1.Replica{replica("web-a", "web", "running", 0, time.Minute), former}
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1)}
	c.run(t.Context(), "", "logs", "web").expect(t, 0, "one\n", "")
}

// A followed log that resumes where it stopped is complete.
func TestFollowedLogIsCompleteOnceItResumes(t *testing.T) {
	c := newCluster(t)
	away := &cloudlessv1.LogEntry{Replica: "web-a", Error: "node box does not answer"}
	said := "cloudless: the output of web-a is not complete: node box does not answer\n"
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1), away, entry("web-a", "two", 2)}
	c.run(t.Context(), "", "logs", "web", "--follow", "--until", "2020-01-01").expect(t, 0, "one\ntwo\n", said)
	c.run(t.Context(), "", "logs", "web").expect(t, 1, "one\ntwo\n", said)
	c.entries = append(c.entries, away)
	c.run(t.Context(), "", "logs", "web", "--follow", "--until", "2020-01-01").expect(t, 1, "one\ntwo\n", said+said)
}

func TestLogsGetPrefixesOnceAnotherReplicaPrints(t *testing.T) {
	c := newCluster(t)
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1), entry("web-b", "two", 2), entry("web-a", "three", 3)}
	c.run(t.Context(), "", "logs", "web").expect(t, 0, "one\nweb-b | two\nweb-a | three\n", "")
}

func TestLogsFollowUntilInterrupted(t *testing.T) {
	c := newCluster(t)
	c.entries = []*cloudlessv1.LogEntry{entry("web-a", "one", 1)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &cancelling{cancel: cancel}
	code := Main(ctx, Options{
		Args:  []string{"logs", "--config", c.config, "-f", "--tail", "20", "--since", "5m", "--until", "2030-01-01", "web"},
		Stdin: strings.NewReader(""), Stdout: out, Stderr: io.Discard,
	})
	if code != 0 || out.String() != "one\n" {
		t.Errorf("exit code %d, output %q", code, out)
	}
	r := c.lastLogs
	if !r.GetFollow() || r.GetTail() != 20 || time.Since(r.GetSince().AsTime()) < 5*time.Minute || r.GetUntil() == nil {
		t.Errorf("asked for %v", r)
	}
}

// cancelling cancels the command at its first output.
type cancelling struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (c *cancelling) Write(p []byte) (int, error) {
	defer c.cancel()
	return c.Buffer.Write(p)
}

type execServer = grpc.BidiStreamingServer[cloudlessv1.ExecRequest, cloudlessv1.ExecResponse]

func started(s execServer) (*cloudlessv1.ExecStart, error) {
	first, err := s.Recv()
	if err != nil {
		return nil, err
	}
	return first.GetStart(), s.Send(&cloudlessv1.ExecResponse{Message: &cloudlessv1.ExecResponse_Started{Started: &cloudlessv1.ExecStarted{Replica: "web-a"}}})
}

func say(s execServer, text string) error {
	return s.Send(&cloudlessv1.ExecResponse{Message: &cloudlessv1.ExecResponse_Stdout{Stdout: []byte(text)}})
}

func exit(s execServer, code int32) error {
	return s.Send(&cloudlessv1.ExecResponse{Message: &cloudlessv1.ExecResponse_Exit{Exit: &cloudlessv1.ExecExit{Code: code}}})
}

// cat prints its options, echoes its input and exits with code 7.
func cat(s execServer) error {
	start, err := started(s)
	if err != nil {
		return err
	}
	if err := say(s, fmt.Sprintf("%s %v %s\n", strings.Join(start.GetCommand(), " "), start.GetEnv(), start.GetReplica())); err != nil {
		return err
	}
	for start.GetStdin() {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if req.GetCloseStdin() {
			break
		}
		if err := say(s, string(req.GetStdin())); err != nil {
			return err
		}
	}
	return exit(s, 7)
}

func TestExecReturnsTheCommandsExitCode(t *testing.T) {
	c := newCluster(t)
	c.exec = cat
	c.run(t.Context(), "typed", "exec", "-i", "-e", "A=b", "--replica", "web-a", "web", "--", "cat", "-v").
		expect(t, 7, "cat -v map[A:b] web-a\ntyped", "")
	c.run(t.Context(), "not read", "exec", "web", "ls").expect(t, 7, "ls map[] \n", "")

	c.exec = func(execServer) error { return status.Error(codes.FailedPrecondition, "no replica of web runs") }
	c.run(t.Context(), "", "exec", "web", "--", "ls").expect(t, 1, "", "cloudless: no replica of web runs\n")
	if got := c.run(t.Context(), "", "exec", "web", "--", ""); got.code != 2 || !strings.Contains(got.stderr, "COMMAND is missing") {
		t.Errorf("an empty command: %+v", got)
	}
	if got := c.run(t.Context(), "", "exec", "-t", "web", "--", "ls"); got.code != 2 || !strings.Contains(got.stderr, "there is no terminal here") {
		t.Errorf("%+v", got)
	}
}

// A long command knows the servers from when it began. If another command has changed the context since, that newer
// change stays.
func TestLongCommandKeepsNewerAddresses(t *testing.T) {
	c := newCluster(t)
	change := func(change func(*client.Config)) {
		err := client.UpdateConfig(c.config, func(config *client.Config) error {
			change(config)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	var now client.Context
	meanwhile := func(config *client.Config) {
		now = config.Contexts[0]
		now.Addresses = []string{"192.0.2.7:7700", "192.0.2.8:7700"}
		config.Set(now)
	}
	c.exec = func(s execServer) error {
		if _, err := started(s); err != nil {
			return err
		}
		change(meanwhile)
		return exit(s, 0)
	}
	// The first address does not answer, so the client puts the second one first.
	change(func(config *client.Config) {
		config.Contexts[0].Addresses = append([]string{"127.0.0.1:1"}, config.Contexts[0].Addresses...)
	})
	real, err := client.LoadConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	c.run(t.Context(), "", "exec", "web", "--", "x").expect(t, 0, "", "")
	if have, err := client.LoadConfig(c.config); err != nil || !slices.Equal(have.Contexts[0].Addresses, now.Addresses) {
		t.Errorf("the newer addresses %v have become %v, %v", now.Addresses, have.Contexts[0].Addresses, err)
	}

	meanwhile = func(config *client.Config) {
		now.Name, now.Cluster = "other", "other"
		config.Set(now)
		config.Current = now.Name
	}
	change(func(config *client.Config) { *config = *real })
	c.run(t.Context(), "", "exec", "web", "--", "x").expect(t, 0, "", "")
	if have, err := client.LoadConfig(c.config); err != nil || !slices.Equal(have.Contexts[1].Addresses, now.Addresses) {
		t.Errorf("the addresses of another cluster, %v, have become %v, %v", now.Addresses, have.Contexts[1].Addresses, err)
	}
}

func TestExecForwardsSignals(t *testing.T) {
	c := newCluster(t)
	c.exec = func(s execServer) error {
		if _, err := started(s); err != nil {
			return err
		}
		if err := say(s, "ready"); err != nil {
			return err
		}
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if err := say(s, " "+req.GetSignal()); err != nil {
			return err
		}
		return exit(s, 128+10)
	}
	// Exec passes the interrupt, which ends other commands, to the remote command.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &cancelling{cancel: func() {
		cancel()
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
	}}
	var once bool
	kill := out.cancel
	out.cancel = func() {
		if !once {
			once = true
			kill()
		}
	}
	code := Main(ctx, Options{
		Args: []string{"exec", "--config", c.config, "web", "--", "sleep"}, Stdin: strings.NewReader(""), Stdout: out, Stderr: io.Discard,
	})
	if code != 138 || out.String() != "ready SIGUSR1" {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

func TestExecCanBeInterruptedBeforeTheCommandRuns(t *testing.T) {
	c := newCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.exec = func(s execServer) error {
		cancel()
		<-s.Context().Done()
		return nil
	}
	c.run(ctx, "", "exec", "web", "--", "ls").expect(t, 130, "", "cloudless: interrupted\n")
}

func TestExecOnATerminal(t *testing.T) {
	c := newCluster(t)
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if err := pty.Setsize(slave, &pty.Winsize{Cols: 80, Rows: 24}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TERM", "xterm")
	c.exec = func(s execServer) error {
		start, err := started(s)
		if err != nil {
			return err
		}
		if err := say(s, fmt.Sprintf("%t %dx%d %s\n", start.GetTerminal(), start.GetSize().GetWidth(), start.GetSize().GetHeight(), start.GetEnv()["TERM"])); err != nil {
			return err
		}
		if err := pty.Setsize(slave, &pty.Winsize{Cols: 132, Rows: 43}); err != nil {
			return err
		}
		// The pty is not this process's controlling terminal, so the kernel does not signal it.
		if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
			return err
		}
		resized, err := s.Recv()
		if err != nil {
			return err
		}
		if err := say(s, fmt.Sprintf("%dx%d\n", resized.GetResize().GetWidth(), resized.GetResize().GetHeight())); err != nil {
			return err
		}
		// A raw terminal passes the interrupt key on as it is.
		if _, err := master.Write([]byte{3}); err != nil {
			return err
		}
		key, err := s.Recv()
		if err != nil {
			return err
		}
		if err := say(s, fmt.Sprintf("key %q\n", key.GetStdin())); err != nil {
			return err
		}
		return exit(s, 0)
	}
	var stdout bytes.Buffer
	code := Main(t.Context(), Options{
		Args: []string{"exec", "--config", c.config, "-it", "web", "--", "sh"}, Stdin: slave, Stdout: &stdout, Stderr: io.Discard,
	})
	if want := "true 80x24 xterm\n132x43\nkey \"\\x03\"\n"; code != 0 || stdout.String() != want {
		t.Errorf("exit code %d, output %q, want %q", code, stdout.String(), want)
	}
}
