package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine is a network namespace with a data folder of its own.
type machine struct {
	name, address string
	role          string // server or node
	d             *demo
}

func (m *machine) data() string { return filepath.Join(m.d.dir, m.name) }

func (m *machine) apiAddr() string { return m.address + ":7700" }

// lock describes the process that holds the data folder.
func (m *machine) pid() (int, error) {
	data, err := os.ReadFile(filepath.Join(m.data(), "lock"))
	if err != nil {
		return 0, err
	}
	var holder struct{ PID int }
	return holder.PID, json.Unmarshal(data, &holder)
}

// kill sends SIGKILL to the machine's process.
func (m *machine) kill() (int, error) {
	pid, err := m.pid()
	if err != nil {
		return 0, err
	}
	return pid, syscall.Kill(pid, syscall.SIGKILL)
}

// powerOff simulates a power failure: it disconnects the machine and kills all its
// processes at once.
func (m *machine) powerOff(ctx context.Context) error {
	if err := m.d.lan.cable(ctx, m.name, "down"); err != nil {
		return err
	}
	if _, err := m.kill(); err != nil {
		return err
	}
	var cloud struct{ ID string }
	data, err := os.ReadFile(filepath.Join(m.data(), "cloud.json"))
	if err == nil {
		err = json.Unmarshal(data, &cloud)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		groups, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if strings.Contains(string(line), m.data()+"/") || strings.Contains(string(groups), "/cloudless-"+cloud.ID) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return nil
}

// start restarts a machine that has joined before.
func (m *machine) start(ctx context.Context) error {
	if err := m.d.lan.cable(ctx, m.name, "up"); err != nil {
		return err
	}
	if m.role == "server" {
		return m.d.shown(ctx, m.name, "server", "--detach", "--api-addr", m.apiAddr())
	}
	return m.d.shown(ctx, m.name, "agent", "--detach")
}

// purge deletes everything of the machine except its namespace.
func (m *machine) purge(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(m.data(), "cloud.json")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := m.d.cloudlessOn(ctx, m.name, "down", "--purge")
	return err
}

// cloudlessOn runs cloudless on a machine and returns its output.
func (d *demo) cloudlessOn(ctx context.Context, where string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + d.lan.path(where), d.cloudless}, args...)...)
	cmd.Env = append(os.Environ(),
		"HOME="+d.dir, "CLOUDLESS_CONFIG="+filepath.Join(d.dir, "config.yaml"), "CLOUDLESS_DATA_DIR="+filepath.Join(d.dir, where))
	// Ctrl-C must reach only the demo, which then ends its children.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cloudless %s on %s: %w: %s", args[0], where, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// shown runs cloudless on a machine and prints the command and its output.
func (d *demo) shown(ctx context.Context, where string, args ...string) error {
	d.guide.command(where, args)
	out, err := d.cloudlessOn(ctx, where, args...)
	d.guide.output(out)
	return err
}
