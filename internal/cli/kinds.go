package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

// kindFlags are the flags of run for jobs, crons and daemons. The cluster fills in the ones that are not given.
type kindFlags struct {
	kind, schedule, timeZone, deadline string
	completions, parallelism, retries  int32
	// changed are the flags that were given.
	changed func(flag string) bool
}

func (f *kindFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.kind, "kind", "", "`kind` of the workload: service (default), job (runs to completion), cron (creates jobs on a schedule) or daemon (one replica on every suitable node)")
	flags.StringVar(&f.schedule, "schedule", "", "when a cron creates a job, such as \"30 3 * * 1-5\" or @daily; implies --kind cron")
	flags.StringVar(&f.timeZone, "time-zone", "", "time `zone` of the schedule, such as Europe/Berlin (default: UTC)")
	flags.Int32Var(&f.completions, "completions", 1, "how many replicas of a job must complete")
	flags.Int32Var(&f.parallelism, "parallelism", 0, "how many replicas of a job run at once (default: as many as must complete)")
	flags.Int32Var(&f.retries, "retries", 3, "how many replicas of a job may fail")
	flags.StringVar(&f.deadline, "deadline", "", "`time` after which a job fails, such as 1h (default: no limit)")
}

// apply puts the given flags into a spec.
func (f *kindFlags) apply(s *cloudlessv1.WorkloadSpec, replicas int32) {
	s.Kind = f.kind
	if s.Kind == "" && f.schedule != "" {
		s.Kind = spec.KindCron
	}
	if s.Kind == "" || s.Kind == "service" || f.changed("replicas") {
		s.Replicas = &replicas
	}
	if f.schedule != "" || f.timeZone != "" {
		s.Cron = &cloudlessv1.Cron{Schedule: f.schedule, TimeZone: f.timeZone}
	}
	if !slices.ContainsFunc([]string{"completions", "parallelism", "retries", "deadline"}, f.changed) {
		return
	}
	s.Job = &cloudlessv1.Job{Deadline: f.deadline}
	if f.changed("completions") {
		s.Job.Completions = proto.Int32(f.completions)
	}
	if f.changed("parallelism") {
		s.Job.Parallelism = proto.Int32(f.parallelism)
	}
	if f.changed("retries") {
		s.Job.Retries = proto.Int32(f.retries)
	}
}

func (c *cli) workloadRunCommand() *cobra.Command {
	var w wait.Flags
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a cron's job now",
		Long: "Run creates a job of a cron now, whatever its schedule and overlap policy say, even if the cron is suspended.\n" +
			"It waits until the job is done, and fails if the job fails. If the wait ends early, the job keeps running.",
		Example: "  cloudless workload run backup\n  cloudless workload run backup --wait=false",
		Args:    command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeWorkload(w, plainly("made"), func(ctx context.Context, cl *client.Client) (*cloudlessv1.Workload, error) {
				return cl.Workloads().RunWorkload(ctx, &cloudlessv1.RunWorkloadRequest{Namespace: c.Namespace, Name: args[0]})
			})(cmd, args)
		},
	}
	w.Register(cmd, "the job is done")
	return cmd
}

// reasonOf is the reason in a workload's status or, for a healthy cron, its last and next run.
func reasonOf(w *cloudlessv1.Workload, now time.Time) string {
	if scale := w.GetStatus().GetScale(); w.GetStatus().GetReason() == "" && w.GetSpec().GetAutoscale() != nil {
		return scale.GetReason()
	}
	if status := w.GetStatus(); status.GetReason() != "" || phrase.KindOf(w) != spec.KindCron {
		return status.GetReason()
	}
	var parts []string
	if next := w.GetStatus().GetCron().GetNextRun(); next != nil {
		parts = append(parts, "next in "+command.Age(timestamppb.New(now), next.AsTime()))
	}
	if last := w.GetStatus().GetCron().GetLastRun(); last != nil {
		parts = append(parts, "last "+command.Age(last, now)+" ago")
	}
	return strings.Join(parts, ", ")
}

