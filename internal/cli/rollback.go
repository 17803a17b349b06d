package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/wait"
)

func (c *cli) workloadRollbackCommand() *cobra.Command {
	var w wait.Flags
	cmd := &cobra.Command{
		Use:        "rollback NAME [REVISION]",
		Aliases:    []string{"undo"},
		SuggestFor: []string{"revert", "back"},
		Short:      "Go back to an earlier revision",
		Long: "Rollback makes a new revision that equals an earlier one, and replaces the replicas by it as any other change\n" +
			"does. REVISION is a number, or a digest as cloudless workload history shows it. Without it, the newest revision\n" +
			"that differs from the current one is taken.\n\n" +
			"The workload runs the very image that the revision ran, even if its tag has moved. An image that was deleted\n" +
			"comes back with it, as long as it can be had back. The number of replicas, the priority and minAvailable stay.\n" +
			"Change your files too: the next apply goes by them.",
		Example: "  cloudless workload rollback web\n  cloudless workload rollback web 3\n  cloudless workload rollback web sha256:0123456789ab",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return command.ExactArgs("NAME")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &cloudlessv1.RollbackWorkloadRequest{Namespace: c.Namespace, Name: args[0]}
			if len(args) == 2 {
				request.Revision = args[1]
			}
			return c.changeWorkload(w, rolledBack, func(ctx context.Context, cl *client.Client) (*cloudlessv1.Workload, error) {
				return cl.Workloads().RollbackWorkload(ctx, request)
			})(cmd, args)
		},
	}
	w.Register(cmd, "its replicas run")
	return cmd
}

func rolledBack(w *cloudlessv1.Workload) string {
	return fmt.Sprintf("rolled back: it is at revision %d", w.GetStatus().GetRevision())
}
