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
)

// RestOptions are what Rest needs from outside.
type RestOptions struct {
	// DataDir and Drivers are those of the agent, which must not run.
	DataDir string
	Drivers []driver.Driver
	// BootID tells this boot from every other.
	BootID string
	Logger *slog.Logger
}

// restsAtOnce bounds the replicas that are stopped at the same time. Most of
// that time they are only waited for.
const restsAtOnce = 64

// restReason is why a replica has failed that was at rest and may never be
// restarted.
const restReason = "It was stopped by cloudless down, and its restart policy is never."

// Rest stops and removes every task on this machine, each by the signal and
// within the grace of its replica, and notes that this was on purpose. For the
// next agent it is like a reboot: what ran is started again, and that counts
// neither as an exit nor as a restart; what may never be restarted has failed.
//
// What cannot be read or noted keeps no task from being stopped.
func Rest(ctx context.Context, opts RestOptions) error {
	if opts.DataDir == "" || len(opts.Drivers) == 0 || opts.BootID == "" || opts.Logger == nil {
		return errors.New("rest: options DataDir, Drivers, BootID and Logger are needed")
	}
	byReplica, err := tasksByReplica(ctx, opts.Drivers)
	if err != nil {
		return err
	}
	s := &store{dir: filepath.Join(opts.DataDir, storeDir)}
	errs := make(chan error, len(byReplica))
	var g errgroup.Group // without a context: one failure keeps no other replica from being stopped
	g.SetLimit(restsAtOnce)
	for uid, tasks := range byReplica {
		log := opts.Logger.With("replica", uid)
		g.Go(func() error {
			errs <- restReplica(ctx, s, uid, opts.BootID, tasks, log)
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

// tasksByReplica has the tasks of nobody's replica too, each by itself.
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

// restReplica stops, then notes, then removes: wherever a crash comes between,
// the next agent or the next Rest goes on from there.
func restReplica(ctx context.Context, s *store, uid, boot string, tasks []foundTask, log *slog.Logger) error {
	rec, err := s.read(uid)
	recorded := err == nil
	if !recorded {
		log.Warn("stopping a replica without knowing how it wants to be stopped", "error", err)
		rec = &record{}
	}
	for _, task := range tasks {
		if task.status.State != driver.StateRunning {
			continue
		}
		err := stop(ctx, task.driver, task.status.ID, rec.Assignment)
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			log.Warn("task could not be stopped and is killed", "task", task.status.ID, "error", err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stop replica %s: %w", uid, ctx.Err())
	}
	if recorded {
		rested := rec.rest(boot, tasks, time.Now())
		if err := s.save(&rested); err != nil {
			log.Warn("that the replica was stopped on purpose cannot be noted; it will count as a restart", "error", err)
		}
	}
	var errs []error
	for _, task := range tasks {
		errs = append(errs, task.driver.Remove(ctx, task.status.ID))
	}
	return errors.Join(errs...)
}

// rest is where the replica stands once its tasks, of which it has at least one
// and which are given as they were before, have been stopped on purpose. What
// had ended by itself has ended so.
func (r *record) rest(boot string, tasks []foundTask, now time.Time) record {
	next, _ := resume(*r, boot, tasks, now)
	present := slices.IndexFunc(tasks, func(t foundTask) bool { return t.attempt == next.Attempt })
	if next.Status.GetPhase() != phaseRunning || present < 0 {
		return next
	}
	wanted := wish{assignment: next.Assignment, removed: next.Removed}
	switch status := tasks[present].status; {
	case status.Exit != nil:
		next.exited(next.seenExit(*status.Exit))
	case wanted.stop():
		next.Started = false
		next.Status.Phase, next.Status.Pid = phaseStopping, 0
	default:
		next.interrupted(restReason, now)
	}
	return next
}
