package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/examples/internal/tour"
)

const (
	desk   = "desk" // the machine of the person, and the switch of all others
	subnet = "10.77.0"
	// How long the client waits for one node.
	attemptTime = 300 * time.Millisecond
)

// demo is the cluster of the demonstration.
type demo struct{ *tour.Tour }

func (d *demo) plugIn(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "Six machines", "Three servers (s1, s2, s3) and three nodes (n1, n2, n3) on one network, "+
		subnet+".0/24.\nEach is a network namespace of this machine. You use a seventh one, the desk.")
	if err != nil {
		return err
	}
	if err := d.Network.AddSwitch(ctx, desk, subnet+".100/24"); err != nil {
		return err
	}
	for i := range 6 {
		role, name, address := "server", fmt.Sprintf("s%d", i+1), i+1
		if i >= 3 {
			role, name, address = "node", fmt.Sprintf("n%d", i-2), i+8
		}
		if _, err := d.AddMachine(ctx, role, name, desk, fmt.Sprintf("%s.%d/24", subnet, address)); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) found(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "Three servers", "The first one creates the cluster. The others join with a token that identifies the cluster.\n"+
		"They find the first one by themselves, because it is on the same network.")
	if err != nil {
		return err
	}
	servers := d.Machines("server")
	if err := d.Show(ctx, servers[0].Name, "server", "--detach", "--api-addr", servers[0].APIAddr(), "--name", servers[0].Name); err != nil {
		return err
	}
	token, err := d.Token(ctx, desk, "server", len(servers)-1)
	if err != nil {
		return err
	}
	for _, m := range servers[1:] {
		err := d.Show(ctx, m.Name, "join", "--discover", "--role", "server", "--no-node", "--token-file", token, "--detach",
			"--api-addr", m.APIAddr(), "--name", m.Name)
		if err != nil {
			return err
		}
	}
	if err := d.healthyServers(ctx, len(servers)); err != nil {
		return err
	}
	return d.Show(ctx, desk, "cluster", "status")
}

func (d *demo) addNodes(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "Three nodes", "They run your workloads. One token can admit several machines.")
	if err != nil {
		return err
	}
	nodes := d.Machines("node")
	token, err := d.Token(ctx, desk, "node", len(nodes))
	if err != nil {
		return err
	}
	for _, m := range nodes {
		if err := d.Show(ctx, m.Name, "join", "--discover", "--token-file", token, "--detach", "--name", m.Name); err != nil {
			return err
		}
	}
	return d.Show(ctx, desk, "node", "ls")
}

func (d *demo) runApp(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "An app", "Two replicas of the example app, on two of the nodes. From now on a client sends it\n"+
		"twenty requests a second, each over a new connection. A request that fails on one\n"+
		"node is retried on the next, so it is lost only if no node answers.")
	if err != nil {
		return err
	}
	if err := d.Show(ctx, desk, "run", d.App, "--name", "web", "--replicas", "2", "--publish", "8080:8080"); err != nil {
		return err
	}
	if err := d.Show(ctx, desk, "ps"); err != nil {
		return err
	}
	var urls []string
	for _, m := range d.Machines("node") {
		urls = append(urls, "http://"+m.Address+":8080/")
	}
	d.StartTraffic(desk, attemptTime, urls...)
	return d.Traffic.Answers(ctx, 20)
}

func (d *demo) loseLeader(ctx context.Context) error {
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	err = d.Guide.Begin(ctx, "The leader dies", fmt.Sprintf("Server %s is the leader. kill -9 ends its process, and a write follows at once:\n"+
		"the command waits for the new leader, and no acknowledged write is lost.", leader.Name))
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := leader.Kill(); err != nil {
		return err
	}
	if err := d.Show(ctx, desk, "workload", "scale", "web", "2"); err != nil {
		return err
	}
	d.Guide.Say("→ acknowledged %d ms after the kill", time.Since(killed).Milliseconds())
	now, err := d.leader(ctx)
	if err != nil {
		return err
	}
	if now == leader {
		return fmt.Errorf("server %s was killed and still leads", now.Name)
	}
	d.Guide.Say("→ server %s leads now", now.Name)
	if err := d.Traffic.Answers(ctx, 20); err != nil {
		return err
	}
	return d.Show(ctx, desk, "cluster", "status")
}

