package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) nodeDrainCommand() *cobra.Command {
	var request cloudlessv1.DrainNodeRequest
	var grace, timeout time.Duration
	var detach bool
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Move all replicas and data of a node to other nodes",
		Long: "Drain cordons a node and moves its replicas elsewhere. Each one leaves when its replacement serves: it gets no new\n" +
			"connections, then SIGTERM, and SIGKILL after the grace period. Jobs may finish until the timeout, and daemons leave\n" +
			"last. A drain is refused before anything moves, unless it is forced, if it would have to break a workload's\n" +
			"minAvailable, or if a service would have no serving replica because no other node takes one. Other nodes copy what\n" +
			"the object store keeps on the node.\n\n" +
			"The exit code is 0 if the node is empty, and 3 if replicas or data are left after the timeout. The node keeps draining\n" +
			"then, as it does after Ctrl-C; run the command again to go on waiting. cloudless node uncordon ends the drain and brings\n" +
			"the node back.",
		Example: "  cloudless node drain box1\n  cloudless node drain box1 --grace 30s --timeout 10m --reason \"new disk\"\n  cloudless node drain box1 --force",
		Args:    command.ExactArgs("NAME"),

		ValidArgsFunction: c.completeBy(objectNames("node"), false),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
			request.Name = args[0]
			if cmd.Flags().Changed("grace") {
				request.Grace = spec.FormatDuration(grace)
			}
			request.Timeout = spec.FormatDuration(timeout)
			node, err := cl.Nodes().DrainNode(ctx, &request)
			if err != nil || detach {
				return c.nodeChanged(node, err, "drained in the background")
			}
			return wait.ForDrain(ctx, c.Env, cl, node, timeout)
		}),
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "time to end after SIGTERM; as the workloads say if not given")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait, and how long jobs may go on; 0 for no limit")
	cmd.Flags().BoolVar(&request.Force, "force", false, "stop replicas even if no other node takes them")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "`text` to show as the reason")
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait until the node is empty")
	return cmd
}
