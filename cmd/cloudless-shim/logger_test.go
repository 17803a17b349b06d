package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/logfile"
)

// The program as the logging binary of a stock shim.
func TestLogger(t *testing.T) {
	c := &container{t: t, logs: t.TempDir()}
	stdoutR, stdout, err := os.Pipe()
	c.must(err)
	stderrR, stderr, err := os.Pipe()
	c.must(err)
	ready, readyW, err := os.Pipe()
	c.must(err)
	cmd := exec.Command(program, logfile.Command, logfile.URI(c.logs, logfile.Limits{}))
	cmd.Env = []string{"CONTAINER_ID=x", "CONTAINER_NAMESPACE=y"}
	cmd.ExtraFiles = []*os.File{stdoutR, stderrR, readyW}
	c.must(cmd.Start())
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	if b, err := io.ReadAll(ready); err != nil || len(b) != 1 {
		t.Errorf("ready: got %v, %v; want one byte", b, err)
	}

	fmt.Fprintln(stdout, "one")
	c.waitForLine("stdout: one")
	c.must(cmd.Process.Signal(unix.SIGTERM))
	fmt.Fprintln(stderr, "two")
	c.waitForLine("stderr: two")
	stderr.Close()
	fmt.Fprint(stdout, "three")
	stdout.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	want := []string{"stdout: one", "stderr: two", "stdout: three"}
	if got := c.lines(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoggerRefusesOtherURIs(t *testing.T) {
	out, err := exec.Command(program, logfile.Command, "file:///tmp/x").CombinedOutput()
	if err == nil {
		t.Error("a file URI was accepted")
	}
	if want := "cloudless-shim: not a cloudless-log URI\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
