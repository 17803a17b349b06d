package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/policy"
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
		Long: "Apply creates or updates the objects in a file, of kind Workload, Service, Route, Namespace, Policy …: all of them,\n" +
			"or none if one is refused.\n" +
			"Then it shows the replicas until the deployments have ended, or says why replicas cannot run.\n" +
			"A file is YAML or JSON and may hold several documents. - is standard input. A folder stands for all files in it.\n\n" +
			"Apply makes a plan and carries out exactly that plan. To see the plan first, run cloudless plan, and then pass the\n" +
			"fingerprint that it prints with --plan: if the plan would differ by now, apply refuses it and changes nothing.\n\n" +
			"With -o json or -o yaml it prints the plan, the objects and their newest deployments, also if one of those failed.\n\n" +
			"The exit code is 0 if everything runs as asked, 3 if a deployment failed, 4 if one was rolled back, 130 if you stopped\n" +
			"waiting, and 1 for other errors. In the last case see the message: what was refused has changed nothing.",
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
		answer, err = c.carryOut(ctx, cl, request)
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
		if err = w.ForPlan(ctx, c.Env, cl, answer); err != nil && !wait.EndedDeployment(err) {
			return err
		}
	}
	if c.ForPeople() {
		return err
	}
	// Programs get the objects even if a deployment failed or was rolled back: the deployments say why.
	return cmp.Or(c.PrintObject(answer), err)
}

// maxPlans limits how often carryOut makes a new plan because the cluster has changed in between.
const maxPlans = 10

// carryOut makes a plan, warns of what will not work, and applies it. If the cluster has changed in between, it tries
// again, unless the new plan would change the workloads in another way.
func (c *cli) carryOut(ctx context.Context, cl *client.Client, request *cloudlessv1.PlanRequest) (*cloudlessv1.ApplyPlanResponse, error) {
	var first *cloudlessv1.Plan
	var refused error
	for range maxPlans {
		plan, err := cl.Plan(ctx, request)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = plan
			c.warn(plan)
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

// warn names the replicas of a plan that would have no place, the services of routes that do not exist, and the images that
// could not be checked.
func (c *cli) warn(plan *cloudlessv1.Plan) {
	for _, change := range plan.GetChanges() {
		if change.GetAction() != spec.ActionCreate && change.GetAction() != spec.ActionUpdate {
			continue
		}
		if text := unplacedText(change); text != "" {
			c.Note("warning: workload %s: %s", change.GetName(), text)
		}
		for _, warning := range change.GetWarnings() {
			c.Note("warning: %s %s: %s", kindWord(change), change.GetName(), terminal.Plain(warning))
		}
		for _, f := range change.GetFindings() {
			if f.GetMode() == policy.Warn {
				c.Note("warning: %s %s: %s", kindWord(change), change.GetName(), terminal.Plain(findingText(f)))
			}
		}
		if image := change.GetImage(); image != "" && !strings.Contains(image, "@") {
			c.Note("warning: workload %s: image %s could not be checked, because its registry cannot be reached from the server", change.GetName(), terminal.Plain(image))
		}
	}
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
