package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// The commands of the stories, in addition to testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"eventually": eventually,
	"kill9":      killProcess,
	"kill9shim":  killShim,
	"restarts":   restarts,
	"only":       only,
	"freeze":     freezeProcess,
	"unbroken":   unbroken,
	"traces":     traces,
	"same-pid":   samePID,
	"header":     header,
	"signal":     sendSignal,
	"end":        endBySignal,
	"runs":       runs,
	"machine":    machine,
	"power-off":  powerOff,
	"recycle":    recycle,
	"resize":     resize,
	"containerd": startContainerd,
	"small-disk": smallDisk,
	"fill-disk":  fillDisk,
	"notify":     notify,
	"with-token": withToken,
	"openid":     startOpenID,

	"pack":             pack,
	"registry":         startRegistry,
	"ca-file":          caFile,
	"skopeo-login":     skopeoLogin,
	"interrupted-push": interruptedPush,
	"no-uploads":       noUploads,

	"kill9leader": killLeader,
	"follows":     follows,
	"writers":     startWriters,
	"more":        moreWritten,
	"written":     allWritten,
	"pretend":     pretend,
	"lan":         lan,
	"cable":       cable,

	"marker": makeMarker,

	"trace-collector": startTraceCollector,
	"nowhere":         nowhere,
}

// patience limits how long eventually retries. It is generous, for slow machines.
const patience = 5 * time.Minute

// storyPatience limits a whole story.
const storyPatience = 3 * patience

// eventually runs a command until its output matches a pattern:
//
//	eventually 'PATTERN' cloudless ps
//
// With !, it runs the command until the output does not match.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] eventually PATTERN COMMAND [ARG...]")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	var out []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		cmd := command(ts, args[1:])
		out, _ = cmd.CombinedOutput()
		if pattern.Match(out) != neg {
			return
		}
	}
	ts.Fatalf("%s: output never matched %q (negated: %v); the last output:\n%s\n%s", args[1], args[0], neg, out, processLog(ts))
}

func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	name := args[0]
	if path := filepath.Join(bin, name); exists(path) {
		name = path
	}
	cmd := bounded(ts.Value(storyContext{}).(context.Context), name, args[1:]...)
	cmd.Dir = ts.Getenv("WORK")
	for _, key := range []string{"PATH", "HOME", "CLOUDLESS_CONFIG", "WORK", "DATA", "ADDR", "GOCOVERDIR"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	return cmd
}

// bounded returns a command that ends with ctx, and that prints its name if it hangs.
func bounded(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = 10 * time.Second // for a process that ignores the signal, or a child that keeps the output open
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// processLog returns the end of the log in the default data folder.
func processLog(ts *testscript.TestScript) string {
	data, _ := os.ReadFile(filepath.Join(ts.Getenv("DATA"), "cloudless.log"))
	return string(data[max(0, len(data)-4000):])
}

// unbroken checks that a file has the lines "line 0", "line 1", … with none missing or
// duplicated, and at least the given number:
//
//	unbroken stdout 100
func unbroken(ts *testscript.TestScript, _ bool, args []string) {
	least, err := strconv.Atoi(args[1])
	ts.Check(err)
	text := ts.ReadFile(args[0])
	ts.Check(inOrder(text))
	if lines := strings.Count(text, "line "); lines < least {
		ts.Fatalf("only %d lines, want at least %d", lines, least)
	}
}

// inOrder returns an error unless all lines that have a number are "line 0", "line 1" and so on.
func inOrder(text string) error {
	want := 0
	for line := range strings.Lines(text) {
		_, number, ok := strings.Cut(line, "line ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil {
			return err
		}
		if n != want {
			return fmt.Errorf("after line %d comes line %d", want-1, n)
		}
		want++
	}
	return nil
}

// traces looks for everything on the machine that belongs to the cloud of a data
// folder. A running cloud must have traces, a purged one none:
//
//	traces $DATA        # the cloud runs: remember its id, expect traces
//	! traces $DATA      # it has been purged: expect none
//
// An optional network namespace says where the cloud's network is.
func traces(ts *testscript.TestScript, neg bool, args []string) {
	id := rememberedID(ts, args[0], neg)
	found := tracesOf(ts, id, args[0], args[1:])
	if neg && len(found) > 0 {
		ts.Fatalf("left behind:\n%s", strings.Join(found, "\n"))
	}
	for _, kind := range []string{"process", "mount", "cgroup", "file", "link", "table"} {
		if !neg && !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, kind+" ") }) {
			ts.Fatalf("found no %s of the running cloud, only:\n%s", kind, strings.Join(found, "\n"))
		}
	}
}

