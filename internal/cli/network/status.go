package network

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// maxRows is how many peers are shown one by one, unless the user has chosen what to show.
const maxRows = 100

func statusCommand(e *command.Env) *cobra.Command {
	var nodes []string
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how nodes reach each other",
		Long: "Status asks the ready nodes how they reach the others: directly, relayed through a server, or not at all (down). It\n" +
			"shows the latency and the traffic with each peer, when the two last agreed on a key, and why there is no direct\n" +
			"path. Peers without traffic are idle: how they would be reached is found out when it is needed. They are shown\n" +
			"with --all. In a large cluster, status shows one line for each node; --node shows the peers of one.",
		Example: "  cloudless network status\n  cloudless network status --node one --all\n  cloudless network status -o json",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			answer, err := client.Service(cl, cloudlessv1.NewConnectivityServiceClient).GetNetworkStatus(ctx, &cloudlessv1.GetNetworkStatusRequest{Nodes: nodes, All: all})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(answer)
			}
			if summarized(answer.GetNodes()) && len(nodes) == 0 && !all {
				return printNodes(e, answer.GetNodes())
			}
			return printPeers(e, answer.GetNodes(), time.Now())
		}),
	}
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "ask only this `node`; may be repeated")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "show peers without traffic, too")
	return cmd
}

// summarized reports whether there are too many peers for one table.
func summarized(nodes []*cloudlessv1.NodeNetwork) bool {
	rows := 0
	for _, n := range nodes {
		rows += len(n.GetPeers())
	}
	return rows > maxRows
}

// printPeers shows one line for each peer of each node.
func printPeers(e *command.Env, nodes []*cloudlessv1.NodeNetwork, now time.Time) error {
	t := terminal.NewTable(e.Stdout, "NODE", "PEER", "STATE", "ADDRESS", "LATENCY", "SENT", "RECEIVED", "HANDSHAKE", "WHY NOT DIRECT")
	idle := 0
	for _, n := range nodes {
		if n.GetError() != "" {
			t.Row(n.GetNode(), "", "unknown", "", "", "", "", "", n.GetError())
		}
		listed := 0
		for _, p := range n.GetPeers() {
			if p.GetState() == "idle" {
				listed++
			}
			handshake := command.Age(p.GetLastHandshake(), now)
			if handshake != "" {
				handshake += " ago"
			}
			t.Row(n.GetNode(), p.GetPeer(), p.GetState(), p.GetAddress(), p.GetLatency(),
				traffic(p.GetSentBytes(), p.GetSentBytesPerSecond()), traffic(p.GetReceivedBytes(), p.GetReceivedBytesPerSecond()),
				handshake, p.GetWhyNotDirect())
		}
		idle += int(n.GetIdle()) - listed
	}
	if t.Empty() && idle == 0 {
		e.Note("no node has a peer")
		return nil
	}
	if !t.Empty() {
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if idle > 0 {
		e.Note("%d paths without traffic are not shown; show them with --all", idle)
	}
	return nil
}

// traffic is a total, and the rate if there is any.
func traffic(total, perSecond int64) string {
	if perSecond == 0 {
		return terminal.Size(total)
	}
	return fmt.Sprintf("%s (%s/s)", terminal.Size(total), terminal.Size(perSecond))
}

// printNodes shows one line for each node.
func printNodes(e *command.Env, nodes []*cloudlessv1.NodeNetwork) error {
	t := terminal.NewTable(e.Stdout, "NODE", "DIRECT", "RELAYED", "DOWN", "IDLE", "SENT", "RECEIVED", "RELAY", "PROBLEM")
	for _, n := range nodes {
		if n.GetError() != "" {
			t.Row(n.GetNode(), "", "", "", "", "", "", "", n.GetError())
			continue
		}
		var sent, received int64
		problem := ""
		for _, p := range n.GetPeers() {
			sent += p.GetSentBytesPerSecond()
			received += p.GetReceivedBytesPerSecond()
			if p.GetState() == "down" && problem == "" {
				problem = fmt.Sprintf("%s: %s", p.GetPeer(), p.GetWhyNotDirect())
			}
		}
		t.Row(n.GetNode(), fmt.Sprint(n.GetDirect()), fmt.Sprint(n.GetRelayed()), fmt.Sprint(n.GetDown()), fmt.Sprint(n.GetIdle()),
			traffic(n.GetSentBytes(), sent), traffic(n.GetReceivedBytes(), received), home(n), problem)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	e.Note("show the peers of one node with: cloudless network status --node NAME")
	return nil
}

// home is the relay of a node, with its latency.
func home(n *cloudlessv1.NodeNetwork) string {
	for _, r := range n.GetRelays() {
		switch {
		case r.GetHome() && r.GetConnected():
			return fmt.Sprintf("%s (%s)", r.GetServer(), r.GetLatency())
		case r.GetHome():
			return r.GetServer() + " (not connected)"
		}
	}
	return ""
}
