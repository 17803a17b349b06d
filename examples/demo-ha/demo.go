package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// demo is the cluster of the demonstration.
type demo struct {
	guide               *guide
	dir, cloudless, app string
	lan                 *lan
	machines            []*machine
	traffic             *traffic
}

// show runs the whole demonstration.
func (d *demo) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.plugIn, d.found, d.addNodes, d.runApp, d.loseLeader, d.loseNode, d.bringBack,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if d.traffic != nil {
			d.guide.say("→ %s", d.traffic)
		}
	}
	return d.guide.begin(ctx, "Done", "One leader and one node were lost, and the app stayed available.\nNothing is left behind on your machine.")
}

func (d *demo) plugIn(ctx context.Context) (err error) {
	err = d.guide.begin(ctx, "Six machines", "Three servers (s1, s2, s3) and three nodes (n1, n2, n3) on one network, "+
		hubIP+netBits+".\nEach is a network namespace of this machine. You use a seventh one, the desk.")
	if err != nil {
		return err
	}
	if d.lan, err = newLAN(ctx); err != nil {
		return err
	}
	for i := range 3 {
		d.machines = append(d.machines, &machine{d: d, role: "server", name: fmt.Sprintf("s%d", i+1), address: fmt.Sprintf("10.77.0.%d", i+1)})
	}
	for i := range 3 {
		d.machines = append(d.machines, &machine{d: d, role: "node", name: fmt.Sprintf("n%d", i+1), address: fmt.Sprintf("10.77.0.%d", i+11)})
	}
	for _, m := range d.machines {
		if err := d.lan.plug(ctx, m.name, m.address); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) of(role string) []*machine {
	return slices.DeleteFunc(slices.Clone(d.machines), func(m *machine) bool { return m.role != role })
}

func (d *demo) found(ctx context.Context) error {
	err := d.guide.begin(ctx, "Three servers", "The first one creates the cluster. The others join with a token that identifies the cluster.\n"+
		"They find the first one by themselves, because it is on the same network.")
	if err != nil {
		return err
	}
	servers := d.of("server")
	if err := d.shown(ctx, servers[0].name, "server", "--detach", "--api-addr", servers[0].apiAddr(), "--name", servers[0].name); err != nil {
		return err
	}
	if err := d.token(ctx, "server", len(servers)-1); err != nil {
		return err
	}
	for _, m := range servers[1:] {
		err := d.shown(ctx, m.name, "join", "--discover", "--role", "server", "--no-node", "--token-file", d.tokenFile("server"), "--detach",
			"--api-addr", m.apiAddr(), "--name", m.name)
		if err != nil {
			return err
		}
	}
	if err := d.healthyServers(ctx, len(servers)); err != nil {
		return err
	}
	return d.shown(ctx, hub, "cluster", "status")
}

func (d *demo) tokenFile(role string) string { return filepath.Join(d.dir, role+".token") }

// token creates a token and writes it to a file.
func (d *demo) token(ctx context.Context, role string, uses int) error {
	args := []string{"token", "create", "--role", role, "--uses", fmt.Sprint(uses), "--ttl", "1h"}
	d.guide.command(hub, append(slices.Clone(args), ">", d.tokenFile(role)))
	out, err := d.cloudlessOn(ctx, hub, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		return err
	}
	return os.WriteFile(d.tokenFile(role), []byte(made.Secret), 0o600)
}

func (d *demo) addNodes(ctx context.Context) error {
	err := d.guide.begin(ctx, "Three nodes", "They run your workloads. One token can admit several machines.")
	if err != nil {
		return err
	}
	nodes := d.of("node")
	if err := d.token(ctx, "node", len(nodes)); err != nil {
		return err
	}
	for _, m := range nodes {
		if err := d.shown(ctx, m.name, "join", "--discover", "--token-file", d.tokenFile("node"), "--detach", "--name", m.name); err != nil {
			return err
		}
	}
	return d.shown(ctx, hub, "node", "ls")
}

func (d *demo) runApp(ctx context.Context) error {
	err := d.guide.begin(ctx, "An app", "Two replicas of the example app, on two of the nodes. From now on a client sends it\n"+
		"twenty requests a second, each over a new connection. A request that fails on one\n"+
		"node is retried on the next, so it is lost only if no node answers.")
	if err != nil {
		return err
	}
	if err := d.shown(ctx, hub, "run", d.app, "--name", "web", "--replicas", "2", "--publish", "8080:8080"); err != nil {
		return err
	}
	if err := d.shown(ctx, hub, "ps"); err != nil {
		return err
	}
	var urls []string
	for _, m := range d.of("node") {
		urls = append(urls, "http://"+m.address+":8080/")
	}
	d.traffic = startTraffic(d.lan, urls)
	return d.traffic.answers(ctx, 20)
}

func (d *demo) loseLeader(ctx context.Context) error {
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	err = d.guide.begin(ctx, "The leader dies", fmt.Sprintf("Server %s is the leader. kill -9 ends its process, and a write follows at once:\n"+
		"the command waits for the new leader, and no acknowledged write is lost.", leader.name))
	if err != nil {
		return err
	}
	pid, err := leader.kill()
	if err != nil {
		return err
	}
	killed := time.Now()
	d.guide.say("%s# kill -9 %d", leader.name, pid)
	if err := d.shown(ctx, hub, "workload", "scale", "web", "2"); err != nil {
		return err
	}
	d.guide.say("→ acknowledged %d ms after the kill", time.Since(killed).Milliseconds())
	now, err := d.leader(ctx)
	if err != nil {
		return err
	}
	if now == leader {
		return fmt.Errorf("server %s was killed and still leads", now.name)
	}
	d.guide.say("→ server %s leads now", now.name)
	if err := d.traffic.answers(ctx, 20); err != nil {
		return err
	}
	return d.shown(ctx, hub, "cluster", "status")
}

func (d *demo) loseNode(ctx context.Context) error {
	busy, err := d.busyNodes(ctx)
	if err != nil {
		return err
	}
	lost := d.machine(busy[0])
	err = d.guide.begin(ctx, "A node loses its power", fmt.Sprintf("Node %s runs a replica of the app. All its processes end at once, and it is unreachable.\n"+
		"Its replica is replaced on the remaining node.", lost.name))
	if err != nil {
		return err
	}
	if err := lost.powerOff(ctx); err != nil {
		return err
	}
	off := time.Now()
	d.guide.say("%s# power off", lost.name)
	err = d.untilBusy(ctx, "the replica was not replaced", func(now []string) bool {
		return len(now) == 2 && !slices.Contains(now, lost.name)
	})
	if err != nil {
		return err
	}
	d.guide.say("→ two replicas run again, %d ms after the loss", time.Since(off).Milliseconds())
	if err := d.traffic.answers(ctx, 20); err != nil {
		return err
	}
	return errors.Join(d.shown(ctx, hub, "node", "ls"), d.shown(ctx, hub, "ps"))
}

func (d *demo) bringBack(ctx context.Context) error {
	err := d.guide.begin(ctx, "They come back", "The server and the node are started again with their old data. Nothing needs repair,\n"+
		"and moved replicas stay where they are.")
	if err != nil {
		return err
	}
	for _, m := range d.machines {
		if pid, err := m.pid(); err != nil || alive(pid) {
			continue
		}
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	if err := d.healthyServers(ctx, 3); err != nil {
		return err
	}
	if err := d.readyNodes(ctx, 3); err != nil {
		return err
	}
	if err := d.traffic.answers(ctx, 20); err != nil {
		return err
	}
	return d.shown(ctx, hub, "cluster", "status")
}

// clear removes everything that exists so far.
func (d *demo) clear() error {
	var failures []error
	if d.traffic != nil {
		d.traffic.stop()
	}
	for _, m := range slices.Backward(d.machines) {
		failures = append(failures, m.purge(context.Background()))
	}
	if d.lan != nil {
		failures = append(failures, d.lan.close())
	}
	return errors.Join(failures...)
}

func (d *demo) machine(name string) *machine {
	for _, m := range d.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

const (
	patience = 2 * time.Minute
	lookTime = 100 * time.Millisecond
)

// until waits for a condition. otherwise is the error after too long a wait.
func until(ctx context.Context, otherwise string, met func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New(otherwise))
	defer cancel()
	for !met() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookTime):
		}
	}
	return nil
}

