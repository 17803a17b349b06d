package tour

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

// Machine is a network namespace with a data folder of its own.
type Machine struct {
	Name, Address string
	Role          string // server or node
	t             *Tour
	plugged       string // the switch
}

// AddMachine adds a machine to the network of a switch. The address has a prefix length.
func (t *Tour) AddMachine(ctx context.Context, role, name, into, address string) (*Machine, error) {
	plain, _, _ := strings.Cut(address, "/")
	m := &Machine{Name: name, Address: plain, Role: role, t: t, plugged: into}
	t.machines = append(t.machines, m)
	return m, t.Network.Plug(ctx, name, into, address)
}

// AddHidden adds a node to the private network of a router.
func (t *Tour) AddHidden(ctx context.Context, name, router, address, gateway string) (*Machine, error) {
	plain, _, _ := strings.Cut(address, "/")
	m := &Machine{Name: name, Address: plain, Role: "node", t: t, plugged: router}
	t.machines = append(t.machines, m)
	return m, t.Network.PlugBehind(ctx, name, router, address, gateway)
}

// Machine returns the machine with a name, or nil.
func (t *Tour) Machine(name string) *Machine {
	for _, m := range t.machines {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Machines returns the machines with a role.
func (t *Tour) Machines(role string) (found []*Machine) {
	for _, m := range t.machines {
		if m.Role == role {
			found = append(found, m)
		}
	}
	return found
}

func (m *Machine) data() string { return filepath.Join(m.t.dir, m.Name) }

// APIAddr is where the server of the machine listens.
func (m *Machine) APIAddr() string { return m.Address + ":7700" }

// pid is that of the process that holds the data folder.
func (m *Machine) pid() (int, error) {
	data, err := os.ReadFile(filepath.Join(m.data(), "lock"))
	if err != nil {
		return 0, err
	}
	var holder struct{ PID int }
	return holder.PID, json.Unmarshal(data, &holder)
}

// Runs reports whether the machine's process runs.
func (m *Machine) Runs() bool {
	pid, err := m.pid()
	if err != nil {
		return false
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

// Kill sends SIGKILL to the machine's process and shows that.
func (m *Machine) Kill() error {
	pid, err := m.pid()
	if err != nil {
		return err
	}
	m.t.Guide.Say("%s# kill -9 %d", m.Name, pid)
	return syscall.Kill(pid, syscall.SIGKILL)
}

// PowerOff simulates a power failure: it disconnects the machine and kills all its processes at once.
func (m *Machine) PowerOff(ctx context.Context) error {
	m.t.Guide.Say("%s# power off", m.Name)
	if err := m.t.Network.Cable(ctx, m.Name, "down", m.plugged); err != nil {
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
	pid, err := m.pid()
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
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

// Start restarts a machine that has joined before.
func (m *Machine) Start(ctx context.Context) error {
	if err := m.t.Network.Cable(ctx, m.Name, "up", m.plugged); err != nil {
		return err
	}
	if m.Role == "server" {
		return m.t.Show(ctx, m.Name, "server", "--detach", "--api-addr", m.APIAddr())
	}
	return m.t.Show(ctx, m.Name, "agent", "--detach")
}

// purge deletes everything of the machine except its namespace.
func (m *Machine) purge(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(m.data(), "cloud.json")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := m.t.Run(ctx, m.Name, "down", "--purge")
	return err
}

// Run runs cloudless on a machine and returns its output.
func (t *Tour) Run(ctx context.Context, where string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + t.Network.path(where), t.cloudless}, args...)...)
	cmd.Env = append(os.Environ(),
		"HOME="+t.dir, "CLOUDLESS_CONFIG="+filepath.Join(t.dir, "config.yaml"), "CLOUDLESS_DATA_DIR="+filepath.Join(t.dir, where))
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

// Show runs cloudless on a machine and prints the command and its output.
func (t *Tour) Show(ctx context.Context, where string, args ...string) error {
	t.Guide.Command(where, args)
	out, err := t.Run(ctx, where, args...)
	t.Guide.Output(out)
	return err
}
