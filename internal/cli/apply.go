package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) applyCommand() *cobra.Command {
	var input planInput
	var w wait.Flags
	var dryRun bool
	var fingerprint string
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|-",
		Short: "Create or update the objects in a file",
		Long: "Apply creates or updates the objects in a file, of kind Workload, Service, Namespace or Node: all of them, or none\n" +
			"if one is refused.\n" +
			"Then it shows the replicas until all of them run, or says why they cannot.\n" +
			"A file is YAML or JSON and may hold several documents. - is standard input. A folder stands for all files in it.\n\n" +
			"Apply makes a plan and carries out exactly that plan. To see the plan first, run cloudless plan, and then pass the\n" +
			"fingerprint that it prints with --plan: if the plan would differ by now, apply refuses it and changes nothing.",
		Example: "  cloudless apply -f app.yaml\n  cloudless apply -f shop/ --prune app=shop\n" +
			"  cloudless apply -f app.yaml --plan FINGERPRINT\n  cat *.yaml | cloudless apply -f - --wait=false",
		Args: command.ExactArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch seen := cmd.Flags().Changed("plan"); {
			case seen && fingerprint == "":
				return command.Usagef(cmd, "--plan needs the fingerprint that cloudless plan shows")
			case seen && dryRun:
				return command.Usagef(cmd, "--plan and --dry-run exclude each other: the one carries a plan out, the other only shows it")
			}
			request, err := c.planRequest(cmd, input)
			if err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				if dryRun {
					return c.plan(ctx, cl, request)
				}
				return c.apply(ctx, cl, w, request, fingerprint)
			})(cmd, args)
		},
	}
	input.register(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the plan and change nothing, the same as cloudless plan")
	cmd.Flags().StringVar(&fingerprint, "plan", "", "carry out only the plan with this `fingerprint`, which cloudless plan prints")
	w.Register(cmd, "they run")
	return cmd
}

// done is the past tense of each action.
var done = map[string]string{
	spec.ActionCreate: "created", spec.ActionUpdate: "updated", spec.ActionDelete: "deleted", spec.ActionUnchanged: "unchanged",
}

// apply carries out the plan with the fingerprint seen, or makes a new plan if seen is empty.
func (c *cli) apply(ctx context.Context, cl *client.Client, w wait.Flags, request *cloudlessv1.PlanRequest, seen string) (err error) {
	var answer *cloudlessv1.ApplyPlanResponse
	if seen != "" {
		answer, err = cl.ApplyPlan(ctx, request, &cloudlessv1.Plan{Fingerprint: seen})
	} else {
		answer, err = carryOut(ctx, cl, request)
	}
	if err != nil {
		return err
	}
	if c.ForPeople() {
		for _, change := range answer.GetPlan().GetChanges() {
			if err := c.Printf("%s %s %s\n", kindWord(change), change.GetName(), done[change.GetAction()]); err != nil {
				return err
			}
			if len(change.GetOver()) > 0 {
				c.Note("%s", overQuota(change.GetName(), change.GetOver()))
			}
		}
		if err := c.tellPreemptions(answer.GetPlan().GetPreemptions()); err != nil {
			return err
		}
	}
	if w.On {
		now, err := w.ForPlan(ctx, c.Env, cl, answer)
		if err != nil {
			return err
		}
		replaceWorkloads(answer.GetObjects(), now)
	}
	if c.ForPeople() {
		return nil
	}
	return c.PrintObject(answer)
}

// replaceWorkloads replaces the workloads in an answer by their newer versions.
func replaceWorkloads(in []*cloudlessv1.Manifest, now []*cloudlessv1.Workload) {
	for _, w := range now {
		for _, m := range in {
			if held := m.GetWorkload(); held != nil && held.GetMetadata().GetUid() == w.GetMetadata().GetUid() {
				m.Object = &cloudlessv1.Manifest_Workload{Workload: w}
			}
		}
	}
}

// maxPlans limits how often carryOut makes a new plan because the cluster has changed in between.
const maxPlans = 10

// carryOut makes a plan and applies it. If the cluster has changed in between, it tries again, unless the new plan
// would change the workloads in another way.
func carryOut(ctx context.Context, cl *client.Client, request *cloudlessv1.PlanRequest) (*cloudlessv1.ApplyPlanResponse, error) {
	var first *cloudlessv1.Plan
	var refused error
	for range maxPlans {
		plan, err := cl.Plan(ctx, request)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = plan
		}
		if changes(plan) && !sameChanges(first, plan) {
			return nil, fmt.Errorf("somebody else is changing these workloads, so nothing was done: see what would change now with cloudless plan, and apply again (%w)", refused)
		}
		answer, err := cl.ApplyPlan(ctx, request, plan)
		if status.Code(err) != codes.Aborted {
			return answer, err
		}
		refused = err
	}
	return nil, fmt.Errorf("nothing was done after %d attempts: %w", maxPlans, refused)
}

// sameChanges reports whether two plans change the same objects in the same way, wherever the replicas go.
func sameChanges(a, b *cloudlessv1.Plan) bool {
	return proto.Equal(&cloudlessv1.Plan{Changes: withoutPlaces(a)}, &cloudlessv1.Plan{Changes: withoutPlaces(b)})
}

func withoutPlaces(plan *cloudlessv1.Plan) []*cloudlessv1.PlanChange {
	var all []*cloudlessv1.PlanChange
	for _, c := range plan.GetChanges() {
		all = append(all, &cloudlessv1.PlanChange{
			Kind: c.GetKind(), Namespace: c.GetNamespace(), Name: c.GetName(), Action: c.GetAction(), Fields: c.GetFields(), Image: c.GetImage(),
		})
	}
	return all
}
