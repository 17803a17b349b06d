package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/examples/internal/tour"
)

const (
	internet = "internet" // the network between the routers, and the machine of the person
	private  = "192.168.1"
	// How long the client waits for an answer: TCP retries while the path changes.
	attemptTime = 10 * time.Second
)

// demo is the cluster of the demonstration.
type demo struct{ *tour.Tour }

func (d *demo) plugIn(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "Two networks behind NATs", "The machines left and right are at two homes. Both have the address "+private+".2, because both\n"+
		"routers use the same private network. From outside, nobody can connect to them.\n"+
		"A server has a public address, 203.0.113.1. You are on the internet, too.")
	if err != nil {
		return err
	}
	if err := d.Network.AddSwitch(ctx, internet, "203.0.113.100/24"); err != nil {
		return err
	}
	if _, err := d.AddMachine(ctx, "server", "server", internet, "203.0.113.1/24"); err != nil {
		return err
	}
	for i, name := range []string{"left", "right"} {
		public := fmt.Sprintf("203.0.113.%d/24", 11+i)
		if err := d.Network.AddRouter(ctx, name+"-nat", internet, public, private+".1/24"); err != nil {
			return err
		}
		if _, err := d.AddHidden(ctx, name, name+"-nat", private+".2/24", private+".1"); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) join(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "One cluster", "Both machines join with a token. They connect to the server; it never connects to them.")
	if err != nil {
		return err
	}
	server := d.Machine("server")
	if err := d.Show(ctx, server.Name, "server", "--detach", "--api-addr", server.APIAddr()); err != nil {
		return err
	}
	nodes := d.Machines("node")
	token, err := d.Token(ctx, internet, "node", len(nodes))
	if err != nil {
		return err
	}
	for _, m := range nodes {
		if err := d.Show(ctx, m.Name, "join", server.APIAddr(), "--token-file", token, "--detach", "--name", m.Name, "--label", "home="+m.Name); err != nil {
			return err
		}
	}
	return d.Show(ctx, internet, "node", "ls")
}

func (d *demo) runApp(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "An app of three services", "front runs on left and calls http://api. api has a replica on each machine and calls http://db.\n"+
		"db runs on right. From now on a client at home on the left sends twenty requests a second to\n"+
		"the published port of front. Each answer names the replicas that it came through.")
	if err != nil {
		return err
	}
	file, err := d.WriteFile("app.yaml", appFile)
	if err != nil {
		return err
	}
	if _, err := d.Run(ctx, internet, "image", "push", "shop", d.App); err != nil {
		return err
	}
	if err := d.Show(ctx, internet, "apply", "-f", file); err != nil {
		return err
	}
	if err := d.Show(ctx, internet, "ps"); err != nil {
		return err
	}
	d.StartTraffic("left-nat", attemptTime, "http://"+private+".2:8080/")
	return d.bothTakeTurns(ctx)
}

// bothTakeTurns waits until both replicas of api answer, and shows their answers.
func (d *demo) bothTakeTurns(ctx context.Context) error {
	for {
		answers, err := d.Traffic.Sample(ctx, 20)
		if err != nil {
			return err
		}
		if len(answers) == 2 {
			d.showAnswers(answers)
			return nil
		}
	}
}

func (d *demo) showAnswers(answers map[string]int) {
	d.Guide.Say("→ the last answers:")
	for _, text := range slices.Sorted(maps.Keys(answers)) {
		d.Guide.Say("  %2d × %s", answers[text], text)
	}
}

func (d *demo) names(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "Names", "Each workload with ports is a service: a name and an address that stay the same on every machine.")
	if err != nil {
		return err
	}
	return errors.Join(
		d.Show(ctx, internet, "service", "ls"),
		d.Show(ctx, internet, "endpoint", "ls", "api"),
		d.Show(ctx, internet, "service", "resolve", "api"))
}

func (d *demo) path(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "The path between the homes", "The first packets went through the server, which sees only encrypted ones. Meanwhile the\n"+
		"machines have opened a path through both routers, and talk directly.")
	if err != nil {
		return err
	}
	if err := d.untilPath(ctx, "direct"); err != nil {
		return err
	}
	return d.Show(ctx, internet, "network", "status")
}

