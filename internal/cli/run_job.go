package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

// checkRemoval refuses --rm for what does not end, or whose end nobody waits for.
func (f *runFlags) checkRemoval(cmd *cobra.Command) error {
	switch {
	case !f.remove:
		return nil
	case f.kind != spec.KindJob:
		return command.Usagef(cmd, "--rm is for jobs, which end by themselves: add --kind job, or remove the workload with: cloudless workload rm")
	case f.detach || !f.On:
		return command.Usagef(cmd, "--rm needs somebody to wait for the end of the job: leave out --detach and --wait=false")
	}
	return nil
}

// endJob shows what a job has printed, however the wait for it ended, and removes it if that was asked for.
func (c *cli) endJob(ctx context.Context, cl *client.Client, f runFlags, made *cloudlessv1.Workload, waited error) error {
	if made.GetSpec().GetKind() != spec.KindJob || ctx.Err() != nil {
		return waited
	}
	if c.ForPeople() {
		waited = errors.Join(waited, c.showOutput(ctx, cl, made.GetMetadata()))
	}
	if !f.remove {
		return waited
	}
	meta := made.GetMetadata()
	now, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
	if err != nil {
		return errors.Join(waited, err)
	}
	if phase := now.GetStatus().GetPhase(); phase != "completed" && phase != "failed" {
		return errors.Join(waited, fmt.Errorf("job %s has not ended and is not removed: remove it with: cloudless workload rm %s", meta.GetName(), meta.GetName()))
	}
	if failed, ok := errors.AsType[*wait.JobFailedError](waited); ok {
		failed.Removed = true
	}
	_, err = cl.Workloads().DeleteWorkload(ctx, &cloudlessv1.DeleteWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
	return errors.Join(waited, err)
}

// showOutput prints what all replicas of a workload have printed.
func (c *cli) showOutput(ctx context.Context, cl *client.Client, meta *cloudlessv1.Metadata) error {
	f := logsFlags{all: true}
	return c.logs(ctx, cl, f, &cloudlessv1.LogsRequest{Namespace: meta.GetNamespace(), Workload: meta.GetName(), Ended: true})
}
