package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
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

// awaitSettled waits until every workload runs as asked or has no place, and returns them as they are then.
func (c *cli) awaitSettled(ctx context.Context, cl *client.Client, w waiting, asked ...*cloudlessv1.Workload) ([]*cloudlessv1.Workload, error) {
	return c.await(ctx, cl, w, func(ctx context.Context, asked, now *cloudlessv1.Workload) (bool, error) {
		there, err := settled(ctx, asked, now)
		switch {
		case errors.Is(err, errFailed):
			return false, fmt.Errorf("%w: see %s", err, whereToLook(ctx, cl, asked))
		case err != nil || there:
			return there, err
		}
		return false, unplaced(ctx, cl, asked, now)
	}, asked...)
}

// awaitGone waits until none of the workloads exists any longer.
func (c *cli) awaitGone(ctx context.Context, cl *client.Client, w waiting, asked ...*cloudlessv1.Workload) error {
	_, err := c.await(ctx, cl, w, gone, asked...)
	return err
}

func (c *cli) await(ctx context.Context, cl *client.Client, w waiting, arrived arrival, asked ...*cloudlessv1.Workload) ([]*cloudlessv1.Workload, error) {
	interrupted := ctx
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, errWaitedEnough)
		defer cancel()
	}
	line := newProgress(c.Stderr)
	defer line.clear()
	var all []*cloudlessv1.Workload
	for _, workload := range asked {
		var last *cloudlessv1.Workload
		meta := workload.GetMetadata()
		now, err := cl.WaitWorkload(ctx, meta.GetNamespace(), meta.GetName(), func(now *cloudlessv1.Workload) (bool, error) {
			last = now
			line.show(meta.GetName() + ": " + standing(now))
			return arrived(ctx, workload, now)
		})
		if err != nil {
			line.clear()
		}
		switch {
		case err != nil && interrupted.Err() != nil:
			c.note("Stopped waiting. The cluster goes on with %s: see: cloudless workload get %s", meta.GetName(), meta.GetName())
			return nil, &exitCodeError{exitInterrupted}
		case err != nil && errors.Is(context.Cause(ctx), errWaitedEnough):
			return nil, fmt.Errorf("workload %s is not there yet after %s: %s: the cluster goes on with it: see: cloudless workload get %s",
				meta.GetName(), w.timeout, standing(last), meta.GetName())
		case err != nil:
			return nil, err
		}
		all = append(all, now)
	}
	return all, nil
}

// arrival says whether a workload is where it was asked to be. now is nil if it does not exist.
type arrival func(ctx context.Context, asked, now *cloudlessv1.Workload) (bool, error)

var errFailed = errors.New("failed")

// whereToLook is the command that says more: a program that never ran has no output.
func whereToLook(ctx context.Context, cl *client.Client, failed *cloudlessv1.Workload) string {
	meta := failed.GetMetadata()
	replicas, err := listReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{
		Selection: &cloudlessv1.Selection{Namespace: meta.GetNamespace()}, Workload: meta.GetName(), Ended: true,
	})
	ran := func(r *cloudlessv1.Replica) bool { return r.GetStatus().GetLastExit() != nil }
	if err == nil && !slices.ContainsFunc(replicas, ran) {
		return "more with: cloudless describe " + meta.GetName()
	}
	return "its output with: cloudless logs " + meta.GetName()
}

// settled is the arrival of a workload that should run.
func settled(_ context.Context, asked, now *cloudlessv1.Workload) (bool, error) {
	name := asked.GetMetadata().GetName()
	if now == nil || now.GetMetadata().GetUid() != asked.GetMetadata().GetUid() {
		return false, fmt.Errorf("workload %s was removed meanwhile", name)
	}
	if now.GetMetadata().GetVersion() < asked.GetMetadata().GetVersion() {
		return false, nil
	}
	status := now.GetStatus()
	switch status.GetPhase() {
	case "completed":
		return true, nil
	case "failed":
		return false, fmt.Errorf("workload %s %w: %s", name, errFailed, reasonOf(now))
	case "deleting":
		return false, fmt.Errorf("workload %s is being removed", name)
	}
	return status.GetDesired() == desired(now) && status.GetRunning() == status.GetDesired() &&
		status.GetPending() == 0 && status.GetOutdated() == 0, nil
}

// placePatience is how long a workload may be without a place before that is an answer: a node that comes back makes
// room.
const placePatience = time.Second

// unplaced says that something of the workload has no place, for more than a moment.
func unplaced(ctx context.Context, cl *client.Client, asked, now *cloudlessv1.Workload) error {
	if err := homeless(ctx, cl, asked, now); err == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(placePatience):
		return homeless(ctx, cl, asked, now)
	}
}

// homeless says that something of the workload has no place, and that nothing is on its way that could make one.
func homeless(ctx context.Context, cl *client.Client, asked, now *cloudlessv1.Workload) error {
	meta := asked.GetMetadata()
	if st := now.GetStatus(); now.GetMetadata().GetVersion() < meta.GetVersion() || st.GetPending()+st.GetOutdated() == 0 {
		return nil
	}
	a := &actor{action: actionUpdate, asked: asked, now: now, replicas: map[string]*cloudlessv1.Replica{}}
	stuck := stuckError(ctx, cl, []*actor{a})
	if stuck == nil {
		return nil
	}
	replicas, err := listReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{
		Selection: &cloudlessv1.Selection{Namespace: meta.GetNamespace()}, Workload: meta.GetName(),
	})
	if err != nil {
		return err
	}
	for _, r := range replicas {
		a.replicas[r.GetMetadata().GetUid()] = r
	}
	if a.moving() {
		return nil
	}
	return stuck
}

// gone is the arrival of a workload that should not exist.
func gone(_ context.Context, asked, now *cloudlessv1.Workload) (bool, error) {
	return now == nil || now.GetMetadata().GetUid() != asked.GetMetadata().GetUid(), nil
}

func desired(w *cloudlessv1.Workload) int32 {
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
	status := w.GetStatus()
	text := fmt.Sprintf("%d of %d running", status.GetRunning(), status.GetDesired())
	if n := status.GetOutdated(); n > 0 {
		text += fmt.Sprintf(", %d to be replaced", n)
	}
	if reason := status.GetReason(); reason != "" {
		text += ", " + reason
	}
	return text
}

func reasonOf(w *cloudlessv1.Workload) string {
	if reason := w.GetStatus().GetReason(); reason != "" {
		return reason
	}
	return "the cluster gives no reason"
}