func (d *demo) loseNode(ctx context.Context) error {
	busy, err := d.busyNodes(ctx)
	if err != nil {
		return err
	}
	lost := d.Machine(busy[0])
	err = d.Guide.Begin(ctx, "A node loses its power", fmt.Sprintf("Node %s runs a replica of the app. All its processes end at once, and it is unreachable.\n"+
		"Its replica is replaced on the remaining node.", lost.Name))
	if err != nil {
		return err
	}
	off := time.Now()
	if err := lost.PowerOff(ctx); err != nil {
		return err
	}
	err = d.untilBusy(ctx, "the replica was not replaced", func(now []string) bool {
		return len(now) == 2 && !slices.Contains(now, lost.Name)
	})
	if err != nil {
		return err
	}
	d.Guide.Say("→ two replicas run again, %d ms after the loss", time.Since(off).Milliseconds())
	if err := d.Traffic.Answers(ctx, 20); err != nil {
		return err
	}
	return errors.Join(d.Show(ctx, desk, "node", "ls"), d.Show(ctx, desk, "ps"))
}

func (d *demo) bringBack(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "They come back", "The server and the node are started again with their old data. Nothing needs repair,\n"+
		"and moved replicas stay where they are.")
	if err != nil {
		return err
	}
	for _, m := range append(d.Machines("server"), d.Machines("node")...) {
		if m.Runs() {
			continue
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
	}
	if err := d.healthyServers(ctx, 3); err != nil {
		return err
	}
	if err := d.ReadyNodes(ctx, desk, 3); err != nil {
		return err
	}
	if err := d.Traffic.Answers(ctx, 20); err != nil {
		return err
	}
	return d.Show(ctx, desk, "cluster", "status")
}

func (d *demo) end(ctx context.Context) error {
	return d.Guide.Begin(ctx, "Done", "One leader and one node were lost, and the app stayed available.\nNothing is left behind on your machine.")
}

type clusterView struct {
	Status struct {
		Servers []struct {
			Name                   string
			Leader, Voter, Healthy bool
		}
	}
}

func (d *demo) leader(ctx context.Context) (leader *tour.Machine, err error) {
	err = tour.Until(ctx, "no server leads", func() bool {
		var c clusterView
		if d.Look(ctx, desk, &c, "cluster", "status") {
			for _, s := range c.Status.Servers {
				if s.Leader {
					leader = d.Machine(s.Name)
				}
			}
		}
		return leader != nil
	})
	return leader, err
}

func (d *demo) healthyServers(ctx context.Context, want int) error {
	return tour.Until(ctx, "the servers do not all vote", func() bool {
		var c clusterView
		healthy := 0
		if d.Look(ctx, desk, &c, "cluster", "status") {
			for _, s := range c.Status.Servers {
				if s.Voter && s.Healthy {
					healthy++
				}
			}
		}
		return healthy == want
	})
}

// untilBusy waits until the nodes that run the app meet a condition.
func (d *demo) untilBusy(ctx context.Context, otherwise string, met func([]string) bool) error {
	return tour.Until(ctx, otherwise, func() bool {
		now, err := d.busyNodes(ctx)
		return err == nil && met(now)
	})
}

// busyNodes returns the nodes that run a replica of the app.
func (d *demo) busyNodes(ctx context.Context) ([]string, error) {
	out, err := d.Run(ctx, desk, "ps", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Spec   struct{ Node string }
			Status struct{ Phase, Unready string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the output of ps: %w: %s", err, strings.TrimSpace(out))
	}
	var names []string
	for _, r := range list.Items {
		if r.Status.Phase == "running" && r.Status.Unready == "" {
			names = append(names, r.Spec.Node)
		}
	}
	return names, nil
}
