// Package tourtest runs demonstrations in tests as people do, and checks that they leave nothing behind. It does not
// know what a demonstration shows.
package tourtest

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

// Demo is a demonstration that has been built.
type Demo struct {
	name, program string
	args          []string
}

// Build builds the demonstration in this folder, and its app from another one.
func Build(t *testing.T, name, app string) *Demo {
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
	for name, source := range map[string]string{"app": app, name: "."} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return &Demo{name: name, program: filepath.Join(dir, name), args: []string{"-cloudless", cloudless, "-app", filepath.Join(dir, "app")}}
}

// nothingLeft fails if the demonstration left something behind on this machine.
func (d *Demo) nothingLeft(t *testing.T, pid int, dir string) {
	t.Helper()
	spaces, err := filepath.Glob(fmt.Sprintf("/run/netns/%s-%d-*", d.name, pid))
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

// Whole runs the whole demonstration. Its output must match each of the expressions.
func (d *Demo) Whole(t *testing.T, wanted ...string) {
	t.Helper()
	temp := t.TempDir()
	cmd := exec.Command(d.program, append(d.args, "-yes")...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("%s", out.String())
	if err != nil {
		t.Error(err)
	}
	d.nothingLeft(t, cmd.Process.Pid, temp)
	for _, want := range wanted {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output does not match %q", want)
		}
	}
}

// Interrupted presses Enter at each of the prompts, and ctrl-C when the output shows something.
func (d *Demo) Interrupted(t *testing.T, prompts []string, at string) {
	t.Helper()
	temp := t.TempDir()
	cmd := exec.Command(d.program, d.args...)
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
	for _, prompt := range prompts {
		await(prompt)
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	await(at)
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
	d.nothingLeft(t, cmd.Process.Pid, temp)
}