// rememberedID returns the cloud's id, even after its folder was deleted.
func rememberedID(ts *testscript.TestScript, data string, purged bool) string {
	if purged {
		return ts.Getenv("CLOUD_ID")
	}
	id := idOf(ts, data)
	ts.Setenv("CLOUD_ID", id)
	return id
}

// idOf returns the id of the cloud in a data folder.
func idOf(ts *testscript.TestScript, data string) string {
	content, err := os.ReadFile(filepath.Join(data, "cloud.json"))
	ts.Check(err)
	var cloud struct{ ID string }
	ts.Check(json.Unmarshal(content, &cloud))
	return cloud.ID
}

func tracesOf(ts *testscript.TestScript, id, data string, network []string) []string {
	var found []string
	for pid, line := range processes() {
		if line == "" {
			continue // a zombie
		}
		groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if strings.Contains(line, data) || strings.Contains(string(groups), "cloudless-"+id) {
			found = append(found, "process "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, data) || strings.Contains(line, id) {
			found = append(found, "mount "+line)
		}
	}
	for kind, patterns := range map[string][]string{
		"cgroup": {"/sys/fs/cgroup/*" + id + "*", "/sys/fs/cgroup/*/*" + id + "*"},
		"file":   {"/run/*" + id + "*", "/run/*/*" + id + "*", "/run/*/*/*" + id + "*", "/tmp/*" + id + "*", data, filepath.Join(data, "*")},
	} {
		for _, pattern := range patterns {
			matches, _ := filepath.Glob(pattern)
			for _, match := range matches {
				found = append(found, kind+" "+match)
			}
		}
	}
	for kind, command := range map[string][]string{"link": {"ip", "-o", "link"}, "table": {"nft", "list", "tables"}} {
		if len(network) == 1 {
			command = append([]string{"nsenter", "--net=" + network[0]}, command...)
		}
		out, err := exec.Command(command[0], command[1:]...).Output()
		ts.Check(err)
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, id) {
				found = append(found, kind+" "+line)
			}
		}
	}
	sockets, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(sockets)) {
		if strings.Contains(line, id) {
			found = append(found, "socket "+line)
		}
	}
	slices.Sort(found)
	return found
}

// samePID checks that the pids of the replicas are the same in two outputs of
// `cloudless ps -o json`:
//
//	same-pid before.json after.json
func samePID(ts *testscript.TestScript, neg bool, args []string) {
	before, after := pids(ts, args[0]), pids(ts, args[1])
	if len(before) == 0 {
		ts.Fatalf("%s has no running replica", args[0])
	}
	if slices.Equal(before, after) == neg {
		ts.Fatalf("pids before %v, after %v", before, after)
	}
}

func pids(ts *testscript.TestScript, file string) []int {
	var list struct {
		Items []struct {
			Status struct{ Pid int }
		}
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &list))
	var all []int
	for _, item := range list.Items {
		all = append(all, item.Status.Pid)
	}
	slices.Sort(all)
	return all
}

// header writes the curl options that authenticate as the current context:
//
//	header curl.conf
func header(ts *testscript.TestScript, _ bool, args []string) {
	config := ts.ReadFile(ts.Getenv("CLOUDLESS_CONFIG"))
	token := regexp.MustCompile(`token: (\S+)`).FindStringSubmatch(config)
	if token == nil {
		ts.Fatalf("no token in the client configuration")
	}
	content := "header = \"Authorization: Bearer " + token[1] + "\"\ninsecure\nsilent\nshow-error\n"
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(content), 0o600))
}

// withToken writes a client configuration with another token:
//
//	with-token file.token config.yaml
func withToken(ts *testscript.TestScript, _ bool, args []string) {
	config := ts.ReadFile(ts.Getenv("CLOUDLESS_CONFIG"))
	token := strings.TrimSpace(ts.ReadFile(args[0]))
	config = regexp.MustCompile(`token: \S+`).ReplaceAllString(config, "token: "+token)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(config), 0o600))
}

