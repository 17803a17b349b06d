package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
)

// machines are network namespaces on one switch, with the addresses 198.18.0.1, 198.18.0.2 and so on.
type machines struct {
	lab    *lab
	spaces []string
	hub    string
}

func (l *lab) newMachines(n int) (_ *machines, err error) {
	m := &machines{lab: l, hub: fmt.Sprintf("clbench%d-hub", os.Getpid())}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	steps := [][]string{
		{"netns", "add", m.hub}, {"-n", m.hub, "link", "add", "switch", "type", "bridge"}, {"-n", m.hub, "link", "set", "switch", "up"},
	}
	for i := range n {
		space, port := fmt.Sprintf("clbench%d-%d", os.Getpid(), i+1), fmt.Sprintf("port%d", i+1)
		m.spaces = append(m.spaces, space)
		steps = append(steps, [][]string{
			{"netns", "add", space},
			{"-n", space, "link", "set", "lo", "up"},
			{"-n", m.hub, "link", "add", port, "master", "switch", "type", "veth", "peer", "name", "eth0", "netns", space},
			{"-n", m.hub, "link", "set", port, "up"},
			{"-n", space, "address", "add", m.address(i) + "/24", "dev", "eth0"},
			{"-n", space, "link", "set", "eth0", "up"},
		}...)
	}
	for _, step := range steps {
		if err := ip(step...); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (m *machines) close() {
	for _, space := range append(m.spaces, m.hub) {
		_ = ip("netns", "del", space) // it may not be there yet
	}
}

func (m *machines) address(i int) string { return fmt.Sprintf("198.18.0.%d", i+1) }

// in is a command on a machine. It is enough to change the network: /sys is not needed.
func (m *machines) in(ctx context.Context, i int, words ...string) *exec.Cmd {
	return inNetwork(ctx, "/run/netns/"+m.spaces[i], words...)
}

func inNetwork(ctx context.Context, path string, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + path}, words...)...)
}

// pair is a cloud of two machines with a replica on each.
type pair struct {
	*machines
	data    [2]string
	config  string
	replica [2]string // addresses
	network [2]string // paths of their network namespaces
}

// newPair starts one. Its close leaves nothing behind.
func (l *lab) newPair(ctx context.Context, name string) (_ *pair, err error) {
	m, err := l.newMachines(2)
	if err != nil {
		return nil, err
	}
	p := &pair{machines: m, config: filepath.Join(l.dir, name+".yaml")}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for i := range p.data {
		p.data[i] = filepath.Join(l.dir, fmt.Sprintf("%s-%d", name, i+1))
	}
	token := filepath.Join(l.dir, name+".token")
	if _, err := p.cloudless(ctx, 0, "up", "--detach", "--data-dir", p.data[0], "--api-addr", p.address(0)+":7700", "--name", "one", "--label", "at=one"); err != nil {
		return nil, err
	}
	secret, err := p.cloudless(ctx, 0, "token", "create", "--role", "node")
	if err == nil {
		err = os.WriteFile(token, []byte(secret), 0o600)
	}
	if err == nil {
		_, err = p.cloudless(ctx, 1, "join", p.address(0)+":7700", "--detach", "--token-file", token, "--data-dir", p.data[1], "--name", "two", "--label", "at=two")
	}
	for i, at := range []string{"one", "two"} {
		if err == nil {
			err = p.startReplica(ctx, i, at)
		}
	}
	return p, err
}

// cloudless runs a command on a machine and returns its output.
func (p *pair) cloudless(ctx context.Context, i int, args ...string) (string, error) {
	cmd := p.in(ctx, i, append([]string{p.lab.cloudless}, args...)...)
	cmd.Env = append(os.Environ(), client.ConfigEnv+"="+p.config)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("cloudless %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return string(out), err
}

func (p *pair) startReplica(ctx context.Context, i int, at string) error {
	if _, err := p.cloudless(ctx, 0, "run", p.lab.sleeper, "--name", "at-"+at, "--only-on", "at="+at); err != nil {
		return err
	}
	out, err := p.cloudless(ctx, 0, "ps", "at-"+at, "-o", "json")
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Metadata struct{ UID string }
			Status   struct{ Addresses []string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Items) != 1 || len(list.Items[0].Status.Addresses) == 0 {
		return fmt.Errorf("replica of at-%s: %w: %s", at, err, out)
	}
	one := list.Items[0]
	p.replica[i] = one.Status.Addresses[0]
	found, err := filepath.Glob("/run/cloudless/*/netns/" + one.Metadata.UID)
	if err != nil || len(found) != 1 {
		return fmt.Errorf("the network namespace of at-%s: found %v, %w", at, found, err)
	}
	p.network[i] = found[0]
	return nil
}

func (p *pair) close() {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	for i := range p.data {
		if _, err := p.cloudless(ctx, i, "down", "--purge", "--data-dir", p.data[i]); err != nil {
			p.lab.say("%v", err)
		}
	}
	p.machines.close()
}

// path returns how the first machine reaches the second, such as "direct" or "relayed".
func (p *pair) path(ctx context.Context) (state string, err error) {
	out, err := p.cloudless(ctx, 0, "network", "status", "--node", "one", "-o", "json")
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`"state": *"(\w+)"`).FindStringSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("the status of the network names no peer: %s", out)
	}
	return found[1], nil
}

// untilPath waits until the machines reach each other in a way.
func (p *pair) untilPath(ctx context.Context, want string) error {
	for {
		// Idle peers have no path.
		_ = inNetwork(ctx, p.network[0], "busybox", "ping", "-c", "1", "-W", "1", p.replica[1]).Run()
		state, err := p.path(ctx)
		if err != nil || state == want {
			return err
		}
		if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
