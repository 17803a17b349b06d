package network

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func usageCommand(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "usage",
		Short: "Show how many addresses are used and free",
		Long: "Usage shows the address ranges of the cluster and the subnet of each node. A node has one subnet of each range, a\n" +
			"service one address of each range, and a replica one address of each subnet of its node.",
		Example: "  cloudless network usage\n  cloudless network usage -o json",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			answer, err := client.Service(cl, cloudlessv1.NewConnectivityServiceClient).GetNetworkUsage(ctx, &cloudlessv1.GetNetworkUsageRequest{})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(answer)
			}
			return printUsage(e, answer)
		}),
	}
}

func printUsage(e *command.Env, u *cloudlessv1.NetworkUsage) error {
	t := terminal.NewTable(e.Stdout, "RANGE", "SETTING", "FOR", "USED", "FREE", "UNIT")
	for _, r := range u.GetRanges() {
		t.Row(r.GetRange(), r.GetSetting(), r.GetUse(), fmt.Sprint(r.GetUsed()), fmt.Sprint(r.GetFree()), r.GetUnit())
	}
	if err := t.Flush(); err != nil || len(u.GetNodes()) == 0 {
		return err
	}
	if err := e.Printf("\n"); err != nil {
		return err
	}
	t = terminal.NewTable(e.Stdout, "NODE", "SUBNET V4", "SUBNET V6", "REPLICAS", "FREE")
	for _, n := range u.GetNodes() {
		t.Row(n.GetNode(), n.GetSubnetV4(), n.GetSubnetV6(), fmt.Sprint(n.GetUsed()), fmt.Sprint(n.GetFree()))
	}
	return t.Flush()
}
