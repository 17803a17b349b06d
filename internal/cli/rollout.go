package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) rolloutCommand() *cobra.Command {
	group := command.Group("rollout", "Follow and steer the deployments of a workload",
		"  cloudless rollout status web --watch\n  cloudless rollout pause web\n  cloudless rollout undo web",
		c.rolloutStatusCommand(), c.rolloutHistoryCommand(),
		c.rolloutVerb(steering{
			verb: "pause", done: "paused", short: "Stop a deployment for now",
			long: "Pause stops the newest deployment of a workload: no further replica is started or stopped for it until\n" +
				"cloudless rollout resume. Replicas that fail are still replaced.",
			call: func(ctx context.Context, cl cloudlessv1.DeploymentServiceClient, namespace, workload string) (*cloudlessv1.Deployment, error) {
				return cl.PauseDeployment(ctx, &cloudlessv1.PauseDeploymentRequest{Namespace: namespace, Workload: workload})
			},
		}),
		c.rolloutVerb(steering{
			verb: "resume", done: "resumed", short: "Continue a paused deployment",
			long: "Resume continues a paused deployment.",
			call: func(ctx context.Context, cl cloudlessv1.DeploymentServiceClient, namespace, workload string) (*cloudlessv1.Deployment, error) {
				return cl.ResumeDeployment(ctx, &cloudlessv1.ResumeDeploymentRequest{Namespace: namespace, Workload: workload})
			},
		}),
		c.rolloutPromoteCommand(),
		c.rolloutVerb(steering{
			verb: "abort", done: "aborted", short: "End a deployment and go back to the last good revision",
			long: "Abort ends the newest deployment of a workload and goes back to the last revision that was deployed successfully.\n" +
				"To go back after a deployment has ended, see cloudless rollout undo.",
			call: func(ctx context.Context, cl cloudlessv1.DeploymentServiceClient, namespace, workload string) (*cloudlessv1.Deployment, error) {
				return cl.AbortDeployment(ctx, &cloudlessv1.AbortDeploymentRequest{Namespace: namespace, Workload: workload})
			},
		}),
		c.rollbackCommand("undo", "WORKLOAD", "cloudless rollout undo"))
	for _, cmd := range group.Commands() {
		cmd.ValidArgsFunction = c.completeBy(objectNames("workload"), false)
	}
	return group
}

// steering is a command that changes the newest deployment of a workload.
type steering struct {
	verb, done, short, long string
	call                    func(ctx context.Context, cl cloudlessv1.DeploymentServiceClient, namespace, workload string) (*cloudlessv1.Deployment, error)
}

func (c *cli) rolloutVerb(s steering) *cobra.Command {
	return &cobra.Command{
		Use: s.verb + " WORKLOAD", Short: s.short, Long: s.long, Example: "  cloudless rollout " + s.verb + " web",
		Args: command.ExactArgs("WORKLOAD"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			d, err := s.call(ctx, cl.Deployments(), c.Namespace, args[0])
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(d)
			}
			return c.Printf("deployment %d of workload %s %s\n", d.GetSpec().GetNumber(), args[0], s.done)
		}),
	}
}

func (c *cli) rolloutPromoteCommand() *cobra.Command {
	var full bool
	cmd := c.rolloutVerb(steering{
		verb: "promote", done: "promoted", short: "Switch a blue-green deployment, or end a step of a canary",
		long: "Promote switches the service of a workload with strategy blue-green to the new revision as soon as all its\n" +
			"replicas serve. Without update.manualSwitch this happens by itself.\n\n" +
			"For a canary deployment it skips the time that is left of the present step, or with --full all steps that are left.",
		call: func(ctx context.Context, cl cloudlessv1.DeploymentServiceClient, namespace, workload string) (*cloudlessv1.Deployment, error) {
			return cl.PromoteDeployment(ctx, &cloudlessv1.PromoteDeploymentRequest{Namespace: namespace, Workload: workload, Full: full})
		},
	})
	cmd.Example += "\n  cloudless rollout promote web --full"
	cmd.Flags().BoolVar(&full, "full", false, "canary: skip all steps that are left")
	return cmd
}

func (c *cli) rolloutStatusCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "status WORKLOAD",
		Short: "Show how far the newest deployment of a workload is",
		Long: "Status shows the newest deployment of a workload. With --watch it shows the replicas until the deployment ends.\n\n" +
			"The exit code is 0 if the deployment has succeeded or has not ended, 3 if it failed, and 4 if it was rolled back.",
		Example: "  cloudless rollout status web\n  cloudless rollout status web --watch\n  cloudless rollout status web -o json",
		Args:    command.ExactArgs("WORKLOAD"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			d, err := c.newestDeployment(ctx, cl, args[0])
			if err != nil {
				return err
			}
			if follow && !spec.DeploymentEnded(d.GetStatus().GetPhase()) {
				if d, err = c.followDeployment(ctx, cl, d); err != nil {
					return err
				}
			}
			if err := c.showDeployment(d); err != nil {
				return err
			}
			if code := wait.ExitOf(d); code != 0 {
				return command.Exit(code, nil)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "show the replicas until the deployment ends")
	return cmd
}

