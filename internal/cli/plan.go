package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/spec"
)

// exitChanges is the exit code of a plan that would change something.
const exitChanges = 2

// maxRequest is the longest request in bytes that a server reads, with some room for what is around it.
const maxRequest = 8<<20 - 64<<10

// wishes are the flags that say what is to be applied.
type wishes struct {
	files []string
	prune string
}

func (w *wishes) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&w.files, "file", "f", nil, "`file` or folder with workloads, - for standard input; may be repeated")
	cmd.Flags().StringVar(&w.prune, "prune", "", "also delete the workloads with these `labels` that are not in the files, such as app=shop")
}

func (c *cli) planCommand() *cobra.Command {
	var w wishes
	cmd := &cobra.Command{
		Use:   "plan -f FILE|FOLDER|-",
		Short: "Show what applying a file would do",
		Long: "Plan shows what apply would create, change field by field, replace, move and delete, and what would not\n" +
			"fit and why. The cluster works it out with its own scheduler. Nothing is changed.\n\n" +
			"The exit code is 0 if nothing would change, 2 if something would, and 1 if there is no answer.",
		Example:     "  cloudless plan -f app.yaml\n  cloudless plan -f shop/ --prune app=shop",
		Args:        command.ExactArgs(),
		Annotations: map[string]string{command.OwnUsageCode: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := c.planRequest(cmd, w)
			if err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.plan(ctx, cl, request)
			})(cmd, args)
		},
	}
	w.register(cmd)
	return cmd
}

// planRequest reads the files and says where to prune.
func (c *cli) planRequest(cmd *cobra.Command, w wishes) (*cloudlessv1.PlanRequest, error) {
	if len(w.files) == 0 {
		return nil, command.Usagef(cmd, "the file is missing: %s", cmd.UseLine())
	}
	if w.prune == "" && cmd.Flags().Changed("prune") {
		return nil, command.Usagef(cmd, "--prune needs labels such as app=shop: without them it would delete everything else")
	}
	request, err := c.readFiles(cmd, w.files)
	if err != nil {
		return nil, err
	}
	request.Prune = w.prune
	if size := proto.Size(request); size > maxRequest {
		return nil, fmt.Errorf("the files hold %d MB of workloads together and one request may have %d: apply them one after the other", megabytes(size), megabytes(maxRequest))
	}
	if w.prune == "" {
		return request, nil
	}
	request.PruneNamespace = c.Namespace
	workloads := spec.WorkloadsIn(request.GetObjects())
	if cmd.Flags().Changed("namespace") || len(workloads) == 0 {
		return request, nil
	}
	request.PruneNamespace = workloads[0].GetMetadata().GetNamespace()
	for _, workload := range workloads {
		if workload.GetMetadata().GetNamespace() != request.PruneNamespace {
			return nil, errors.New("the files name several namespaces: say by --namespace in which one to prune, one apply for each")
		}
	}
	return request, nil
}

// megabytes rounds up.
func megabytes(n int) int { return (n + 1<<20 - 1) >> 20 }

// plan shows what a request would do.
func (c *cli) plan(ctx context.Context, cl *client.Client, request *cloudlessv1.PlanRequest) error {
	plan, err := cl.Plan(ctx, request)
	if err != nil {
		return fmt.Errorf("make the plan: %w", err)
	}
	if c.ForPeople() {
		err = c.showPlan(plan)
	} else {
		err = c.PrintObject(plan)
	}
	if err == nil && changes(plan) {
		err = command.Exit(exitChanges, nil)
	}
	return err
}

// changes reports whether a plan would change anything.
func changes(plan *cloudlessv1.Plan) bool {
	for _, change := range plan.GetChanges() {
		if change.GetAction() != spec.ActionUnchanged {
			return true
		}
	}
	return false
}
