package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/datadir"
)

// childEnv tells the test program that it is a child of --detach, and how to behave.
const childEnv = "CLOUDLESS_TEST_CHILD"

// childMain is the real command line with roles that only report what they would do.
func childMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	role := func(ctx context.Context, p *Process, about string) error {
		p.Progress("beginning")
		switch os.Getenv(childEnv) {
		case "fails":
			return errors.New("the disk is full")
		case "dies":
			fmt.Fprintln(os.Stderr, "panic: something terrible")
			os.Exit(3)
		case "runs already":
			return &datadir.AlreadyRunningError{DataDir: p.DataDir, Holder: datadir.Holder{PID: 77, Address: "127.0.0.1:7700"}}
		case "hangs with nothing made":
			if err := os.WriteFile(p.DataDir+"-hanging", nil, 0o600); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		case "hangs":
			if err := os.WriteFile(filepath.Join(p.DataDir, "hanging"), nil, 0o600); err != nil {
				return err
			}
			<-ctx.Done()
			return os.WriteFile(filepath.Join(p.DataDir, "stopped"), nil, 0o600)
		}
		_, leaked := os.LookupEnv(readyEnv)
		session, err := unix.Getsid(0)
		p.Ready(fmt.Sprintf("%s; own session %t, %v; variable leaked %t; pid %d",
			about, session == os.Getpid(), err, leaked, os.Getpid()))
		<-ctx.Done()
		return ctx.Err()
	}
	env := &command.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	return env.Execute(ctx, localRoot(env, Roles{
		Up: func(ctx context.Context, o UpOptions) error {
			return role(ctx, &o.Process, fmt.Sprintf("up %s %s %v", o.Reach.APIAddr, o.Name, o.Labels))
		},
		Join: func(ctx context.Context, o JoinOptions) error {
			args, err := os.ReadFile("/proc/self/cmdline")
			if err != nil {
				return err
			}
			return role(ctx, &o.Process, fmt.Sprintf("join %s with %s; in arguments %t", o.Address, o.Token, strings.Contains(string(args), o.Token)))
		},
	}), os.Args[1:])
}

func detached(ctx context.Context, t *testing.T, behaviour string, args ...string) (result, string) {
	t.Helper()
	t.Setenv(childEnv, behaviour)
	dir := t.TempDir()
	t.Setenv("CLOUDLESS_CONFIG", filepath.Join(dir, "config.yaml"))
	return runLocal(ctx, Roles{}, append(args, "--detach", "--data-dir", dir)...), dir
}

// endChild stops a child by the pid in its message, and waits until it is gone.
func endChild(t *testing.T, message string) {
	t.Helper()
	var pid int
	if _, err := fmt.Sscanf(message[strings.LastIndex(message, "pid "):], "pid %d", &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var state syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &state, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if state.ExitStatus() != 0 {
		t.Errorf("after SIGTERM the child ended with %d", state.ExitStatus())
	}
}

func TestUpDetachReturnsWhenReady(t *testing.T) {
	got, dir := detached(t.Context(), t, "works", "up", "--api-addr", "127.0.0.1:9", "--name", "box", "-l", "a=b", "--label=c=d,e")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "up 127.0.0.1:9 box map[a:b c:d,e]; own session true, <nil>; variable leaked false; pid ") {
		t.Fatalf("%+v", got)
	}
	endChild(t, got.stdout)
	if info, err := os.Stat(filepath.Join(dir, "cloudless.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log: %v, %v", info, err)
	}
}

func TestJoinDetachHidesTheToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("cljoin_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"as a file":     {"--token-file", file},
		"as a flag":     {"--token", "cljoin_x"},
		"in a variable": nil,
	} {
		t.Run(name, func(t *testing.T) {
			if args == nil {
				t.Setenv(command.TokenEnv, "cljoin_x")
			}
			got, _ := detached(t.Context(), t, "works", append([]string{"join", "10.0.0.1:7700"}, args...)...)
			if got.code != 0 || !strings.HasPrefix(got.stdout, "join 10.0.0.1:7700 with cljoin_x; in arguments false; ") {
				t.Fatalf("%+v", got)
			}
			endChild(t, got.stdout)
		})
	}
}