// newestDeployment is the newest deployment of a workload, which must have one.
func (c *cli) newestDeployment(ctx context.Context, cl *client.Client, workload string) (*cloudlessv1.Deployment, error) {
	all, err := c.listDeployments(ctx, cl, workload)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("workload %s has no deployments: jobs and crons have none, and services and daemons get one when they change; see: %s",
			workload, spec.Hint(c.Namespace, "cloudless workload get "+workload))
	}
	return all[0], nil
}

// followDeployment shows the replicas until a deployment ends, and returns its end.
func (c *cli) followDeployment(ctx context.Context, cl *client.Client, d *cloudlessv1.Deployment) (*cloudlessv1.Deployment, error) {
	w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: d.GetSpec().GetWorkload()})
	if err != nil {
		return nil, err
	}
	if _, err := (wait.Flags{}).ForWorkload(ctx, c.Env, cl, spec.ActionUpdate, w); err != nil {
		return nil, err
	}
	return cl.Deployments().GetDeployment(ctx, &cloudlessv1.GetDeploymentRequest{Namespace: c.Namespace, Name: d.GetMetadata().GetName()})
}

func (c *cli) showDeployment(d *cloudlessv1.Deployment) error {
	if !c.ForPeople() {
		return c.PrintObject(d)
	}
	s, status := d.GetSpec(), d.GetStatus()
	f := terminal.NewFacts(c.Stdout)
	f.Add("Workload", s.GetWorkload())
	f.Add("Deployment", strconv.FormatUint(s.GetNumber(), 10))
	f.Add("Phase", status.GetPhase())
	f.Add("Reason", status.GetReason())
	if spec.DeploymentOpen(d) {
		f.Add("Replicas", phrase.Deployed(d))
	}
	if spec.CanaryOpen(d) {
		f.Add("Step", phrase.CanaryStep(d, time.Now()))
		f.Add("Judged", status.GetAnalysis())
	}
	if release := status.GetRelease(); release != nil {
		f.Add("Release command", release.GetPhase()+", job "+release.GetJob())
	}
	f.Add("Revision", strconv.FormatUint(s.GetRevision(), 10))
	if s.GetPrevious() != 0 {
		f.Add("Last good revision", strconv.FormatUint(s.GetPrevious(), 10))
	}
	f.Add("Cause", s.GetCause()+" by "+s.GetAuthor())
	f.Add("Started", status.GetStartTime().AsTime().Local().Format(time.DateTime))
	f.Add("Duration", deploymentDuration(d, time.Now()))
	return f.Flush()
}

func (c *cli) rolloutHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "history WORKLOAD",
		Short:   "List the deployments of a workload",
		Long:    "History lists the deployments that are kept, newest first: the newest 20, and the last one that succeeded.",
		Example: "  cloudless rollout history web\n  cloudless rollout history web -o yaml",
		Args:    command.ExactArgs("WORKLOAD"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			all, err := c.listDeployments(ctx, cl, args[0])
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, all)
			}
			return c.deploymentTable(all).Flush()
		}),
	}
}

// listDeployments lists the deployments of a workload, newest first.
func (c *cli) listDeployments(ctx context.Context, cl *client.Client, workload string) ([]*cloudlessv1.Deployment, error) {
	return client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Deployment, string, error) {
		answer, err := cl.Deployments().ListDeployments(ctx, &cloudlessv1.ListDeploymentsRequest{
			Selection: &cloudlessv1.Selection{Namespace: c.Namespace}, Workload: workload, Page: page,
		})
		return answer.GetItems(), answer.GetNext(), err
	})
}

func (c *cli) deploymentTable(newestFirst []*cloudlessv1.Deployment) *terminal.Table {
	t := terminal.NewTable(c.Stdout, "DEPLOYMENT", "REVISION", "CAUSE", "AUTHOR", "STARTED", "DURATION", "PHASE", "REASON")
	for _, d := range newestFirst {
		s, status := d.GetSpec(), d.GetStatus()
		t.Row(strconv.FormatUint(s.GetNumber(), 10), strconv.FormatUint(s.GetRevision(), 10), s.GetCause(), s.GetAuthor(),
			status.GetStartTime().AsTime().Local().Format(time.DateTime), deploymentDuration(d, time.Now()), status.GetPhase(), status.GetReason())
	}
	return t
}

// deploymentDuration is how long a deployment took, or has taken so far.
func deploymentDuration(d *cloudlessv1.Deployment, now time.Time) string {
	end := d.GetStatus().GetEndTime()
	if end == nil {
		end = timestamppb.New(now)
	}
	return command.Age(d.GetStatus().GetStartTime(), end.AsTime())
}
