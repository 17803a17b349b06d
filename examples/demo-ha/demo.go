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

// demo is the cluster that is shown.
type demo struct {
	guide               *guide
	dir, cloudless, app string
	lan                 *lan
	machines            []*machine
	traffic             *traffic
}

// show is the whole demonstration.
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
	return d.guide.begin(ctx, "That was it", "One leader and one node were lost, and the app was there all the time.\nNothing of this stays on your machine.")
}

func (d *demo) plugIn(ctx context.Context) (err error) {
	err = d.guide.begin(ctx, "Six machines", "Three servers (s1, s2, s3) and three nodes (n1, n2, n3) on one network, "+
		hubIP+netBits+".\nEach is a network namespace of this machine; you sit at a seventh, the desk.")
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
	err := d.guide.begin(ctx, "Three servers", "The first one makes the cluster. The others join with a token, which says whom to trust;\n"+
		"they find the first one by themselves, because it is on the same network.")
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

// token makes one and keeps it in a file, as a person does with >.
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
	err := d.guide.begin(ctx, "Three nodes", "They run what you give to the cluster. A token may be good for several machines.")
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
	err := d.guide.begin(ctx, "An app", "Two copies of the example app, on two of the nodes. From now on somebody asks it\n"+
		"twenty times a second, always over a new connection. A request that one node\n"+
		"does not answer goes to the next one, so it is lost only if no node answers.")
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
	err = d.guide.begin(ctx, "The leader dies", fmt.Sprintf("Server %s leads. Its process is killed with signal 9; then something is written at once:\n"+
		"the command waits for the new leader, and what is acknowledged is kept.", leader.name))
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
	err = d.guide.begin(ctx, "A node loses its power", fmt.Sprintf("Node %s runs a copy of the app. All its processes end at once and it answers nobody;\n"+
		"its copy is replaced on the node that is left.", lost.name))
	if err != nil {
		return err
	}
	if err := lost.powerOff(ctx); err != nil {
		return err
	}
	off := time.Now()
	d.guide.say("%s# power off", lost.name)
	err = d.untilBusy(ctx, "the copy was not replaced", func(now []string) bool {
		return len(now) == 2 && !slices.Contains(now, lost.name)
	})
	if err != nil {
		return err
	}
	d.guide.say("→ two copies run again, %d ms after the loss", time.Since(off).Milliseconds())
	if err := d.traffic.answers(ctx, 20); err != nil {
		return err
	}
	return errors.Join(d.shown(ctx, hub, "node", "ls"), d.shown(ctx, hub, "ps"))
}

func (d *demo) bringBack(ctx context.Context) error {
	err := d.guide.begin(ctx, "They come back", "The server and the node are started again, with the data that they had. Nothing has to be\n"+
		"repaired, and what runs elsewhere now stays there.")
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

// clear takes everything away, whatever there is.
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

// until waits until something is so.
func until(ctx context.Context, otherwise string, so func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New(otherwise))
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookTime):
		}
	}
	return nil
}

// look reads what a command says in JSON.
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

// untilBusy waits until the app's copies run where they should.
func (d *demo) untilBusy(ctx context.Context, otherwise string, wished func([]string) bool) error {
	return until(ctx, otherwise, func() bool {
		now, err := d.busyNodes(ctx)
		return err == nil && wished(now)
	})
}

// busyNodes are those that run a copy of the app.
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
		return nil, fmt.Errorf("what ps says: %w: %s", err, strings.TrimSpace(out))
	}
	var names []string
	for _, r := range list.Items {
		if r.Status.Phase == "running" {
			names = append(names, r.Spec.Node)
		}
	}
	return names, nil
}
