package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) workloadHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history NAME",
		Short: "List the revisions of a workload and their changes",
		Long: "History lists the revisions that are kept, newest first. Every change of a workload's spec makes a revision, except\n" +
			"changes of replicas, autoscale, egress, the bandwidth limit, priority, minAvailable, lostAfter and update.",
		Example: "  cloudless workload history web\n  cloudless workload history web -o yaml",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			revisions, err := listRevisions(ctx, cl, c.Namespace, args[0])
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, revisions)
			}
			w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			return c.revisionTable(revisions, w.GetStatus().GetRevision()).Flush()
		}),
	}
}

// listRevisions lists the revisions of a workload, newest first.
func listRevisions(ctx context.Context, cl *client.Client, namespace, workload string) ([]*cloudlessv1.Revision, error) {
	return client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Revision, string, error) {
		answer, err := cl.Workloads().ListRevisions(ctx, &cloudlessv1.ListRevisionsRequest{Namespace: namespace, Workload: workload, Page: page})
		return answer.GetItems(), answer.GetNext(), err
	})
}

// revisionTable marks the current revision if it is not the newest one.
func (c *cli) revisionTable(newestFirst []*cloudlessv1.Revision, current uint64) *terminal.Table {
	t := terminal.NewTable(c.Stdout, "REVISION", "CREATED", "AGE", "IMAGE", "CHANGES")
	for i, r := range newestFirst {
		var before *cloudlessv1.Revision
		if i+1 < len(newestFirst) {
			before = newestFirst[i+1]
		}
		changes := revisionChanges(before, r)
		created := r.GetMetadata().GetCreateTime()
		number := strconv.FormatUint(r.GetSpec().GetNumber(), 10)
		if i > 0 && r.GetSpec().GetNumber() == current {
			number += " (current)"
		}
		t.Row(number, created.AsTime().Local().Format(time.DateTime),
			command.Age(created, time.Now()), shortImage(r.GetSpec()), changes[0])
		for _, change := range changes[1:] {
			t.Continue(change)
		}
	}
	return t
}

// revisionChanges lists what a revision has changed, at least one line.
func revisionChanges(before, r *cloudlessv1.Revision) []string {
	switch {
	case before == nil && r.GetSpec().GetNumber() <= 1:
		return []string{"created"}
	case before == nil:
		return []string{"the ones before are not kept"}
	}
	var changes []string
	for _, change := range spec.Diff(before.GetSpec().GetWorkload(), r.GetSpec().GetWorkload()) {
		changes = append(changes, fieldChange(change.Field, change.Old, change.New))
	}
	switch {
	case before.GetSpec().GetRestart() != r.GetSpec().GetRestart():
		changes = append(changes, "restarted")
	case before.GetSpec().GetImage() != r.GetSpec().GetImage() && before.GetSpec().GetWorkload().GetImage() == r.GetSpec().GetWorkload().GetImage():
		changes = append(changes, fmt.Sprintf("%s is another image now", r.GetSpec().GetWorkload().GetImage()))
	}
	if len(changes) == 0 {
		return []string{"nothing in its spec"}
	}
	return changes
}

// fieldChange is a changed field in one line.
func fieldChange(field, before, after string) string {
	field = strings.TrimPrefix(field, "spec.")
	switch {
	case before == "":
		return fmt.Sprintf("%s: %s", field, after)
	case after == "":
		return fmt.Sprintf("%s: %s removed", field, before)
	}
	return fmt.Sprintf("%s: %s → %s", field, before, after)
}

// shortImage is the digest of a revision's image, or its name if it has no digest.
func shortImage(r *cloudlessv1.RevisionSpec) string {
	if _, digest, pinned := strings.Cut(r.GetImage(), "@"); pinned {
		return shortDigest(digest)
	}
	return r.GetImage()
}

// rollbackCommand is workload rollback, and the same as rollout undo. Argument is how the help names the workload.
func (c *cli) rollbackCommand(verb, argument, path string) *cobra.Command {
	var w wait.Flags
	other := map[string]string{"rollback": "undo", "undo": "rollback"}[verb]
	cmd := &cobra.Command{
		Use:        verb + " " + argument + " [REVISION]",
		Aliases:    []string{other},
		SuggestFor: []string{"revert", "back"},
		Short:      "Go back to an earlier revision",
		Long: strings.ToUpper(verb[:1]) + verb[1:] + " makes an earlier revision current again. Replicas that still run it stay; the others are\n" +
			"replaced as for any other change.\n" +
			"REVISION is a number, or a digest as cloudless workload history shows it. Without it, " + verb + " takes the newest\n" +
			"revision that was deployed successfully and differs from the current one.\n\n" +
			"The workload runs exactly the image of that revision, even if its tag has moved. A deleted image is restored,\n" +
			"as long as that is possible. The number of replicas, autoscale, egress, the bandwidth limit, the priority, minAvailable, lostAfter and update stay.\n" +
			"Change your files too: the next apply uses them.",
		Example: fmt.Sprintf("  %[1]s web\n  %[1]s web 3\n  %[1]s web sha256:0123456789ab", path),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return command.ExactArgs(argument)(cmd, args)
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