// look decodes the JSON output of a command and reports whether that worked.
func (d *demo) look(ctx context.Context, into any, args ...string) bool {
	out, err := d.cloudlessOn(ctx, hub, append(args, "-o", "json")...)
	return err == nil && json.Unmarshal([]byte(out), into) == nil
}

type clusterView struct {
	Status struct {
		Servers []struct {
			Name                   string
			Leader, Voter, Healthy bool
		}
	}
}

func (d *demo) leader(ctx context.Context) (leader *machine, err error) {
	err = until(ctx, "no server leads", func() bool {
		var c clusterView
		if d.look(ctx, &c, "cluster", "status") {
			for _, s := range c.Status.Servers {
				if s.Leader {
					leader = d.machine(s.Name)
				}
			}
		}
		return leader != nil
	})
	return leader, err
}

func (d *demo) healthyServers(ctx context.Context, want int) error {
	return until(ctx, "the servers do not all vote", func() bool {
		var c clusterView
		healthy := 0
		if d.look(ctx, &c, "cluster", "status") {
			for _, s := range c.Status.Servers {
				if s.Voter && s.Healthy {
					healthy++
				}
			}
		}
		return healthy == want
	})
}

func (d *demo) readyNodes(ctx context.Context, want int) error {
	return until(ctx, "the nodes are not all ready", func() bool {
		var nodes struct {
			Items []struct{ Status struct{ State string } }
		}
		ready := 0
		if d.look(ctx, &nodes, "node", "ls") {
			for _, n := range nodes.Items {
				if n.Status.State == "ready" {
					ready++
				}
			}
		}
		return ready == want
	})
}

// untilBusy waits until the nodes that run the app meet a condition.
func (d *demo) untilBusy(ctx context.Context, otherwise string, met func([]string) bool) error {
	return until(ctx, otherwise, func() bool {
		now, err := d.busyNodes(ctx)
		return err == nil && met(now)
	})
}

// busyNodes returns the nodes that run a replica of the app.
func (d *demo) busyNodes(ctx context.Context) ([]string, error) {
	out, err := d.cloudlessOn(ctx, hub, "ps", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Spec   struct{ Node string }
			Status struct{ Phase string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the output of ps: %w: %s", err, strings.TrimSpace(out))
	}
	var names []string
	for _, r := range list.Items {
		if r.Status.Phase == "running" {
			names = append(names, r.Spec.Node)
		}
	}
	return names, nil
}
