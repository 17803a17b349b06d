package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/spec"
)

// exitChanges is the exit code of a plan that would change something.
const exitChanges = 2

// maxRequest is the largest request in bytes that a server reads, less some room for framing.
const maxRequest = 8<<20 - 64<<10

// planInput are the flags that say what to apply.
type planInput struct {
	files []string
	prune string
}

func (in *planInput) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&in.files, "file", "f", nil, "`file` or folder to apply, - for standard input; may be repeated")
	cmd.Flags().StringVar(&in.prune, "prune", "", "delete objects with these `labels`, such as app=shop, that are not in the files")
}

func (c *cli) planCommand() *cobra.Command {
	var input planInput
	cmd := &cobra.Command{
		Use:   "plan -f FILE|FOLDER|-",
		Short: "Show what applying a file would do",
		Long: "Plan shows what apply would create, change field by field, replace, move and delete, and what would not\n" +
			"fit and why. The cluster computes the plan with its own scheduler and changes nothing.\n\n" +
			"The exit code is 0 if nothing would change, 2 if something would, and 1 if there is no plan.",
		Example:     "  cloudless plan -f app.yaml\n  cloudless plan -f shop/ --prune app=shop",
		Args:        command.ExactArgs(),
		Annotations: map[string]string{command.OwnUsageCode: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := c.planRequest(cmd, input)
			if err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.plan(ctx, cl, request)
			})(cmd, args)
		},
	}
	input.register(cmd)
	return cmd
}

// planRequest reads the files and finds out in which namespace to prune.
func (c *cli) planRequest(cmd *cobra.Command, in planInput) (*cloudlessv1.PlanRequest, error) {
	if len(in.files) == 0 {
		return nil, command.Usagef(cmd, "the file is missing: %s", cmd.UseLine())
	}
	if in.prune == "" && cmd.Flags().Changed("prune") {
		return nil, command.Usagef(cmd, "--prune needs labels such as app=shop: without them it would delete everything else")
	}
	request, err := c.readFiles(cmd, in.files)
	if err != nil {
		return nil, err
	}
	request.Prune = in.prune
	if size := proto.Size(request); size > maxRequest {
		return nil, fmt.Errorf("the files hold %d MB of workloads together and one request may have %d: apply them one after the other", megabytes(size), megabytes(maxRequest))
	}
	if in.prune == "" {
		return request, nil
	}
	request.PruneNamespace = c.Namespace
	if cmd.Flags().Changed("namespace") {
		return request, nil
	}
	named := namespacesIn(request)
	if len(named) > 1 {
		return nil, errors.New("the files name several namespaces: say by --namespace in which one to prune, one apply for each")
	}
	if len(named) == 1 {
		request.PruneNamespace = named[0]
	}
	return request, nil
}

// namespacesIn are the namespaces of the objects in a request, sorted.
func namespacesIn(request *cloudlessv1.PlanRequest) []string {
	var all []string
	for _, manifest := range request.GetObjects() {
		o, _ := spec.ObjectIn(manifest)
		if named, ok := o.(client.Object); ok && named.GetMetadata().GetNamespace() != "" {
			all = append(all, named.GetMetadata().GetNamespace())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// megabytes rounds up.
func megabytes(n int) int { return (n + 1<<20 - 1) >> 20 }

// plan shows what a request would do.
func (c *cli) plan(ctx context.Context, cl *client.Client, request *cloudlessv1.PlanRequest) error {
	plan, err := cl.Plan(ctx, request)
	if err != nil {
		return fmt.Errorf("make the plan: %w", err)
	}
	if !c.ForPeople() {
		err = c.PrintObject(plan)
	} else if err = c.showPlan(plan); err == nil && changes(plan) {
		hint := "Apply this and nothing else with --plan " + terminal.Plain(plan.GetFingerprint())
		err = c.Printf("%s\n", terminal.StyleFor(c.Stdout).Paint(terminal.Dim, hint))
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

func (c *cli) policyCommand() *cobra.Command {
	apply := c.applyCommand()
	apply.Short = "Create or update the policies in a file"
	apply.Long = "Apply creates or updates the policies in a file. An expression that does not compile, that is not true or false, or that\n" +
		"could take too long is refused. Objects that exist and break a rule stay as they are; policy test shows them."
	apply.Example = "  cloudless policy apply -f policy.yaml\n  cloudless policy apply -f policies/"
	return c.nounCommand("policy", "Rules for objects and nodes, as expressions in CEL",
		"  cloudless policy apply -f policy.yaml\n  cloudless policy test -f app.yaml --policy policy.yaml\n  cloudless policy ls",
		apply, c.policyTestCommand())
}

func (c *cli) policyTestCommand() *cobra.Command {
	var input planInput
	var drafts []string
	cmd := &cobra.Command{
		Use:   "test -f FILE|FOLDER|-",
		Short: "Show what the policies say of the objects in a file",
		Long: "Test shows which rules the objects in a file break, in which field, and how to fix it. It changes nothing. With --policy it\n" +
			"tries policies that the cluster does not have yet, beside those that it has. Objects that exist already are judged, too.\n\n" +
			"The exit code is 0 if nothing would be refused, and 1 if something would.",
		Example: "  cloudless policy test -f app.yaml\n  cloudless policy test -f shop/ --policy new.yaml\n  cloudless policy test -f app.yaml -o json",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			input.files = append(input.files, drafts...)
			if len(input.files) == len(drafts) {
				return command.Usagef(cmd, "the file is missing: %s", cmd.UseLine())
			}
			request, err := c.planRequest(cmd, input)
			if err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.policyTest(ctx, cl, request)
			})(cmd, args)
		},
	}
	cmd.Flags().StringArrayVarP(&input.files, "file", "f", nil, "`file` or folder to test, - for standard input; may be repeated")
	cmd.Flags().StringArrayVar(&drafts, "policy", nil, "`file` or folder with policies to try; may be repeated")
	return cmd
}

// policyTest shows the findings of a plan. Refused objects are an error without a message of its own.
func (c *cli) policyTest(ctx context.Context, cl *client.Client, request *cloudlessv1.PlanRequest) error {
	plan, err := cl.Plan(ctx, request)
	if err != nil {
		return fmt.Errorf("judge the objects: %w", err)
	}
	refused, judged := 0, 0
	report := &cloudlessv1.Plan{}
	t := &planText{style: terminal.StyleFor(c.Stdout)}
	for _, change := range plan.GetChanges() {
		report.Changes = append(report.Changes, &cloudlessv1.PlanChange{
			Kind: change.GetKind(), Namespace: change.GetNamespace(), Name: change.GetName(), Action: change.GetAction(), Findings: change.GetFindings(),
		})
		if change.GetKind() == spec.KindPolicy {
			continue
		}
		judged++
		if slices.ContainsFunc(change.GetFindings(), func(f *cloudlessv1.PolicyFinding) bool { return f.GetMode() == policy.Enforce }) {
			refused++
		}
		if len(change.GetFindings()) > 0 {
			fmt.Fprintf(t, "%s %s\n", kindWord(change), terminal.Plain(inNamespace(change.GetName(), change.GetNamespace(), c.Namespace)))
		}
		for _, f := range change.GetFindings() {
			t.finding(f)
		}
	}
	if !c.ForPeople() {
		err = c.PrintObject(report)
	} else {
		err = c.Printf("%s%s judged, %d refused.\n", t.String(), spec.Count(judged, "object"), refused)
	}
	if err == nil && refused > 0 {
		err = command.Exit(1, nil)
	}
	return err
}
