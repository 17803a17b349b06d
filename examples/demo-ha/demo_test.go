package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// program builds the demo and its app.
func program(t *testing.T) (demo string, args []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	cloudless, err := filepath.Abs("../../bin/cloudless")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cloudless); err != nil {
		t.Fatal("bin/cloudless is missing: run make build first")
	}
	dir := t.TempDir()
	for name, source := range map[string]string{"hello": "../hello", "demo-ha": "."} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return filepath.Join(dir, "demo-ha"), []string{"-cloudless", cloudless, "-app", filepath.Join(dir, "hello")}
}

// nothingLeft fails if the demo left something behind on this machine.
func nothingLeft(t *testing.T, pid int, dir string) {
	t.Helper()
	spaces, err := filepath.Glob(fmt.Sprintf("/run/netns/demo-ha-%d-*", pid))
	if err != nil || len(spaces) > 0 {
		t.Errorf("namespaces are left: %v, %v", spaces, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("files are left: %v, %v", files, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), dir) {
			t.Errorf("a process is left: %q", line)
		}
	}
}

func TestWholeDemonstration(t *testing.T) {
	name, args := program(t)
	temp := t.TempDir()
	cmd := exec.Command(name, append(args, "-yes")...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("%s", out.String())
	if err != nil {
		t.Error(err)
	}
	nothingLeft(t, cmd.Process.Pid, temp)
	for _, want := range []string{
		`Servers: 3, 3 vote`, `kill -9 \d+`, `acknowledged \d+ ms after the kill`, `server s\d leads now`,
		`two replicas run again`, `Nodes: 3 ready`, `the app has answered \d{2,} requests, `,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output does not match %q", want)
		}
	}
}

// Ctrl-C at any prompt leaves nothing behind.
func TestInterruptedDemonstration(t *testing.T) {
	name, args := program(t)
	temp := t.TempDir()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	await := func(want string) {
		t.Helper()
		for buffer := make([]byte, 4096); !strings.Contains(said.String(), want); {
			n, err := out.Read(buffer)
			said.Write(buffer[:n])
			if err != nil {
				t.Fatalf("%q was never printed: %v\n%s", want, err, said.String())
			}
		}
	}
	for _, question := range []string{"1. Six machines", "2. Three servers"} {
		await(question)
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	await("s1$ cloudless server")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	await("Cleaning up.")
	_ = cmd.Process.Signal(os.Interrupt) // a second ctrl-C does no harm
	_, _ = said.ReadFrom(out)
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGINT) {
		t.Errorf("the exit code is %d (%v)\n%s", code, err, said.String())
	}
	nothingLeft(t, cmd.Process.Pid, temp)
}
