package wait

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Flags are the flags of commands that can wait until what they asked for is done.
type Flags struct {
	On      bool
	timeout time.Duration
}

// Register adds the flags. Until says, for the help, what the command waits for.
func (w *Flags) Register(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&w.On, "wait", true, "wait until "+until)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 10*time.Minute, "how long to wait at most; 0 for no limit")
}

var errWaitedEnough = errors.New("waited long enough")

// limit ends a context with errWaitedEnough after a timeout; 0 is no limit. The context has no deadline, because gRPC tells
// the server a deadline: the server could end a watch before the context ends, and that would look like a failure.
func limit(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if timeout <= 0 {
		return ctx, func() { cancel(nil) }
	}
	timer := time.AfterFunc(timeout, func() { cancel(errWaitedEnough) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// ForRemoval waits until none of the workloads exists any longer.
func (w Flags) ForRemoval(ctx context.Context, e *command.Env, cl *client.Client, removed ...*cloudlessv1.Workload) error {
	interrupted := ctx
	ctx, cancel := limit(ctx, w.timeout)
	defer cancel()
	line := terminal.NewProgressLine(e.Stderr)
	defer line.Clear()
	for _, workload := range removed {
		var last *cloudlessv1.Workload
		meta := workload.GetMetadata()
		_, err := cl.WaitWorkload(ctx, meta.GetNamespace(), meta.GetName(), func(now *cloudlessv1.Workload) (bool, error) {
			last = now
			line.Show(meta.GetName() + ": " + phrase.Status(now))
			return now == nil || now.GetMetadata().GetUid() != meta.GetUid(), nil
		})
		if err != nil {
			line.Clear()
		}
		switch {
		case err != nil && interrupted.Err() != nil:
			return stoppedWaiting(e, workload)
		case err != nil && errors.Is(context.Cause(ctx), errWaitedEnough):
			return fmt.Errorf("workload %s is still being deleted after %s: %s; deletion continues in the background: see: %s",
				meta.GetName(), w.timeout, phrase.Status(last), phrase.GetHint(meta))
		case err != nil:
			return err
		}
	}
	return nil
}

// stoppedWaiting notes that the interrupt ended only the waiting.
func stoppedWaiting(e *command.Env, forWhat ...*cloudlessv1.Workload) error {
	if len(forWhat) == 1 {
		meta := forWhat[0].GetMetadata()
		e.Note("Stopped waiting. The cluster continues with %s: see: %s", meta.GetName(), phrase.GetHint(meta))
	} else {
		e.Note("Stopped waiting. The cluster continues in the background: see: %s", phrase.PsHint(forWhat))
	}
	return command.Exit(command.ExitInterrupted, nil)
}

// errDone ends the watch.
var errDone = errors.New("all workloads are as asked")

// ForPlan waits until a plan that was applied is done, and brings the workloads and deployments of the answer up to date, also
// if a deployment has failed or was rolled back.
func (w Flags) ForPlan(ctx context.Context, e *command.Env, cl *client.Client, applied *cloudlessv1.ApplyPlanResponse) error {
	t := trackPlan(applied)
	if len(t.workloads) == 0 {
		return nil
	}
	_, err := w.await(ctx, e, cl, t)
	t.refresh(applied)
	return err
}

// refresh replaces the workloads and deployments in an answer by their newer versions.
func (t *tracker) refresh(applied *cloudlessv1.ApplyPlanResponse) {
	for _, w := range t.workloads {
		for _, m := range applied.GetObjects() {
			if held := m.GetWorkload(); held != nil && w.now != nil && held.GetMetadata().GetUid() == w.now.GetMetadata().GetUid() {
				m.Object = &cloudlessv1.Manifest_Workload{Workload: w.now}
			}
		}
		for i, d := range applied.GetDeployments() {
			if w.deployment != nil && d.GetMetadata().GetUid() == w.deployment.GetMetadata().GetUid() {
				applied.Deployments[i] = w.deployment
			}
		}
	}
}

// EndedDeployment reports whether an error of waiting says that a deployment has failed or was rolled back.
func EndedDeployment(err error) bool {
	ended, ok := errors.AsType[*endedError](err)
	return ok && ended != nil
}

// ForWorkload waits until one workload is as it was asked to be, and returns it as it is then, also if its deployment has
// failed or was rolled back.
func (w Flags) ForWorkload(ctx context.Context, e *command.Env, cl *client.Client, action string, asked *cloudlessv1.Workload) (*cloudlessv1.Workload, error) {
	one := &tracked{action: action, asked: asked}
	if _, err := w.await(ctx, e, cl, newTracker(one)); err != nil {
		return cmp.Or(one.now, asked), err
	}
	return one.now, nil
}

// await shows the workloads until all of them run or it is clear that one will not.
func (w Flags) await(ctx context.Context, e *command.Env, cl *client.Client, t *tracker) ([]*cloudlessv1.Workload, error) {
	interrupted := ctx
	ctx, cancel := limit(ctx, w.timeout)
	defer cancel()
	v := newView(e, t)
	err := watch(ctx, cl, t, v)
	v.close()
	switch {
	case err == nil:
	case interrupted.Err() != nil:
		return nil, stoppedWaiting(e, t.asked()...)
	case errors.Is(context.Cause(ctx), errWaitedEnough):
		return nil, t.late(w.timeout)
	default:
		return nil, err
	}
	var all []*cloudlessv1.Workload
	for _, w := range t.workloads {
		if w.action != spec.ActionDelete {
			all = append(all, w.now)
		}
	}
	if err := v.summary(all); err != nil {
		return nil, err
	}
	t.notePromotions(e)
	return all, nil
}

// namespaced is an update of one namespace.
type namespaced struct {
	namespace string
	client.Update
}

// watch follows the namespaces of the workloads until all is done, or fails.
func watch(ctx context.Context, cl *client.Client, t *tracker, v *view) error {
	g, ctx := errgroup.WithContext(ctx)
	updates := make(chan namespaced)
	for namespace := range t.synced {
		only := ""
		if names := t.names(namespace); len(names) == 1 {
			only = names[0]
		}
		g.Go(func() error {
			return cl.Follow(ctx, namespace, only, func(u client.Update) error {
				select {
				case updates <- namespaced{namespace, u}:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
	}
	g.Go(func() error { return follow(ctx, cl, t, v, updates) })
	if err := g.Wait(); !errors.Is(err, errDone) {
		return err
	}
	return nil
}

// redraw is the time between two drawings of the tree, and between two verdicts.
const redraw = 100 * time.Millisecond

func follow(ctx context.Context, cl *client.Client, t *tracker, v *view, updates <-chan namespaced) error {
	ticks := time.NewTicker(redraw)
	defer ticks.Stop()
	fresh := false      // there was an update since the server was asked why workloads are stuck
	var again time.Time // when to ask again without an update; zero for never
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case u := <-updates:
			v.show(t.update(u.namespace, u.Update), u.Update)
			if fresh = true; !u.Synced {
				continue // many may come at once: one verdict is enough
			}
		case <-ticks.C:
			t.watched += redraw
			v.draw()
		}
		switch j := t.judge(); {
		case j.err != nil:
			return j.err
		case j.ended != nil:
			return deploymentError(ctx, cl, j.ended)
		case j.broken != nil:
			return brokenError(ctx, cl, j.of, j.broken)
		case j.done:
			return errDone
		case len(j.stuck) > 0 && (fresh || !again.IsZero() && time.Now().After(again)):
			fresh, again = false, time.Time{}
			offline, err := stuckError(ctx, cl, j.stuck)
			if err == nil {
				continue
			}
			if soon, listErr := backSoon(ctx, cl, offline, time.Now()); !soon || listErr != nil {
				return err
			}
			again = time.Now().Add(time.Second)
		}
	}
}
