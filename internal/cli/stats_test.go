package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cluster) GetUsage(_ context.Context, request *cloudlessv1.GetUsageRequest) (*cloudlessv1.Usage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if request.GetWorkload() == "nope" {
		return nil, status.Error(codes.NotFound, "workload nope does not exist in namespace "+request.GetNamespace())
	}
	return c.usage[len(c.usage)-1], nil
}

func (c *cluster) WatchUsage(request *cloudlessv1.GetUsageRequest, stream grpc.ServerStreamingServer[cloudlessv1.Usage]) error {
	if _, err := c.GetUsage(stream.Context(), request); err != nil {
		return err
	}
	for _, frame := range c.usage {
		if err := stream.Send(frame); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// used is a frame the given seconds after the first one.
func used(second int, replicas ...*cloudlessv1.ReplicaUsage) *cloudlessv1.Usage {
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
	for _, u := range replicas {
		u.Uid, u.Namespace, u.Workload, u.Node, u.Time = u.GetReplica(), "default", "web", "n1", at
	}
	return &cloudlessv1.Usage{Time: at, Replicas: replicas, Nodes: []*cloudlessv1.NodeUsage{{
		Node: "n1", State: "ready", Replicas: int32(len(replicas)),
		Usage: &cloudlessv1.NodeResources{Cpu: "1500m", Memory: "2Gi"}, Capacity: &cloudlessv1.NodeResources{Cpu: "2", Memory: "8Gi"},
	}}}
}

// busyFrames are two measurements of two replicas, one of them with its own network.
func busyFrames() []*cloudlessv1.Usage {
	return []*cloudlessv1.Usage{
		used(0,
			&cloudlessv1.ReplicaUsage{Replica: "web-a", ReceivedBytes: 1, SentBytes: 1, Pids: 2},
			&cloudlessv1.ReplicaUsage{Replica: "web-b", Pids: 1}),
		used(2,
			&cloudlessv1.ReplicaUsage{
				Replica: "web-a", Cpu: 0.5, ThrottledNanos: 500_000_000, MemoryBytes: 12 << 20, MemoryLimitBytes: 64 << 20, Pids: 2,
				ReceivedBytes: 1 + 4096, SentBytes: 1 + 2*1500, ReadBytes: 20 << 20, WrittenBytes: 0,
			},
			&cloudlessv1.ReplicaUsage{Replica: "web-b", Cpu: 1.25, MemoryBytes: 1 << 20, Pids: 1}),
	}
}

func TestStatsShowRatesOnceInAPipe(t *testing.T) {
	c := newCluster(t)
	c.usage = busyFrames()
	want := "" +
		"REPLICA  NODE  CPU   THROTTLED  MEMORY         NET RX/TX          BLOCK R/W     PIDS\n" +
		"web-a    n1    0.50  25%        12Mi / 64Mi    2.0Ki/s / 1.5Ki/s  10Mi/s / 0/s  2\n" +
		"web-b    n1    1.25  0%         1.0Mi          -                  0/s / 0/s     1\n"
	got := c.run(t.Context(), "", "stats")
	if squeeze(got.stdout) != squeeze(want) || got.code != 0 || got.stderr != "" {
		t.Errorf("shown is\n%s%s", got.stdout, got.stderr)
	}
	if got := c.run(t.Context(), "", "stats", "web", "--no-stream", "-A"); !strings.Contains(got.stdout, "NAMESPACE") {
		t.Errorf("of all namespaces it is\n%s", got.stdout)
	}
	got = c.run(t.Context(), "", "stats", "web", "-o", "json")
	if !strings.Contains(got.stdout, `"memoryLimitBytes": "67108864"`) || got.code != 0 {
		t.Errorf("as the API's JSON it is %+v", got)
	}
	c.run(t.Context(), "", "stats", "nope").expect(t, 1, "", "cloudless: workload nope does not exist in namespace default\n")
	if got := c.run(t.Context(), "", "stats", "a", "b"); got.code != 2 {
		t.Errorf("two names ended with %+v", got)
	}
}

// squeeze replaces runs of blanks by one blank.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestStatsWithoutReplicasReturnAtOnce(t *testing.T) {
	c := newCluster(t)
	c.usage = []*cloudlessv1.Usage{{}}
	c.run(t.Context(), "", "stats").expect(t, 0, "REPLICA  NODE  CPU  THROTTLED  MEMORY  NET RX/TX  BLOCK R/W  PIDS\n", "")
}

// terminal is a pseudo-terminal that a test controls.
type fakeTerminal struct {
	t    *testing.T
	user *os.File // the test's side
	tty  *os.File // the program's side

	mu   sync.Mutex
	seen bytes.Buffer
	news chan struct{}
	done chan struct{}
}

func newTerminal(t *testing.T, width, height uint16) *fakeTerminal {
	t.Helper()
	user, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(user, &pty.Winsize{Cols: width, Rows: height}); err != nil {
		t.Fatal(err)
	}
	x := &fakeTerminal{t: t, user: user, tty: tty, news: make(chan struct{}, 1), done: make(chan struct{})}
	go x.read()
	t.Cleanup(func() {
		_ = tty.Close()
		<-x.done
		_ = user.Close()
	})
	return x
}

func (x *fakeTerminal) read() {
	defer close(x.done)
	var buffer [4096]byte
	for {
		n, err := x.user.Read(buffer[:])
		x.mu.Lock()
		x.seen.Write(buffer[:n])
		x.mu.Unlock()
		select {
		case x.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (x *fakeTerminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen.String()
}

// await waits until the screen has shown all given texts.
func (x *fakeTerminal) await(words ...string) {
	x.t.Helper()
	late := time.After(10 * time.Minute)
	for {
		text, missing := x.text(), ""
		for _, word := range words {
			if !strings.Contains(text, word) {
				missing = word
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-x.news:
		case <-late:
			x.t.Fatalf("the screen never showed %q, but:\n%q", missing, text)
		}
	}
}

func (x *fakeTerminal) press(key string) {
	x.t.Helper()
	if _, err := io.WriteString(x.user, key); err != nil {
		x.t.Fatal(err)
	}
}

func (x *fakeTerminal) settings() unix.Termios {
	x.t.Helper()
	settings, err := unix.IoctlGetTermios(int(x.tty.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return *settings
}

// start runs a command on the terminal and sends its exit code to ended.
func (x *fakeTerminal) start(ctx context.Context, c *cluster, args ...string) (ended <-chan int) {
	code := make(chan int, 1)
	go func() {
		code <- Main(ctx, Options{
			Args: append(args, "--config", c.config), Stdin: x.tty, Stdout: x.tty, Stderr: x.tty, Version: "test",
		})
	}()
	return code
}

func TestStatsOnATerminalAreDrawnInPlaceUntilInterrupted(t *testing.T) {
	c, x := newCluster(t), newTerminal(t, 60, 20)
	c.usage = busyFrames()
	ctx, interrupt := context.WithCancel(t.Context())
	ended := x.start(ctx, c, "stats", "web")
	x.await("web-b", "\x1b[3A\r") // back over heading and two replicas
	interrupt()
	if code := <-ended; code != 0 {
		t.Errorf("ended with %d", code)
	}
	for line := range strings.SplitSeq(x.text(), "\n") {
		line = strings.TrimRight(line[strings.LastIndex(line, "\x1b[3A\r")+1:], "\r")
		if terminal.Width(strings.NewReplacer("\x1b[K", "", "\x1b[J", "", "[3A\r", "").Replace(line)) > 60 {
			t.Errorf("a line is wider than the terminal: %q", line)
		}
	}
}

// enterScreen takes the whole screen and hides the cursor.
const enterScreen = "\x1b[?1049h\x1b[?25l"

func TestTopTakesTheScreenAndGivesItBack(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("NO_COLOR", "")
	for name, end := range map[string]func(x *fakeTerminal, interrupt func()){
		"by q":        func(x *fakeTerminal, _ func()) { x.press("q") },
		"by ctrl-C":   func(x *fakeTerminal, _ func()) { x.press("\x03") },
		"by a signal": func(_ *fakeTerminal, interrupt func()) { interrupt() },
	} {
		t.Run(name, func(t *testing.T) {
			c, x := newCluster(t), newTerminal(t, 140, 20)
			c.usage = busyFrames()
			before := x.settings()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			ended := x.start(ctx, c, "top")
			x.await(enterScreen, "n1", "1.50 / 2.00", "\x1b[33m████████\x1b[0m░░", "default/web-a", "1.25", "by cpu")
			x.press("m")
			x.await("by memory")
			if err := pty.Setsize(x.user, &pty.Winsize{Cols: 100, Rows: 10}); err != nil {
				t.Fatal(err)
			}
			end(x, interrupt)
			if code := <-ended; code != 0 {
				t.Errorf("ended with %d", code)
			}
			x.await("\x1b[?25h\x1b[?1049l")
			if after := x.settings(); after != before {
				t.Errorf("the terminal was left as %+v, it was %+v", after, before)
			}
		})
	}
}

func TestTopIsForTerminalsOnly(t *testing.T) {
	c := newCluster(t)
	if got := c.run(t.Context(), "", "top"); got.code != 2 || !strings.Contains(got.stderr, "top needs a terminal: elsewhere use cloudless stats") {
		t.Errorf("in a pipe it ended with %+v", got)
	}
	if got := c.run(t.Context(), "", "top", "--sort", "name"); got.code != 2 || !strings.Contains(got.stderr, "use cpu or memory") {
		t.Errorf("sorted by name it ended with %+v", got)
	}
}

// Top takes the screen only when it has something to show, so that an error stays readable.
func TestRefusedTopKeepsTheScreen(t *testing.T) {
	c, x := newCluster(t), newTerminal(t, 80, 20)
	c.usage = []*cloudlessv1.Usage{{}}
	ended := x.start(t.Context(), c, "top", "--context", "nowhere")
	if code := <-ended; code == 0 {
		t.Error("it ended well")
	}
	x.await("nowhere")
	if strings.Contains(x.text(), enterScreen) {
		t.Error("it took the screen")
	}
}