func TestUpDetachSaysWhyTheChildEnded(t *testing.T) {
	got, dir := detached(t.Context(), t, "fails", "up")
	got.expect(t, 1, "", "cloudless: the disk is full\n")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("what was said already is left in %v (%v)", left, err)
	}
	made := filepath.Join(dir, "made")
	runLocal(t.Context(), Roles{}, "up", "--detach", "--data-dir", made).expect(t, 1, "", "cloudless: the disk is full\n")
	if _, err := os.Stat(made); !os.IsNotExist(err) {
		t.Errorf("the folder that was made for nothing: %v", err)
	}

	got, dir = detached(t.Context(), t, "dies", "up")
	got.expect(t, 1, "", "cloudless: the process ended before it was ready (exit status 3): the end of "+
		filepath.Join(dir, "cloudless.log")+" says: panic: something terrible\n")
}

func TestUpDetachTwiceIsNoError(t *testing.T) {
	got, dir := detached(t.Context(), t, "runs already", "up")
	got.expect(t, 0, "cloudless runs on "+dir+" already at 127.0.0.1:7700 (process 77)\n", "")
}

func TestAnInterruptStopsTheChild(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	t.Setenv(childEnv, "hangs")
	t.Setenv("CLOUDLESS_CONFIG", filepath.Join(dir, "config.yaml"))
	done := make(chan result)
	go func() { done <- runLocal(ctx, Roles{}, "up", "--detach", "--data-dir", dir) }()
	awaitFile(t, filepath.Join(dir, "hanging"))
	cancel()
	(<-done).expect(t, 130, "", "cloudless: interrupted\n")
	if _, err := os.Stat(filepath.Join(dir, "stopped")); err != nil {
		t.Errorf("the child did not stop in order: %v", err)
	}
}

// An attempt that was interrupted before it created anything leaves nothing behind.
func TestAnInterruptLeavesNoFolderThatWasMadeForNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made := filepath.Join(t.TempDir(), "made")
	t.Setenv(childEnv, "hangs with nothing made")
	t.Setenv("CLOUDLESS_CONFIG", filepath.Join(t.TempDir(), "config.yaml"))
	done := make(chan result)
	go func() { done <- runLocal(ctx, Roles{}, "up", "--detach", "--data-dir", made) }()
	awaitFile(t, made+"-hanging")
	cancel()
	(<-done).expect(t, 130, "", "cloudless: interrupted\n")
	if _, err := os.Stat(made); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}

func TestUpInTheForeground(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	t.Setenv("CLOUDLESS_CONFIG", "/nowhere/config.yaml")
	var got UpOptions
	roles := Roles{Up: func(ctx context.Context, o UpOptions) error {
		got = o
		o.Progress("beginning")
		o.Ready("ready at " + o.Reach.APIAddr)
		cancel() // as an interrupt does
		<-ctx.Done()
		return fmt.Errorf("stopped: %w", ctx.Err())
	}}
	r := runLocal(ctx, roles, "up", "--data-dir", "relative", "--api-addr", "127.0.0.1:7701", "--context", "mine", "--log-level", "debug")
	r.expect(t, 0, "ready at 127.0.0.1:7701\n", "")
	if !filepath.IsAbs(got.DataDir) || got.Context != "mine" || got.ConfigPath != "/nowhere/config.yaml" || got.LogLevel.String() != "DEBUG" || got.Version != "v1.2.3" {
		t.Errorf("options %+v", got)
	}

	roles.Up = func(context.Context, UpOptions) error {
		return &datadir.AlreadyRunningError{DataDir: "/d", Holder: datadir.Holder{PID: 5}}
	}
	runLocal(t.Context(), roles, "up").expect(t, 1, "",
		"cloudless: cloudless runs on /d already (process 5): stop it with: cloudless down --data-dir /d\n")
}

