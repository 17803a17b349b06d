package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// waiting are the flags of commands that can wait for what they asked for.
type waiting struct {
	on      bool
	timeout time.Duration
}

func (w *waiting) register(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&w.on, "wait", true, "wait until "+until)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 5*time.Minute, "how long to wait at most; 0 for no limit")
}

var errWaitedEnough = errors.New("waited long enough")

// awaitGone waits until none of the workloads exists any longer.
func (c *cli) awaitGone(ctx context.Context, cl *client.Client, w waiting, removed ...*cloudlessv1.Workload) error {
	interrupted := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, errWaitedEnough)
		defer cancel()
	}
	line := terminal.NewProgressLine(c.Stderr)
	defer line.Clear()
	for _, workload := range removed {
		var last *cloudlessv1.Workload
		meta := workload.GetMetadata()
		_, err := cl.WaitWorkload(ctx, meta.GetNamespace(), meta.GetName(), func(now *cloudlessv1.Workload) (bool, error) {
			last = now
			line.Show(meta.GetName() + ": " + standing(now))
			return now == nil || now.GetMetadata().GetUid() != meta.GetUid(), nil
		})
		if err != nil {
			line.Clear()
		}
		switch {
		case err != nil && interrupted.Err() != nil:
			return c.stoppedWaiting(workload)
		case err != nil && errors.Is(context.Cause(ctx), errWaitedEnough):
			return fmt.Errorf("workload %s is not gone yet after %s: %s: the cluster goes on with it: see: %s",
				meta.GetName(), w.timeout, standing(last), getHint(meta))
		case err != nil:
			return err
		}
	}
	return nil
}

// stoppedWaiting says that an interrupt has ended the waiting and nothing else.
func (c *cli) stoppedWaiting(forWhat ...*cloudlessv1.Workload) error {
	if len(forWhat) == 1 {
		meta := forWhat[0].GetMetadata()
		c.Note("Stopped waiting. The cluster goes on with %s: see: %s", meta.GetName(), getHint(meta))
	} else {
		c.Note("Stopped waiting. The cluster goes on with what was asked: see: %s", psHint(forWhat))
	}
	return command.Exit(command.ExitInterrupted, nil)
}

// getHint is the command that shows how a workload gets on.
func getHint(m *cloudlessv1.Metadata) string {
	return spec.Hint(m.GetNamespace(), "cloudless workload get "+m.GetName())
}

// logsHint is the command that shows the output of a workload.
func logsHint(m *cloudlessv1.Metadata) string {
	return spec.Hint(m.GetNamespace(), "cloudless logs "+m.GetName())
}

// psHint is the command that shows the replicas of workloads, which may be in several namespaces.
func psHint(workloads []*cloudlessv1.Workload) string {
	for _, w := range workloads {
		if w.GetMetadata().GetNamespace() != workloads[0].GetMetadata().GetNamespace() {
			return "cloudless ps --all-namespaces"
		}
	}
	if len(workloads) == 0 {
		return "cloudless ps"
	}
	return spec.Hint(workloads[0].GetMetadata().GetNamespace(), "cloudless ps")
}

func desired(w *cloudlessv1.Workload) int32 {
	if kindOf(w) == spec.KindDaemon {
		return w.GetStatus().GetDesired()
	}
	if w.GetSpec().Replicas == nil {
		return 1
	}
	return w.GetSpec().GetReplicas()
}

// standing is a workload's state in a few words.
func standing(w *cloudlessv1.Workload) string {
	if w == nil {
		return "it does not exist"
	}
	text := counts(w.GetStatus())
	if kind := kindOf(w); kind == spec.KindJob || kind == spec.KindCron {
		text = w.GetStatus().GetPhase() + ", " + progressOf(w)
	}
	if reason := w.GetStatus().GetReason(); reason != "" {
		text += ", " + reason
	}
	return text
}

func counts(status *cloudlessv1.WorkloadStatus) string {
	text := fmt.Sprintf("%d of %d running", status.GetRunning(), status.GetDesired())
	if n := status.GetOutdated(); n > 0 {
		text += fmt.Sprintf(", %d to be replaced", n)
	}
	return text
}
