package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

const (
	nodeLosses = 10
	lostApp    = "lost"
)

// field is a server on this machine and nodes on machines of their own: each in a network
// namespace that only its processes hold, so that it disappears with the last of them as a
// machine's network does with its power.
type field struct {
	*cloud
	api     *client.Client
	bridge  *netlink.Bridge
	subnet  netip.Prefix
	nodes   map[string]*box
	plugged int
}

// box is the machine of one node.
type box struct {
	*cloud
	name    string
	address netip.Prefix
	process *exec.Cmd
	network uint64 // inode of its namespace
	joined  bool
}

func (l *lab) newField(ctx context.Context, count int) (_ *field, err error) {
	f := &field{
		cloud: &cloud{lab: l, data: filepath.Join(l.dir, "field"), config: filepath.Join(l.dir, "field.yaml")},
		nodes: map[string]*box{}, subnet: netip.MustParsePrefix("198.18.77.1/24"),
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "clfield" + strconv.Itoa(os.Getpid()%1000)
	attrs.HardwareAddr = net.HardwareAddr{0x02, 0xc1, 0, 0, 0, 1} // otherwise it changes with every attached machine
	f.bridge = &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(f.bridge); err != nil {
		f.bridge = nil
		return nil, fmt.Errorf("make a bridge: %w", err)
	}
	if err := bringUp(nil, attrs.Name, f.subnet); err != nil {
		return nil, err
	}
	f.address = f.subnet.Addr().String() + ":7700"
	if err := f.run(ctx, "server", "--detach", "--data-dir", f.data, "--api-addr", f.address); err != nil {
		return nil, err
	}
	if f.api, err = f.dial(ctx); err != nil {
		return nil, err
	}
	own := f.subnet.Addr()
	for i := range count {
		own = own.Next()
		name := fmt.Sprintf("n%d", i+1)
		f.nodes[name] = &box{
			cloud: &cloud{lab: l, data: filepath.Join(l.dir, "field-"+name)}, name: name, address: netip.PrefixFrom(own, f.subnet.Bits()),
		}
		if err := f.start(ctx, f.nodes[name]); err != nil {
			return nil, err
		}
	}
	return f, f.allReady(ctx)
}

// start starts a node's machine: a process in its own namespace, which becomes the agent
// once the namespace is on the bridge.
func (f *field) start(ctx context.Context, b *box) error {
	args := []string{"agent", "--data-dir", b.data}
	if !b.joined {
		token, err := f.api.Tokens().CreateToken(ctx, &v1.CreateTokenRequest{Role: "node"})
		if err != nil {
			return err
		}
		path := filepath.Join(f.lab.dir, "token-"+b.name)
		if err := os.WriteFile(path, []byte(token.GetSecret()), 0o600); err != nil {
			return err
		}
		args = []string{"join", f.address, "--token-file", path, "--data-dir", b.data, "--name", b.name}
	}
	log, err := os.OpenFile(filepath.Join(f.lab.dir, b.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	b.process = exec.Command("sh", append([]string{"-c", `read plugged && exec "$0" "$@"`, f.lab.cloudless}, args...)...)
	b.process.Stdout, b.process.Stderr = log, log
	b.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	stdin, err := b.process.StdinPipe()
	if err != nil {
		return err
	}
	if err := b.process.Start(); err != nil {
		return err
	}
	b.joined = true
	if err := f.plug(b); err != nil {
		return err
	}
	_, err = io.WriteString(stdin, "plugged\n")
	return errors.Join(err, stdin.Close())
}

// plug puts the namespace of a node's machine on the bridge. Nothing of it stays
// open here, because that would keep the namespace.
func (f *field) plug(b *box) error {
	pid := b.process.Process.Pid
	space, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer space.Close()
	var about unix.Stat_t
	if err := unix.Fstat(int(space), &about); err != nil {
		return err
	}
	b.network = about.Ino
	f.plugged++
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = fmt.Sprintf("clf%d-%d", os.Getpid()%1000, f.plugged), f.bridge.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("plug in %s: %w", b.name, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return err
	}
	in, err := netlink.NewHandleAt(space)
	if err != nil {
		return err
	}
	defer in.Close()
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	return errors.Join(in.LinkSetUp(lo), bringUp(in, "eth0", b.address))
}

// processes are those of a node: what runs in its network, and its containers.
func (b *box) processes() []int {
	id, err := b.id()
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", entry.Name())
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		var network unix.Stat_t
		same := unix.Stat(filepath.Join(dir, "ns/net"), &network) == nil && network.Ino == b.network
		if same || bytes.Contains(groups, []byte("cloudless-"+id)) {
			found = append(found, pid)
		}
	}
	return found
}

// kill kills the agent and at once everything else of the node.
func (b *box) kill() {
	others := b.processes()
	_ = b.process.Process.Kill() // no harm if it has ended
	for _, pid := range others {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = b.process.Wait()
}

func (f *field) close() {
	for _, b := range f.nodes {
		if b.process != nil {
			b.kill()
		}
	}
	if f.api != nil {
		_ = f.api.Close()
	}
	for _, b := range f.nodes {
		if b.joined {
			b.cloud.close()
		}
	}
	if _, err := os.Stat(f.data); err == nil {
		f.cloud.close()
	}
	if f.bridge != nil {
		_ = netlink.LinkDel(f.bridge)
	}
}

// allReady waits until every node is ready, and until the server knows their machines.
func (f *field) allReady(ctx context.Context) error {
	for {
		all, err := f.api.Nodes().ListNodes(ctx, &v1.ListNodesRequest{})
		ready := 0
		for _, n := range all.GetItems() {
			if n.GetStatus().GetState() == "ready" {
				ready++
			}
		}
		pause := 50 * time.Millisecond
		if err == nil && ready == len(f.nodes) {
			pause = 1500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		if pause > time.Second {
			return nil
		}
	}
}

// host is the node on which the one replica runs.
func (f *field) host(ctx context.Context) (string, error) {
	list, err := f.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: lostApp})
	if err != nil {
		return "", err
	}
	if len(list.GetItems()) != 1 || list.GetItems()[0].GetStatus().GetPhase() != "running" {
		return "", fmt.Errorf("the workload has these replicas: %v", list.GetItems())
	}
	return list.GetItems()[0].GetSpec().GetNode(), nil
}

// lose kills the node that has the replica and waits until it runs on another.
func (f *field) lose(ctx context.Context, kill func(*box)) (took time.Duration, err error) {
	lost, err := f.host(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := f.api.Workloads().WatchReplicas(ctx, &v1.WatchReplicasRequest{Workload: lostApp})
	if err != nil {
		return 0, err
	}
	if _, err := await(watch.Recv, func(c *v1.ReplicaChange) bool { return c.GetChange() == "synced" }); err != nil {
		return 0, err
	}
	began := time.Now()
	kill(f.nodes[lost])
	_, err = await(watch.Recv, func(c *v1.ReplicaChange) bool {
		return c.GetReplica().GetSpec().GetNode() != lost && c.GetReplica().GetStatus().GetPhase() == "running"
	})
	took = time.Since(began)
	if err != nil {
		return 0, err
	}
	f.nodes[lost].kill() // whatever is left of it
	if err := f.start(ctx, f.nodes[lost]); err != nil {
		return 0, err
	}
	return took, f.settled(ctx)
}

// settled waits until the cluster is complete again.
func (f *field) settled(ctx context.Context) error {
	if err := f.allReady(ctx); err != nil {
		return err
	}
	for {
		if _, err := f.host(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// measureNodeLost repeatedly kills the node that runs a replica.
func measureNodeLost(ctx context.Context, l *lab) (result, error) {
	f, err := l.newField(ctx, 3)
	if err != nil {
		return result{}, err
	}
	defer f.close()
	image, err := f.push(ctx, f.api)
	if err != nil {
		return result{}, err
	}
	if _, err := startThis(ctx, f.api, workload("warm", image, 3)); err != nil { // brings the image to every node
		return result{}, err
	}
	if err := removeWorkload(ctx, f.api, "warm"); err != nil {
		return result{}, err
	}
	var starts, lost sample
	for i := range nodeLosses {
		name := fmt.Sprintf("start-%d", i)
		took, err := startWorkload(ctx, f.api, name, image)
		if err != nil {
			return result{}, err
		}
		starts = append(starts, took.Seconds())
		if err := removeWorkload(ctx, f.api, name); err != nil {
			return result{}, err
		}
	}
	if _, err := startWorkload(ctx, f.api, lostApp, image); err != nil {
		return result{}, err
	}
	for i := range nodeLosses {
		took, err := f.lose(ctx, (*box).kill)
		if err != nil {
			return result{}, fmt.Errorf("loss %d: %w%s", i+1, err, f.tail())
		}
		lost = append(lost, took.Seconds())
	}
	slow, err := f.lose(ctx, (*box).killAgent)
	if err != nil {
		return result{}, err
	}
	return result{
		value: lost.median(), floor: starts.median(),
		notes: []string{
			"the loss of a whole machine: all its processes are killed, and nothing answers at its address any more",
			lost.spread("kill to running elsewhere"), starts.spread("start of a replica on the same cluster"),
			fmt.Sprintf("another kind of loss, measured once and not part of the value: %.2f s where only the agent dies and its machine still answers, which is given the reconnect window of 10 s", slow.Seconds()),
		},
	}, nil
}

// killAgent kills only the agent: its replica goes on, and keeps the machine's network.
func (b *box) killAgent() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// tail is the last output of the nodes, for an error.
func (f *field) tail() string {
	var text strings.Builder
	for name := range f.nodes {
		data, _ := os.ReadFile(filepath.Join(f.lab.dir, name+".log"))
		fmt.Fprintf(&text, "\n%s: %s", name, data[max(0, len(data)-1000):])
	}
	return text.String()
}