// machine simulates another machine with a network namespace, which is connected to
// this machine. This machine has the address $HERE, the other one $THERE. $HERE6 and
// $THERE6 are free to use:
//
//	machine far
//
// Run programs on it with: exec nsenter --net=/run/netns/$MACHINE …
func machine(ts *testscript.TestScript, _ bool, args []string) {
	n := networkFor(ts)
	name := n.name(args[0])
	here, there := "h"+name, "t"+name
	ts.Setenv("MACHINE", name)
	steps := [][]string{
		{"netns", "add", name},
		{"link", "add", here, "type", "veth", "peer", "name", there, "netns", name},
		{"addr", "add", n.here() + "/30", "dev", here},
		{"link", "set", here, "up"},
		{"-n", name, "addr", "add", n.there() + "/30", "dev", there},
		{"-n", name, "link", "set", there, "up"},
		{"-n", name, "link", "set", "lo", "up"},
	}
	ts.Defer(func() {
		_ = exec.Command("ip", "link", "del", here).Run()
		_ = exec.Command("ip", "netns", "del", name).Run()
	})
	for _, step := range steps {
		if out, err := exec.Command("ip", step...).CombinedOutput(); err != nil {
			ts.Fatalf("ip %s: %v\n%s", strings.Join(step, " "), err, out)
		}
	}
}

// startContainerd runs the distribution's containerd on a socket of its own
// until the script ends:
//
//	containerd $WORK/c
func startContainerd(ts *testscript.TestScript, _ bool, args []string) {
	dir := args[0]
	ts.Check(os.MkdirAll(dir, 0o700))
	config := filepath.Join(dir, "config.toml")
	ts.Check(os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600))
	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	ts.Check(err)
	daemon := exec.Command("containerd", "--config", config, "--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"), "--address", filepath.Join(dir, "sock"))
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		ts.Fatalf("start containerd (Debian package containerd): %v", err)
	}
	ts.Defer(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
		_ = log.Close()
	})
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if exists(filepath.Join(dir, "sock")) {
			return
		}
	}
	ts.Fatalf("containerd does not start: %s", ts.ReadFile(log.Name()))
}

// resize runs a command on a terminal. The command must print the terminal's size, and
// the new size after a change. Then ctrl-C ends it:
//
//	resize cloudless exec -it web -- /probe size
func resize(ts *testscript.TestScript, _ bool, args []string) {
	cmd := command(ts, args)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 100, Rows: 30})
	ts.Check(err)
	defer func() { _ = terminal.Close() }()
	lines := bufio.NewScanner(terminal)
	expect := func(want string) {
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		ts.Fatalf("the terminal never showed %q: %v", want, lines.Err())
	}
	expect("size 100x30")
	ts.Check(pty.Setsize(terminal, &pty.Winsize{Cols: 120, Rows: 40}))
	expect("size 120x40")
	_, err = terminal.Write([]byte{3})
	ts.Check(err)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		ts.Fatalf("after ctrl-C in the terminal: %v, want the exit code of a process killed by SIGINT", err)
	}
}

// powerOff simulates a power failure: it kills all processes of the cloud at once, and
// removes its mounts, cgroups and volatile files:
//
//	power-off $DATA
func powerOff(ts *testscript.TestScript, _ bool, args []string) {
	id := rememberedID(ts, args[0], false)
	// Kill the main process first, so that it does not see the others die.
	killProcess(ts, false, args)
	var killed []int
	for pid, line := range processes() {
		groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if strings.Contains(line, args[0]) || strings.Contains(string(groups), "cloudless-"+id) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			killed = append(killed, pid)
		}
	}
	for _, pid := range killed {
		waitGone(ts, pid)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	for line := range strings.Lines(string(mounts)) {
		if target := strings.Fields(line)[4]; strings.Contains(target, id) || strings.HasPrefix(target, args[0]) {
			_ = syscall.Unmount(target, syscall.MNT_DETACH)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/cloudless-" + id + "/*")
	parents, _ := filepath.Glob("/sys/fs/cgroup/*/cloudless-" + id)
	for _, dir := range append(groups, parents...) {
		_ = os.Remove(dir)
	}
	ts.Check(os.RemoveAll("/run/cloudless/" + id))
}

// recycle kills the shims and containers of a cloud whose process is dead. Then it
// starts an unrelated process with the pid of the replica, in $STRANGER:
//
//	recycle $DATA ps.json
func recycle(ts *testscript.TestScript, _ bool, args []string) {
	wanted := pids(ts, args[1])[0]
	id := rememberedID(ts, args[0], false)
	for pid, line := range processes() {
		groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
		if strings.Contains(line, args[0]) || strings.Contains(string(groups), "cloudless-"+id) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if exists("/proc/" + strconv.Itoa(wanted)) {
			continue
		}
		ts.Check(os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(wanted-1)), 0))
		stranger := exec.Command("sleep", "1000")
		ts.Check(stranger.Start())
		if stranger.Process.Pid == wanted {
			ts.Setenv("STRANGER", strconv.Itoa(wanted))
			ts.Defer(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
			return
		}
		_ = stranger.Process.Kill() // another process took the pid first
		_ = stranger.Wait()
	}
	ts.Fatalf("could not start a process with pid %d", wanted)
}
