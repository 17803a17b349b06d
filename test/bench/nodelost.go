package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	nodeLosses = 20
	lostApp    = "lost"
	// agentCrashes is how often an agent is killed, and agentAway how long it is away at most.
	agentCrashes = 20
	agentAway    = 4 * time.Second
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
	link    string // the end of its cable at the bridge
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
	b.process = exec.Command("sh", append([]string{"-c", `read plugged && exec "$0" "$@"`, f.lab.cloudless}, args...)...)
	b.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	stdin, err := b.process.StdinPipe()
	if err != nil {
		return err
	}
	if err := b.run(); err != nil {
		return err
	}
	b.joined = true
	if err := f.plug(b); err != nil {
		return err
	}
	_, err = io.WriteString(stdin, "plugged\n")
	return errors.Join(err, stdin.Close())
}

// run starts the process of a node, with its output in a file.
func (b *box) run() error {
	log, err := os.OpenFile(filepath.Join(b.lab.dir, b.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	b.process.Stdout, b.process.Stderr = log, log
	return b.process.Start()
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
	b.link = fmt.Sprintf("clf%d-%d", os.Getpid()%1000, f.plugged)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = b.link, f.bridge.Attrs().Index
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
	return processes(func(dir string) bool {
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		return b.hasNetwork(dir) || bytes.Contains(groups, []byte("cloudless-"+id))
	})
}

// hasNetwork reports whether a process is in the machine's own network.
func (b *box) hasNetwork(dir string) bool {
	var network unix.Stat_t
	return unix.Stat(filepath.Join(dir, "ns/net"), &network) == nil && network.Ino == b.network
}

// processes are those that are wanted, by their folders in /proc.
func processes(wanted func(dir string) bool) (found []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && wanted(filepath.Join("/proc", entry.Name())) {
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
	if len(list.GetItems()) != 1 || !spec.Serves(list.GetItems()[0]) {
		return "", fmt.Errorf("the workload has these replicas: %v", list.GetItems())
	}
	return list.GetItems()[0].GetSpec().GetNode(), nil
}

// lose kills the node that has the replica and waits until another serves.
func (f *field) lose(ctx context.Context, kill func(*box) error) (took time.Duration, err error) {
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
	if err := kill(f.nodes[lost]); err != nil {
		return 0, err
	}
	_, err = await(watch.Recv, func(c *v1.ReplicaChange) bool {
		return c.GetReplica().GetSpec().GetNode() != lost && spec.Serves(c.GetReplica())
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

// loseFresh loses the node of a new workload. A workload that loses node after node soon after its start is a suspect, and
// its replacement waits longer each time.
func (f *field) loseFresh(ctx context.Context, image string, kill func(*box) error) (took time.Duration, err error) {
	if _, err := f.serve(ctx, workload(lostApp, image, 1)); err != nil {
		return 0, err
	}
	if took, err = f.lose(ctx, kill); err != nil {
		return 0, err
	}
	return took, removeWorkload(ctx, f.api, lostApp)
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

// What is left of a machine differs, and so does how soon others know of its loss.
var lossMeasurements = []measurement{
	{
		name: "node_lost", unit: "s", measure: measureLoss(networkLoss), target: under(1),
		what:  "of three nodes in networks of their own, from kill -9 of every process of the one that runs a replica, with which its network goes, to another replica serving, median of 20, minus the replica's own start",
		floor: "none",
	},
	{
		name: "node_lost_power", unit: "s", measure: measureLoss(powerLoss), target: under(3.5),
		what:  "the same if the machine vanishes without a FIN, as by its power",
		floor: "none",
	},
	{
		name: "node_lost_process", unit: "s", measure: measureLoss(processLoss), target: under(2),
		what:  "the same if kill -9 ends the agent and the containers, but the kernel lives on",
		floor: "none",
	},
	{
		name: "agent_crash_moved", unit: "count", measure: measureAgentCrash, target: exactly(0),
		what:  "replicas that moved or were restarted by kill -9 of the agent alone, which is back within 5 s, 20 times",
		floor: "none",
	},
	massMeasurement,
}

// kindOfLoss is a way to lose a node.
type kindOfLoss struct {
	about string
	kill  func(*box) error
}

var (
	networkLoss = kindOfLoss{"all processes of the machine are killed, which end their connections, and its network goes with them", func(b *box) error {
		b.kill()
		return nil
	}}
	powerLoss = kindOfLoss{"the machine's cable is cut before its processes are killed, so that it says nothing more", func(b *box) error {
		if err := ip("link", "set", b.link, "down"); err != nil {
			return err
		}
		b.kill()
		return nil
	}}
	processLoss = kindOfLoss{"the agent, the containers and their shims are killed; the kernel and the network process live on", (*box).killPrograms}
)

// measureLoss repeatedly loses the node that runs a replica.
func measureLoss(kind kindOfLoss) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (result, error) {
		f, image, err := l.newLosses(ctx)
		if err != nil {
			return result{}, err
		}
		defer f.close()
		starts, err := f.starts(ctx, image)
		if err != nil {
			return result{}, err
		}
		var lost sample
		for i := range nodeLosses {
			took, err := f.loseFresh(ctx, image, kind.kill)
			if err != nil {
				return result{}, fmt.Errorf("loss %d: %w%s", i+1, err, f.tail())
			}
			lost = append(lost, took.Seconds())
		}
		return result{
			value: lost.median() - starts.median(),
			notes: []string{
				kind.about, lost.spread("loss to another replica serving"),
				starts.spread("start of a replica on the same cluster, from the API call to serving, of which the median is subtracted"),
			},
		}, nil
	}
}

// newLosses starts three nodes that all have the image.
func (l *lab) newLosses(ctx context.Context) (_ *field, image string, err error) {
	f, err := l.newField(ctx, 3)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if image, err = f.push(ctx, f.api); err != nil {
		return nil, "", err
	}
	if _, err := startThis(ctx, f.api, workload("warm", image, 3)); err != nil { // brings the image to every node
		return nil, "", err
	}
	return f, image, removeWorkload(ctx, f.api, "warm")
}

// starts measures how long a replica takes to serve.
func (f *field) starts(ctx context.Context, image string) (all sample, err error) {
	for i := range nodeLosses {
		name := fmt.Sprintf("start-%d", i)
		took, err := f.serve(ctx, workload(name, image, 1))
		if err != nil {
			return nil, err
		}
		all = append(all, took.Seconds())
		if err := removeWorkload(ctx, f.api, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// serve creates a workload and waits until all of its replicas serve.
func (f *field) serve(ctx context.Context, w *v1.Workload) (time.Duration, error) {
	return startUntil(ctx, f.api, w, spec.ServesNow)
}

// killAgent kills only the agent: its replica goes on, and keeps the machine's network.
func (b *box) killAgent() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// killPrograms kills the agent and the containers with their shims, but not the network process.
func (b *box) killPrograms() error {
	var victims []int
	for _, pid := range b.processes() {
		name, err := procName(pid)
		if err == nil && !strings.HasPrefix(name, networkProcess) {
			victims = append(victims, pid)
		}
	}
	for _, pid := range victims {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = b.process.Wait()
	return nil
}

// networkProcess is how the name of a node's network process begins.
const networkProcess = "cloudless-net"

// restartAgent starts the agent again on a machine whose other processes go on.
func (b *box) restartAgent() error {
	left := processes(b.hasNetwork)
	if len(left) == 0 {
		return fmt.Errorf("nothing of %s goes on without its agent", b.name)
	}
	b.process = exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", left[0]), b.lab.cloudless, "agent", "--data-dir", b.data)
	b.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return b.run()
}

// measureAgentCrash kills agents, brings them back after up to agentAway, and counts the replicas that are not where
// they were.
func measureAgentCrash(ctx context.Context, l *lab) (result, error) {
	f, image, err := l.newLosses(ctx)
	if err != nil {
		return result{}, err
	}
	defer f.close()
	const replicas = 6
	if _, err := f.serve(ctx, workload(lostApp, image, replicas)); err != nil {
		return result{}, err
	}
	before, err := f.attempts(ctx)
	if err != nil {
		return result{}, err
	}
	names := slices.Sorted(maps.Keys(f.nodes))
	for i := range agentCrashes {
		b := f.nodes[names[i%len(names)]]
		b.killAgent()
		if err := sleep.For(ctx, agentAway*time.Duration(i)/(agentCrashes-1)); err != nil {
			return result{}, err
		}
		if err := b.restartAgent(); err != nil {
			return result{}, err
		}
		if err := f.allReady(ctx); err != nil {
			return result{}, err
		}
	}
	after, err := f.attempts(ctx)
	if err != nil {
		return result{}, err
	}
	moved := 0
	for uid, attempt := range after {
		if was, ok := before[uid]; !ok || was != attempt {
			moved++
		}
	}
	return result{value: float64(moved), notes: []string{
		fmt.Sprintf("%d replicas on three nodes; a replica that was restarted counts, too; agents were away for 0 to %.2g s", replicas, agentAway.Seconds()),
	}}, nil
}

// attempts are the replicas of the workload and what shows that one was restarted.
func (f *field) attempts(ctx context.Context) (map[string]string, error) {
	list, err := f.api.Workloads().ListReplicas(ctx, &v1.ListReplicasRequest{Workload: lostApp})
	all := map[string]string{}
	for _, r := range list.GetItems() {
		all[r.GetMetadata().GetUid()] = fmt.Sprint(r.GetStatus().GetPid(), r.GetStatus().GetRestarts())
	}
	return all, err
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
