package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

// marker is a secret value that occurs nowhere else.
const marker = "m4rk3r-of-the-shim-test"

// withSecret makes a container that has the marker in a variable, and returns the folder in memory with the file.
func withSecret(t *testing.T, script string, edit func(*specs.Spec)) (c *container, memory string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a container, which needs root; make test runs it")
	}
	memory = t.TempDir()
	if err := unix.Mount("tmpfs", memory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(memory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(memory, "env")
	if err := os.WriteFile(path, []byte(`{"PASSWORD":"`+marker+`","LEVEL":"secret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return newContainer(t, script, func(s *specs.Spec) {
		s.Annotations = map[string]string{secretsAnnotation: path}
		s.Process.Env = append(s.Process.Env, "LEVEL=plain")
		if edit != nil {
			edit(s)
		}
	}), memory
}

// nowhere fails if a file in a folder contains the marker.
func nowhere(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(marker)) {
			t.Errorf("%s contains the secret", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSecretVariablesReachTheContainerAndNoFile(t *testing.T) {
	c, _ := withSecret(t, `[ "$PASSWORD" = `+shuffled+` ] && echo "got it, $LEVEL"; sleep 1000`, nil)
	c.run()
	c.waitForLine("stdout: got it, secret")
	nowhere(t, c.dir)
	info, err := os.Lstat(filepath.Join(c.bundle, configName))
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("the configuration was not restored: %v, %v", info, err)
	}
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.shimPID), "cmdline"))
	if err != nil || bytes.Contains(cmdline, []byte(marker)) {
		t.Errorf("arguments of the shim: %q, %v", cmdline, err)
	}
}

// shuffled is a shell expression for the marker, so that the script does not contain it.
var shuffled = `"$(printf '%s-%s' m4rk3r of-the-shim-test)"`

func TestFurtherProcessHasTheSecretVariables(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		c, memory := withSecret(t, "sleep 1000", nil)
		stop := watchDisk(t, os.TempDir(), "runc-process")
		c.run()
		process, err := json.Marshal(&specs.Process{
			Args: []string{"/bin/sh", "-c", `[ "$PASSWORD" = ` + shuffled + ` ] && exit 42`}, Env: []string{"PATH=/bin"}, Cwd: "/", Terminal: terminal,
		})
		c.must(err)
		stdout := ""
		if terminal {
			stdout = c.fifo("out").Name()
		}
		_, err = c.Exec(c.ctx, &taskapi.ExecProcessRequest{ID: c.id(), ExecID: "further", Terminal: terminal, Stdout: stdout, Spec: &anypb.Any{
			TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: process,
		}})
		c.must(err)
		_, err = c.Start(c.ctx, &taskapi.StartRequest{ID: c.id(), ExecID: "further"})
		c.must(err)
		exit, err := c.Wait(c.ctx, &taskapi.WaitRequest{ID: c.id(), ExecID: "further"})
		c.must(err)
		if exit.ExitStatus != 42 {
			t.Errorf("terminal %t: exit status %d: it does not have the variable", terminal, exit.ExitStatus)
		}
		if seen := stop(); len(seen) > 0 {
			t.Errorf("terminal %t: the description of the process was on a disk: %q", terminal, seen)
		}
		nowhere(t, c.dir)
		left, err := os.ReadDir(memory)
		c.must(err)
		if len(left) != 1 {
			t.Errorf("terminal %t: left in memory: %v", terminal, left)
		}
	}
}

// watchDisk notes files that are made in a folder, also for a moment, until stop is called.
func watchDisk(t *testing.T, dir, prefix string) (stop func() []string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	return func() (seen []string) {
		defer unix.Close(fd)
		buffer := make([]byte, 1<<16)
		for {
			n, err := unix.Read(fd, buffer)
			if err != nil || n <= 0 {
				return seen
			}
			for event := buffer[:n]; len(event) >= unix.SizeofInotifyEvent; {
				length := int(event[12]) | int(event[13])<<8
				name := strings.TrimRight(string(event[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length]), "\x00")
				if strings.HasPrefix(name, prefix) {
					seen = append(seen, name)
				}
				event = event[unix.SizeofInotifyEvent+length:]
			}
		}
	}
}

// A command that does not exist, and a runtime that fails: what they leave has no secret.
func TestFailedStartLeavesNoSecret(t *testing.T) {
	c, _ := withSecret(t, "", func(s *specs.Spec) { s.Process.Args = []string{"/no/such/program"} })
	if _, err := c.tryToCreate(); err == nil {
		t.Error("a container without a program was created")
	} else if strings.Contains(err.Error(), marker) {
		t.Error("the error has the secret")
	}
	nowhere(t, c.dir)
}

func TestContainerDoesNotStartWithoutItsSecretVariables(t *testing.T) {
	c, memory := withSecret(t, "sleep 1000", nil)
	for _, break_ := range []func() error{
		func() error { return os.WriteFile(filepath.Join(memory, "env"), []byte(`{"PASSWORD":"`+marker), 0o600) },
		func() error { return os.Remove(filepath.Join(memory, "env")) },
	} {
		c.must(break_())
		if _, err := c.tryToCreate(); err == nil || !strings.Contains(err.Error(), "secret variables") || strings.Contains(err.Error(), "m4") {
			t.Errorf("got %v", err)
		}
	}
}

// A shim that is killed while runc creates the container leaves a link into its memory, which is gone.
func TestKilledShimLeavesNoSecret(t *testing.T) {
	c, _ := withSecret(t, "sleep 1000", nil)
	reached, end := c.fifo("reached"), c.fifo("end")
	path := filepath.Join(c.bundle, configName)
	config, err := os.ReadFile(path)
	c.must(err)
	var spec specs.Spec
	c.must(json.Unmarshal(config, &spec))
	spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{ // runc has read the configuration when it calls the hook
		Path: "/bin/busybox", Args: []string{"sh", "-c", "echo >" + reached.Name() + "; read end <" + end.Name()},
	}}}
	config, err = json.Marshal(spec)
	c.must(err)
	c.must(os.WriteFile(path, config, 0o644))
	created := make(chan error, 1)
	go func() { _, err := c.tryToCreate(); created <- err }()
	_, err = reached.Read(make([]byte, 1))
	c.must(err)
	if config, err := os.ReadFile(path); err != nil || !bytes.Contains(config, []byte(marker)) {
		t.Errorf("runc does not see the variable: %v", err)
	}
	c.must(unix.Kill(c.shimPID, unix.SIGKILL))
	waitForEnd(t, c.shimPID)
	_, err = end.WriteString("\n")
	c.must(err)
	if err := <-created; err == nil {
		t.Error("the container was created")
	}
	if _, err := os.ReadFile(path); err == nil {
		t.Error("the configuration can still be read")
	}
	nowhere(t, c.dir)
	c.must(c.command("delete").Run()) // as containerd does then
	nowhere(t, c.dir)
}

func TestVariablesReplaceThoseOfTheConfiguration(t *testing.T) {
	got, err := setConfig([]byte(`{"ociVersion":"1","process":{"args":["a"],"env":["A=1","B=2","A=3"],"unknown":{"x":1}},"x":[1.50]}`),
		map[string]string{"A": `quoted "\` + "\n", "C": ""})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"ociVersion":"1","process":{"args":["a"],"env":["B=2","A=quoted \"\\\n","C="],"unknown":{"x":1}},"x":[1.50]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzSetConfig(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["A=1"]}}`), []byte(`{"A":"2"}`))
	f.Add([]byte(`{"process":null}`), []byte(`null`))
	f.Add([]byte(`null`), []byte(`{"A":1}`))
	f.Fuzz(func(t *testing.T, config, file []byte) {
		variables, err := parseVariables(file)
		if err != nil {
			return
		}
		amended, err := setConfig(config, variables)
		if err != nil {
			return
		}
		var got struct{ Process struct{ Env []string } }
		if err := json.Unmarshal(amended, &got); err != nil {
			t.Fatalf("the result cannot be read: %v", err)
		}
		for name, value := range variables {
			if !slices.Contains(got.Process.Env, name+"="+value) {
				t.Errorf("no variable %q in %q", name, got.Process.Env)
			}
		}
	})
}
