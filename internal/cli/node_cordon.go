package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) nodeCordonCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "cordon NAME",
		Short: "Place nothing new on a machine",
		Long: "Cordon keeps the scheduler from placing anything new on a node. What runs there goes on, and is restarted\n" +
			"there when it ends. A node that is cordoned stays so, also when its agent or its machine restarts, until\n" +
			"cloudless node uncordon.",
		Example: "  cloudless node cordon box1\n  cloudless node cordon box1 --reason \"new disk on Friday\"",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			node, err := cl.Nodes().CordonNode(ctx, &cloudlessv1.CordonNodeRequest{Name: args[0], Reason: reason})
			return c.nodeChanged(node, err, "cordoned")
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`why`, for those who wonder")
	return cmd
}

func (c *cli) nodeUncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "uncordon NAME",
		Short:   "Use a machine again that was cordoned",
		Long:    "Uncordon lets the scheduler place replicas on a node again. What runs elsewhere stays there.",
		Example: "  cloudless node uncordon box1",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			node, err := cl.Nodes().UncordonNode(ctx, &cloudlessv1.UncordonNodeRequest{Name: args[0]})
			return c.nodeChanged(node, err, "uncordoned")
		}),
	}
}

// nodeChanged says what became of a node that was asked to change.
func (c *cli) nodeChanged(node *cloudlessv1.Node, err error, what string) error {
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(node)
	}
	return c.Printf("node %s %s; it is %s\n", node.GetMetadata().GetName(), what, node.GetStatus().GetState())
}

// reliability is a score out of a hundred, empty while there is none.
func reliability(r *cloudlessv1.Reliability) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%d/100", r.GetScore())
}

// reliabilityTable shows what a score is made of.
func (c *cli) reliabilityTable(r *cloudlessv1.Reliability) error {
	if r == nil {
		return nil
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "RELIABILITY", "WEIGHT", "SCORE", "BECAUSE")
	for _, one := range []struct {
		name, weight string
		part         *cloudlessv1.ReliabilityPart
	}{
		{"uptime", "30 %", r.GetUptime()},
		{"response time", "20 %", r.GetResponseTime()},
		{"success rate", "20 %", r.GetSuccessRate()},
		{"capacity", "15 %", r.GetCapacity()},
		{"stability", "15 %", r.GetStability()},
	} {
		t.Row(one.name, one.weight, fmt.Sprint(one.part.GetScore()), one.part.GetBasis())
	}
	return t.Flush()
}
