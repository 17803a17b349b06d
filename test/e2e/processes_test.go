package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// killProcess sends SIGKILL to the process that holds a data folder, and waits for its
// end:
//
//	kill9 $DATA
func killProcess(ts *testscript.TestScript, _ bool, args []string) {
	pid := holderOf(ts, args[0])
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	waitGone(ts, pid)
}

// freezeProcess freezes the process that holds a data folder for a while, as if its
// machine were asleep:
//
//	freeze $DATA 8s
func freezeProcess(ts *testscript.TestScript, _ bool, args []string) {
	pid := holderOf(ts, args[0])
	length, err := time.ParseDuration(args[1])
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGSTOP))
	time.Sleep(length)
	ts.Check(syscall.Kill(pid, syscall.SIGCONT))
}

// holderOf returns the process that holds a data folder.
func holderOf(ts *testscript.TestScript, folder string) int {
	data, err := os.ReadFile(filepath.Join(folder, "lock"))
	ts.Check(err)
	var holder struct{ PID int }
	ts.Check(json.Unmarshal(data, &holder))
	return holder.PID
}

func waitGone(ts *testscript.TestScript, pid int) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		process := "/proc/" + strconv.Itoa(pid)
		stat, err := os.ReadFile(process + "/stat")
		if err != nil {
			return
		}
		// The first thread may be dead while others still hold the files.
		threads, _ := os.ReadDir(process + "/task")
		if bytes.Contains(stat, []byte(") Z ")) && len(threads) <= 1 {
			return
		}
	}
	ts.Fatalf("process %d still runs", pid)
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

// processes returns the command lines of all processes by pid.
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

// sendSignal sends a signal to the process with exactly this command line, apart from the
// folder of its program:
//
//	signal TERM cloudless exec web -- /probe signal
func sendSignal(ts *testscript.TestScript, _ bool, args []string) {
	signalProcess(ts, args)
}

// endBySignal does the same and waits for the end of the process:
//
//	end TERM probe signal away
func endBySignal(ts *testscript.TestScript, _ bool, args []string) {
	waitGone(ts, signalProcess(ts, args))
}

func signalProcess(ts *testscript.TestScript, args []string) (pid int) {
	number := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT}[args[0]]
	if pid = findProcess(ts, args[1:]); pid == 0 {
		ts.Fatalf("no process runs %q", args[1:])
	}
	ts.Check(syscall.Kill(pid, number))
	return pid
}

// runs waits for a process with exactly this command line, apart from the folder of its
// program. With !, there must be none:
//
//	runs probe signal away
func runs(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		if pid := findProcess(ts, args); pid != 0 {
			ts.Fatalf("process %d runs %q", pid, args)
		}
		return
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if findProcess(ts, args) != 0 {
			return
		}
	}
	ts.Fatalf("no process ever ran %q", args)
}

// restarts kills the process with exactly this command line, apart from the folder of its
// program, and waits for its successor:
//
//	restarts probe count 57
func restarts(ts *testscript.TestScript, _ bool, args []string) {
	old := findProcess(ts, args)
	if old == 0 {
		ts.Fatalf("no process runs %q", args)
	}
	ts.Check(syscall.Kill(old, syscall.SIGKILL))
	waitGone(ts, old)
	runs(ts, false, args)
}

// only waits until exactly one process has this command line, apart from the folder of
// its program:
//
//	only probe count 53
func only(ts *testscript.TestScript, _ bool, args []string) {
	var found []int
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if found = findProcesses(ts, args); len(found) == 1 {
			return
		}
	}
	ts.Fatalf("processes %v run %q, want one", found, args)
}

// findProcess returns 0 if this story has no such process.
func findProcess(ts *testscript.TestScript, args []string) (pid int) {
	if found := findProcesses(ts, args); len(found) > 0 {
		return found[0]
	}
	return 0
}

// findProcesses finds only processes of this story. Another run may have the same command lines.
func findProcesses(ts *testscript.TestScript, args []string) (found []int) {
	for pid, line := range processes() {
		program, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if filepath.Base(program)+" "+rest == strings.Join(args, " ") && belongs(ts, pid) {
			found = append(found, pid)
		}
	}
	return found
}

// belongs reports whether the story or one of its clouds started a process.
func belongs(ts *testscript.TestScript, pid int) bool {
	process := "/proc/" + strconv.Itoa(pid)
	environment, _ := os.ReadFile(process + "/environ")
	if bytes.Contains(environment, []byte("WORK="+ts.Getenv("WORK")+"\x00")) {
		return true
	}
	groups, _ := os.ReadFile(process + "/cgroup")
	folders, _ := filepath.Glob(filepath.Join(ts.Getenv("WORK"), "*", "cloud.json"))
	return slices.ContainsFunc(folders, func(file string) bool {
		return bytes.Contains(groups, []byte("cloudless-"+idOf(ts, filepath.Dir(file))))
	})
}
