package netlab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/test/sandbox"
)

// machine is a network namespace with a process of the real binary.
type machine struct {
	lab  *lab
	name string
	// private is the machine's own address, and public the one that others see on the internet.
	private, public netip.Addr
	// replica is that of the daemon on this machine.
	replica replica
	// before is what the machine's network looked like without Cloudless.
	before map[string]string
}

type replica struct {
	name   string
	pid    int
	v4, v6 string
}

func (m *machine) data() string { return filepath.Join(m.lab.dir, m.name) }

// command is a command on the machine.
func (m *machine) command(words ...string) *exec.Cmd {
	return m.lab.command(append([]string{"nsenter", "--net=" + path(m.name)}, words...)...)
}

// inReplica is a command of this computer in the network of the machine's replica, with the replica's name servers.
func (m *machine) inReplica(words ...string) *exec.Cmd {
	return m.lab.command(append([]string{
		"nsenter", "--net", "--target", strconv.Itoa(m.replica.pid), "unshare", "--mount",
		"sh", "-c", `mount --no-mtab --bind "$0" /etc/resolv.conf && exec "$@"`, m.resolvConf(),
	}, words...)...)
}

// resolvConf is a copy of the replica's file of that name.
func (m *machine) resolvConf() string { return filepath.Join(m.lab.dir, m.name+".resolv.conf") }

func (m *machine) copyResolvConf() error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", m.replica.pid))
	if err != nil {
		return err
	}
	return os.WriteFile(m.resolvConf(), data, 0o644)
}

// cloudless runs the command line on the machine.
func (m *machine) cloudless(words ...string) (string, error) {
	cmd := m.command(append([]string{sandbox.Program("cloudless")}, words...)...)
	cmd.Env = append(os.Environ(), "HOME="+m.lab.dir, "CLOUDLESS_CONFIG="+filepath.Join(m.lab.dir, "config.yaml"), "CLOUDLESS_DATA_DIR="+m.data())
	return output(cmd)
}

// output runs a command and returns what it prints. Its error says what the command said.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	return string(out), nil
}

// join makes the machine a node of the cluster.
func (m *machine) join(token string) error {
	if _, err := m.cloudless("join", apiName+":7700", "--detach", "--token-file", token, "--name", m.name); err != nil {
		return err
	}
	return m.noteGroup()
}

// noteGroup lets the sandbox remove the machine's cgroup if the test fails.
func (m *machine) noteGroup() error {
	var cloud struct{ ID string }
	if err := readJSON(filepath.Join(m.data(), "cloud.json"), &cloud); err != nil {
		return err
	}
	return sandbox.NoteGroup(cloud.ID)
}

func readJSON(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// killAgent kills the machine's process with SIGKILL. Its network process and its replicas go on.
func (m *machine) killAgent() error {
	var holder struct{ PID int }
	if err := readJSON(filepath.Join(m.data(), "lock"), &holder); err != nil {
		return err
	}
	return syscall.Kill(holder.PID, syscall.SIGKILL)
}

// command is one that ends with the lab.
func (l *lab) command(words ...string) *exec.Cmd {
	cmd := exec.CommandContext(l.ctx, words[0], words[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// wait repeats a check until it finds nothing wrong any more. It gives up only with the lab itself.
func (l *lab) wait(check func() error) error {
	var last error
	for {
		err := check()
		if err == nil {
			return nil
		}
		if l.ctx.Err() == nil {
			last = err
		}
		select {
		case <-l.ctx.Done():
			return last
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// until waits for something that must come about.
func (l *lab) until(what string, check func() error) {
	l.t.Helper()
	if err := l.wait(check); err != nil {
		l.t.Fatalf("never came about: %s: %v", what, err)
	}
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}
