// Package datadirtest prepares data folders for tests: held by another process, or with the credentials of a node.
package datadirtest

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/cloudless/cloudless/internal/datadir"
)

// holdEnv makes the test program hold the data folder that it names, instead of running tests; with stubbornEnv it
// ignores SIGTERM.
const (
	holdEnv     = "CLOUDLESS_TEST_HOLD"
	stubbornEnv = "CLOUDLESS_TEST_STUBBORN"
)

// Main is the beginning of TestMain in packages that use Hold. It does not return in the process that holds a folder.
func Main() {
	path := os.Getenv(holdEnv)
	if path == "" {
		return
	}
	if os.Getenv(stubbornEnv) != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	if _, err := datadir.Open(path); err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	select {} // the parent ends it
}

// Hold starts a process that holds the folder until the test ends.
func Hold(t *testing.T, path string) *exec.Cmd { return start(t, holdEnv+"="+path) }

// HoldStubbornly starts a process that holds the folder and ignores SIGTERM.
func HoldStubbornly(t *testing.T, path string) *exec.Cmd {
	return start(t, holdEnv+"="+path, stubbornEnv+"=1")
}

func start(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd
}

// SignalOf waits for a process and returns the signal that ended it.
func SignalOf(t *testing.T, cmd *exec.Cmd) syscall.Signal {
	t.Helper()
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		t.Fatalf("the process ended with %v", cmd.ProcessState)
	}
	return status.Signal()
}
