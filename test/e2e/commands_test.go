package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The words of the scripts beside testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"eventually": eventually,
	"kill9":      killProcess,
	"kill9shim":  killShim,
	"unbroken":   unbroken,
	"traces":     traces,
	"same-pid":   samePID,
	"header":     header,
}

// patience bounds how long eventually tries; it is no measure of speed.
const patience = 90 * time.Second

// eventually runs a command until its output matches a pattern:
//
//	eventually 'PATTERN' cloudless ps
//
// With !, until it does not match.
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
	ts.Fatalf("%s: output never came to match %q (negated: %v); last was:\n%s\n%s", args[1], args[0], neg, out, processLog(ts))
}

func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	name := args[0]
	if path := filepath.Join(bin, name); exists(path) {
		name = path
	}
	cmd := exec.Command(name, args[1:]...)
	cmd.Dir = ts.Getenv("WORK")
	for _, key := range []string{"PATH", "HOME", "CLOUDLESS_CONFIG", "WORK", "DATA", "ADDR"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// processLog is the end of the log of the process on the default data folder.
func processLog(ts *testscript.TestScript) string {
	data, _ := os.ReadFile(filepath.Join(ts.Getenv("DATA"), "cloudless.log"))
	return string(data[max(0, len(data)-4000):])
}

// killProcess kills the process that holds a data folder with SIGKILL and waits
// until it is gone:
//
//	kill9 $DATA
func killProcess(ts *testscript.TestScript, _ bool, args []string) {
	data, err := os.ReadFile(filepath.Join(args[0], "lock"))
	ts.Check(err)
	var holder struct{ PID int }
	ts.Check(json.Unmarshal(data, &holder))
	ts.Check(syscall.Kill(holder.PID, syscall.SIGKILL))
	waitGone(ts, holder.PID)
}

func waitGone(ts *testscript.TestScript, pid int) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
	}
	ts.Fatalf("process %d is still there", pid)
}

// killShim kills the shim of the replica whose process has the given arguments:
//
//	kill9shim $DATA
func killShim(ts *testscript.TestScript, _ bool, args []string) {
	found := false
	for pid, line := range processes() {
		if strings.HasPrefix(line, filepath.Join(args[0], "shim")+"/") {
			ts.Check(syscall.Kill(pid, syscall.SIGKILL))
			waitGone(ts, pid)
			found = true
		}
	}
	if !found {
		ts.Fatalf("no shim of %s runs", args[0])
	}
}

// processes are the command lines of all processes by pid.
func processes() map[int]string {
	all := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		pid, atoiErr := strconv.Atoi(filepath.Base(dir))
		if err == nil && atoiErr == nil {
			all[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return all
}

// unbroken checks that a file has the lines "line 0", "line 1", … without one
// missing or twice, and at least so many:
//
//	unbroken stdout 100
func unbroken(ts *testscript.TestScript, _ bool, args []string) {
	want := 0
	for _, line := range strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n") {
		_, rest, ok := strings.Cut(line, "line ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(rest))
		ts.Check(err)
		if n != want {
			ts.Fatalf("after line %d comes line %d", want-1, n)
		}
		want++
	}
	least, err := strconv.Atoi(args[1])
	ts.Check(err)
	if want < least {
		ts.Fatalf("only %d lines, want at least %d", want, least)
	}
}

// traces writes everything that a cloud could leave on the machine to a file,
// so that before and after can be compared:
//
//	traces before.txt
func traces(ts *testscript.TestScript, _ bool, args []string) {
	var found []string
	for _, line := range processes() {
		if strings.Contains(line, "cloudless") || strings.Contains(line, "/probe ") {
			found = append(found, "process "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	ts.Check(err)
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			found = append(found, "mount "+fields[4])
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/cloudless*", "/sys/fs/cgroup/cloudless*", "/run/cloudless/*", "/run/cloudless", "/run/containerd/*", "/run/netns/*", "/run/runc/*"} {
		matches, _ := filepath.Glob(pattern)
		found = append(found, matches...)
	}
	namespaces, _ := exec.Command("lsns", "-n", "-o", "TYPE,COMMAND").Output()
	for line := range strings.Lines(string(namespaces)) {
		if strings.Contains(line, "probe") || strings.Contains(line, "cloudless") {
			found = append(found, "namespace "+strings.Join(strings.Fields(line), " "))
		}
	}
	slices.Sort(found)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Join(found, "\n")+"\n"), 0o600))
}

// samePID checks that the replicas' processes are those of an earlier
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