// untilPath waits until both nodes reach each other in a way: direct or relayed.
func (d *demo) untilPath(ctx context.Context, want string) error {
	return tour.Until(ctx, "the nodes do not reach each other "+want, func() bool {
		var status struct {
			Nodes []struct{ Peers []struct{ State string } }
		}
		if !d.Look(ctx, internet, &status, "network", "status") {
			return false
		}
		found := 0
		for _, n := range status.Nodes {
			for _, p := range n.Peers {
				if p.State == want {
					found++
				}
			}
		}
		return found == len(d.Machines("node"))
	})
}

func (d *demo) killAgent(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "An agent dies", "kill -9 ends the agent of left. A process of its own carries the packets and answers the\n"+
		"lookups of names, so the app does not notice.")
	if err != nil {
		return err
	}
	left := d.Machine("left")
	if err := left.Kill(); err != nil {
		return err
	}
	answers, err := d.Traffic.Sample(ctx, 40)
	if err != nil {
		return err
	}
	d.showAnswers(answers)
	if err := left.Start(ctx); err != nil {
		return err
	}
	if err := d.ReadyNodes(ctx, internet, len(d.Machines("node"))); err != nil {
		return err
	}
	return d.noneFailed()
}

// noneFailed returns an error if requests have failed.
func (d *demo) noneFailed() error {
	if n, err := d.Traffic.Failed(); n > 0 {
		return fmt.Errorf("%d requests failed: %w", n, err)
	}
	return nil
}

func (d *demo) blockUDP(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "UDP is blocked", "The router of left now drops all UDP, as some hotels and offices do. Traffic moves to the\n"+
		"server's TCP port. Requests in between wait, and none is lost.")
	if err != nil {
		return err
	}
	const block = "add table inet block; add chain inet block through { type filter hook forward priority 0; }; add rule inet block through meta l4proto udp drop"
	d.Guide.Say("left-nat# nft '%s'", block)
	if err := d.Network.In(ctx, "left-nat", "nft", block); err != nil {
		return err
	}
	if err := d.untilPath(ctx, "relayed"); err != nil {
		return err
	}
	if err := d.Traffic.Answers(ctx, 20); err != nil {
		return err
	}
	if err := d.Show(ctx, internet, "network", "status"); err != nil {
		return err
	}
	const unblock = "delete table inet block"
	d.Guide.Say("left-nat# nft '%s'", unblock)
	if err := d.Network.In(ctx, "left-nat", "nft", unblock); err != nil {
		return err
	}
	if err := d.untilPath(ctx, "direct"); err != nil {
		return err
	}
	d.Guide.Say("→ the path is direct again")
	return d.noneFailed()
}

func (d *demo) loseEndpoint(ctx context.Context) error {
	err := d.Guide.Begin(ctx, "An endpoint goes", "One replica of api is enough. The other one leaves the service before it ends, so that no\nrequest is sent to it any more.")
	if err != nil {
		return err
	}
	if err := d.Show(ctx, internet, "workload", "scale", "api", "1"); err != nil {
		return err
	}
	var left struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	err = tour.Until(ctx, "api still has two endpoints", func() bool {
		return d.Look(ctx, internet, &left, "endpoint", "ls", "api") && len(left.Items) == 1
	})
	if err != nil {
		return err
	}
	if err := d.Show(ctx, internet, "endpoint", "ls", "api"); err != nil {
		return err
	}
	answers, err := d.Traffic.Sample(ctx, 40)
	if err != nil {
		return err
	}
	d.showAnswers(answers)
	for text := range answers {
		if !strings.Contains(text, left.Items[0].Metadata.Name) {
			return fmt.Errorf("an endpoint that is gone has answered: %s", text)
		}
	}
	return d.noneFailed()
}

func (d *demo) end(ctx context.Context) error {
	return d.Guide.Begin(ctx, "Done", "An agent, the direct path and an endpoint were lost, and no request was.\nNothing is left behind on your machine.")
}