func TestOtherRoles(t *testing.T) {
	t.Setenv("CLOUDLESS_CONFIG", "/nowhere/config.yaml")
	t.Setenv(command.TokenEnv, "")
	roles := Roles{
		Server: func(_ context.Context, o ServerOptions) error { o.Ready("server at " + o.APIAddr); return nil },
		Agent: func(_ context.Context, o AgentOptions) error {
			o.Ready("agent on " + o.DataDir + " " + o.ContainerdAddress)
			return nil
		},
		Join: func(_ context.Context, o JoinOptions) error {
			o.Ready("joined with " + o.Token + o.Reach.APIAddr)
			return nil
		},
		Down: func(_ context.Context, o DownOptions) error {
			if o.Purge {
				return nil
			}
			return errors.New("nothing runs on " + o.DataDir)
		},
	}
	run := func(stdin string, args ...string) result {
		return runLocalWith(t.Context(), strings.NewReader(stdin), roles, args...)
	}
	run("", "server", "--api-addr", ":7700").expect(t, 0, "server at :7700\n", "")
	run("", "agent", "--data-dir", "/d", "--containerd-address", "/run/c.sock").expect(t, 0, "agent on /d /run/c.sock\n", "")
	run(" cljoin_y\n", "join", "h:1", "--token-file", "-").expect(t, 0, "joined with cljoin_y\n", "")
	run("", "join", "h:1", "--token", "t", "--role", "server", "--api-addr", "h2:2").expect(t, 0, "joined with th2:2\n", "")
	run("", "down", "--data-dir", "/d").expect(t, 1, "", "cloudless: nothing runs on /d\n")
	run("", "down", "--data-dir", "/d", "--purge").expect(t, 0, "stopped, and nothing of /d is left\n", "")
	for want, args := range map[string][]string{
		"the join token is missing":                    {"join", "h:1"},
		"exclude each other":                           {"join", "h:1", "--token", "a", "--token-file", "b"},
		`ADDRESS "h" is not of the form host:port`:     {"join", "h", "--token", "a"},
		"ADDRESS of a server is missing":               {"join"},
		`log level "loud" is not known`:                {"up", "--log-level", "loud"},
		`--api-addr "7700" is not of the form`:         {"up", "--api-addr", "7700"},
		`--api-addr "7701" is not of the form`:         {"join", "h:1", "--token", "a", "--role", "server", "--api-addr", "7701"},
		"--api-addr is for --role server":              {"join", "h:1", "--token", "a", "--api-addr", "h:7701"},
		"--label zone=z1":                              {"join", "h:1", "--token", "a", "--zone", "z1"},
		"--label is for a node: leave it or --no-node": {"join", "h:1", "--token", "a", "--role", "server", "--no-node", "--label", "a=b"},
		"--no-node is for --role server":               {"join", "h:1", "--token", "a", "--no-node"},
		"there is no port 99999":                       {"up", "--api-addr", "127.0.0.1:99999"},
		`--api-addr "" is not of the form`:             {"server", "--api-addr", ""},
		`label "a" has no value: write a=VALUE`:        {"up", "--label", "a"},
		"--data-dir is missing":                        {"server", "--data-dir", ""},
		`there is no command "dwon" under cloudless`:   {"dwon"},
	} {
		if got := run("", args...); got.code != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: %+v, want a usage error about %q", args, got, want)
		}
	}
}

// A server without the flag for its zone keeps the last one, and an empty flag removes it.
func TestZoneFlagIsOptional(t *testing.T) {
	t.Setenv("CLOUDLESS_CONFIG", "/nowhere/config.yaml")
	tell := func(p Process, r Reach) error {
		if r.Zone == nil {
			p.Ready("as before")
		} else {
			p.Ready("in " + strconv.Quote(*r.Zone))
		}
		return nil
	}
	roles := Roles{
		Server: func(_ context.Context, o ServerOptions) error { return tell(o.Process, o.Reach) },
		Join:   func(_ context.Context, o JoinOptions) error { return tell(o.Process, o.Reach) },
	}
	for _, role := range []string{"server", "join h:1 --token t --role server"} {
		for flag, want := range map[string]string{"": "as before\n", "--zone=z3": "in \"z3\"\n", "--zone=": "in \"\"\n"} {
			runLocal(t.Context(), roles, strings.Fields(role+" "+flag)...).expect(t, 0, want, "")
		}
	}
}

// awaitFile returns as soon as the file exists.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	defer watch.Close()
	if _, err := syscall.InotifyAddWatch(fd, filepath.Dir(path), syscall.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if _, err := watch.Read(buffer); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

// Without a terminal, progress is printed only if it takes long, and no line twice.
func TestDetachSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		c := New(&command.Env{Stderr: &stderr}, Roles{}, nil)
		words, say := io.Pipe()
		late := make(chan time.Time)
		go func() {
			for _, doing := range []string{"opening the state", "joining"} {
				fmt.Fprintf(say, `{"progress": %q}`+"\n", doing)
			}
			synctest.Wait() // until both were received
			late <- time.Time{}
			for _, doing := range []string{"joining", "waiting for a session: not a member", "waiting for a session: not a member"} {
				fmt.Fprintf(say, `{"progress": %q}`+"\n", doing)
			}
			fmt.Fprintln(say, `{"ready": "it is ready"}`)
		}()
		last, err := c.awaitChild(t.Context(), nil, words, late)
		if err != nil || last.Ready == nil || *last.Ready != "it is ready" {
			t.Errorf("it ends with %+v, %v", last, err)
		}
		if said := stderr.String(); said != "cloudless: still waiting: joining\ncloudless: still waiting: waiting for a session: not a member\n" {
			t.Errorf("the waiting command printed %q", said)
		}
		_ = words.Close() // ends the goroutine that reads
	})
}
