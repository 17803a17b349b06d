package network

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func checkCommand(e *command.Env) *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "check FROM TO",
		Short: "Follow the path between two replicas and name the part that fails",
		Long: "Check follows the path from a replica to a service or to another replica: whether both run and their nodes work,\n" +
			"whether the namespace may reach the service, what its name leads to inside the replica, how one node reaches the\n" +
			"other, whether the program listens, and which packets were dropped. Last, it connects from inside the replica.\n" +
			"For a UDP port it sends an empty datagram instead, and fails only if something refuses it or drops it.\n" +
			"FROM is a replica or a workload. TO is a service, a workload or a replica; NAME.NAMESPACE is a service of another\n" +
			"namespace. The exit code is 1 if a part fails.",
		Example: "  cloudless network check web api\n  cloudless network check web-8d996b73 api.shop --port 8080\n  cloudless network check web api -o json",
		Args:    command.ExactArgs("FROM", "TO"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			answer, err := client.Service(cl, cloudlessv1.NewConnectivityServiceClient).CheckNetwork(ctx, &cloudlessv1.CheckNetworkRequest{
				Namespace: e.Namespace, From: args[0], To: args[1], Port: uint32(port),
			})
			if err != nil {
				return err
			}
			if e.ForPeople() {
				err = printCheck(e, answer)
			} else {
				err = e.PrintObject(answer)
			}
			if err == nil && !answer.GetOk() {
				return command.Exit(command.ExitError, nil)
			}
			return err
		}),
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "`port` to try (default: the first TCP port, else the first UDP port)")
	return cmd
}

func printCheck(e *command.Env, check *cloudlessv1.NetworkCheck) error {
	t := terminal.NewTable(e.Stdout, "PART", "STATE", "WHAT")
	t.ShowFullText()
	for _, h := range check.GetHops() {
		t.Row(h.GetHop(), h.GetState(), strings.TrimSpace(h.GetMessage()))
		if h.GetFix() != "" {
			t.Continue("fix with: " + h.GetFix())
		}
	}
	return t.Flush()
}
