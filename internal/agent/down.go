package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// DownOptions configures Down.
type DownOptions struct {
	// DataDir and Drivers are those of the agent, which must not run.
	DataDir string
	Drivers []driver.Driver
	// BootID is unique to this boot.
	BootID string
	Logger *slog.Logger
}

// maxParallelStops bounds how many replicas are stopped in parallel. Most of the time is spent
// waiting.
const maxParallelStops = 64

// downReason is why a replica that may never be restarted has failed.
const downReason = "It was stopped by cloudless down, and its restart policy is never."

// Down stops and removes every task on this machine, each with its replica's signal and
// grace period, and records that this was on purpose. For the next agent it is like a
// reboot: what ran is started again, without counting an exit or a restart; replicas that
// may never be restarted have failed.
//
// An unreadable or unwritable record does not keep a task from being stopped.
func Down(ctx context.Context, opts DownOptions) error {
	if opts.DataDir == "" || len(opts.Drivers) == 0 || opts.BootID == "" || opts.Logger == nil {
		return errors.New("down: options DataDir, Drivers, BootID and Logger are needed")
	}
	byReplica, err := tasksByReplica(ctx, opts.Drivers)
	if err != nil {
		return err
	}
	s := &store{dir: filepath.Join(opts.DataDir, storeDir)}
	errs := make(chan error, len(byReplica))
	var g errgroup.Group // without a context: one failure must not keep other replicas from being stopped
	g.SetLimit(maxParallelStops)
	for uid, tasks := range byReplica {
		log := opts.Logger.With("replica", uid)
		g.Go(func() error {
			errs <- stopReplica(ctx, s, uid, opts.BootID, tasks, log)
			return nil
		})
	}
	_ = g.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// tasksByReplica groups tasks by replica. Each task without a replica is a group of its
// own.
func tasksByReplica(ctx context.Context, drivers []driver.Driver) (map[string][]foundTask, error) {
	byReplica := map[string][]foundTask{}
	for _, d := range drivers {
		list, err := d.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the tasks of driver %s: %w", d.Name(), err)
		}
		for _, status := range list {
			task, ours := identify(d, status)
			if !ours {
				task.replica = "of task " + status.ID // which has no record
			}
			byReplica[task.replica] = append(byReplica[task.replica], task)
		}
	}
	return byReplica, nil
}

// stopReplica stops, then records, then removes. After a crash anywhere in between, the
// next agent or the next Down resumes from there.
func stopReplica(ctx context.Context, s *store, uid, boot string, tasks []foundTask, log *slog.Logger) error {
	rec, err := s.read(uid)
	recorded := err == nil
	if !recorded {
		log.Warn("cannot read how to stop the replica; using the defaults", "error", err)
		rec = &record{}
	}
	for _, task := range tasks {
		if task.status.State != driver.StateRunning {
			continue
		}
		err := stop(ctx, task.driver, task.status.ID, rec.Assignment)
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			log.Warn("cannot stop the task; killing it", "task", task.status.ID, "error", err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stop replica %s: %w", uid, ctx.Err())
	}
	if recorded {
		stopped := rec.afterDown(boot, tasks, time.Now())
		if err := s.save(&stopped); err != nil {
			log.Warn("cannot record that the replica was stopped on purpose; it will count as a restart", "error", err)
		}
	}
	var errs []error
	for _, task := range tasks {
		errs = append(errs, task.driver.Remove(ctx, task.status.ID))
	}
	return errors.Join(errs...)
}

// afterDown is the record after the replica's tasks were stopped on purpose. tasks has at least
// one, each as it was before. A task that had ended by itself keeps its outcome.
func (r *record) afterDown(boot string, tasks []foundTask, now time.Time) record {
	next, _ := resume(*r, boot, tasks, now)
	present := slices.IndexFunc(tasks, func(t foundTask) bool { return t.attempt == next.Attempt })
	if next.Status.GetPhase() != spec.PhaseRunning || present < 0 {
		return next
	}
	wanted := desired{assignment: next.Assignment, removed: next.Removed}
	switch status := tasks[present].status; {
	case status.Exit != nil:
		next.exited(next.seenExit(*status.Exit), false)
	case wanted.stop():
		next.Started = false
		next.Status.Phase, next.Status.Pid = spec.PhaseStopping, 0
	default:
		next.interrupted(downReason, now)
	}
	return next
}