// kindFacts are the part of a description that depends on the kind.
func kindFacts(f *terminal.Facts, w *cloudlessv1.Workload) {
	status, s := w.GetStatus(), w.GetSpec()
	f.Add("Kind", phrase.KindOf(w))
	f.Add("Owner", status.GetOwner())
	switch phrase.KindOf(w) {
	case spec.KindJob:
		f.Add("Job", fmt.Sprintf("%d of %d completed, %d failed, %d running", status.GetJob().GetSucceeded(), status.GetDesired(), status.GetJob().GetFailed(), status.GetRunning()))
		jobFacts(f, s.GetJob())
		if end := status.GetJob().GetEndTime(); end != nil {
			f.Add("Ended", command.Age(end, time.Now())+" ago")
		}
	case spec.KindCron:
		cron := status.GetCron()
		f.Add("Schedule", s.GetCron().GetSchedule()+" in "+s.GetCron().GetTimeZone())
		f.Add("Overlap", s.GetCron().GetOverlap())
		if s.GetCron().GetSuspend() {
			f.Add("Suspended", "yes")
		}
		f.Add("Active", fmt.Sprint(cron.GetActive()))
		if cron.GetLastRun() != nil {
			f.Add("Last run", zoned(cron.GetLastRun(), s.GetCron().GetTimeZone()))
		}
		if cron.GetNextRun() != nil {
			f.Add("Next run", zoned(cron.GetNextRun(), s.GetCron().GetTimeZone()))
		}
		jobFacts(f, s.GetJob())
	default:
		f.Add("Replicas", fmt.Sprintf("%d running of %d, %d pending, %d failed", status.GetRunning(), phrase.Desired(w), status.GetPending(), status.GetFailed()))
		scaleFacts(f, w)
	}
}

// scaleFacts are what a description says about autoscaling.
func scaleFacts(f *terminal.Facts, w *cloudlessv1.Workload) {
	if w.GetSpec().GetAutoscale() == nil {
		return
	}
	scale := w.GetStatus().GetScale()
	f.Add("Scaled", spec.ScalingOf(w.GetSpec()).String())
	var measured []string
	for _, v := range scale.GetValues() {
		text := fmt.Sprintf("%s %s, should be %s", v.GetTarget(), cmp.Or(v.GetValue(), "unknown"), v.GetGoal())
		if v.GetProblem() != "" {
			text += " (" + v.GetProblem() + ")"
		}
		measured = append(measured, text)
	}
	f.Add("Measured", strings.Join(measured, "; "))
	if reason := scale.GetReason(); reason != "" {
		if scale.GetTime() != nil {
			reason = command.Age(scale.GetTime(), time.Now()) + " ago " + reason
		}
		f.Add("Last change", reason)
	}
}

func jobFacts(f *terminal.Facts, j *cloudlessv1.Job) {
	f.Add("Completions", fmt.Sprintf("%d, %d at once, %d may fail", j.GetCompletions(), j.GetParallelism(), j.GetRetries()))
	f.Add("Deadline", j.GetDeadline())
}

// zoned formats a time in a time zone.
func zoned(at *timestamppb.Timestamp, zone string) string {
	t := at.AsTime()
	if place, err := time.LoadLocation(zone); err == nil {
		t = t.In(place)
	}
	return t.Format("2006-01-02 15:04 MST")
}

// showRuns lists the jobs of a cron.
func (c *cli) showRuns(ctx context.Context, cl *client.Client, cron *cloudlessv1.Workload) error {
	if phrase.KindOf(cron) != spec.KindCron {
		return nil
	}
	all, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Workload, string, error) {
		answer, err := cl.Workloads().ListWorkloads(ctx, &cloudlessv1.ListWorkloadsRequest{
			Selection: &cloudlessv1.Selection{Namespace: cron.GetMetadata().GetNamespace()}, Page: page,
		})
		return answer.GetItems(), answer.GetNext(), err
	})
	if err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "NAME", "PHASE", "DONE", "AGE", "REASON")
	for _, run := range all {
		if run.GetStatus().GetOwnerUid() == cron.GetMetadata().GetUid() {
			t.Row(run.GetMetadata().GetName(), run.GetStatus().GetPhase(), phrase.Progress(run), command.Age(run.GetMetadata().GetCreateTime(), time.Now()), run.GetStatus().GetReason())
		}
	}
	if t.Empty() {
		return nil
	}
	return c.Section("Jobs", t)
}
