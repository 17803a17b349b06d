package spec

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/crontab"
)

// The kinds of workloads beside services. A service leaves the kind empty, so that it has
// one form.
const (
	kindService = "service"
	// KindJob runs until its work is done.
	KindJob = "job"
	// KindCron creates jobs at certain times.
	KindCron = "cron"
	// KindDaemon has one replica on every suitable node.
	KindDaemon = "daemon"
)

var workloadKinds = []string{kindService, KindJob, KindCron, KindDaemon}

// KindOf is the kind of a workload in words: "service" if it is empty.
func KindOf(s *v1.WorkloadSpec) string {
	if s.GetKind() == "" {
		return kindService
	}
	return s.GetKind()
}

// runsOnce is the restart policy of jobs: failed replicas are replaced and not restarted.
const runsOnce = "never"

// Defaults of jobs and crons.
const (
	defaultCompletions = 1
	defaultRetries     = 3
	defaultKept        = 3
	defaultOverlap     = "skip"
)

// What a cron does if an earlier job is still running.
const (
	OverlapSkip    = defaultOverlap
	OverlapAllow   = "allow"
	OverlapReplace = "replace"
)

// RunSuffix is how much longer the name of a job is than that of its cron, at most.
const RunSuffix = len("-20060102-1504")

const maxName = 63

// normalKind fills in what follows from the kind.
func normalKind(s *v1.WorkloadSpec) {
	switch s.Kind {
	case kindService, "":
		s.Kind = ""
		if s.Replicas == nil {
			s.Replicas = proto.Int32(1)
		}
	case KindJob, KindCron:
		fill(&s.Restart.Policy, runsOnce)
		normalJob(s)
		if s.Cron != nil {
			normalCron(s.Cron)
		}
	}
	fill(&s.Restart.Policy, defaultPolicy)
	normalDuration(&s.Restart.Backoff, defaultBackoff)
	normalDuration(&s.Restart.MaxBackoff, defaultMaxBackoff)
	if !RunsToEnd(s) {
		normalDuration(&s.Restart.Reset_, defaultReset)
	}
}

// RunsToEnd reports whether replicas are not restarted in place.
func RunsToEnd(s *v1.WorkloadSpec) bool { return s.GetKind() == KindJob || s.GetKind() == KindCron }

func normalJob(s *v1.WorkloadSpec) {
	if s.Job == nil {
		s.Job = &v1.Job{}
	}
	j := s.Job
	if j.Completions == nil {
		j.Completions = proto.Int32(defaultCompletions)
	}
	if j.Parallelism == nil {
		j.Parallelism = proto.Int32(j.GetCompletions())
	}
	if j.Retries == nil {
		j.Retries = proto.Int32(defaultRetries)
	}
	if j.Deadline != "" {
		normalDuration(&j.Deadline, "")
	}
}

func normalCron(c *v1.Cron) {
	fill(&c.TimeZone, "UTC")
	fill(&c.Overlap, defaultOverlap)
	if c.KeepSucceeded == nil {
		c.KeepSucceeded = proto.Int32(defaultKept)
	}
	if c.KeepFailed == nil {
		c.KeepFailed = proto.Int32(defaultKept)
	}
	if c.StartDeadline != "" {
		normalDuration(&c.StartDeadline, "")
	}
}

// Size is how many replicas a workload has at a time or keeps as a proof of its work,
// whichever is more; 0 for a daemon, which has as many as nodes.
func Size(s *v1.WorkloadSpec) int32 {
	if RunsToEnd(s) {
		return Normalized(s).GetJob().GetCompletions()
	}
	return max(s.GetReplicas(), s.GetAutoscale().GetMax())
}

// JobOf is a job in numbers. The spec is in canonical form.
func JobOf(s *v1.WorkloadSpec) (completions, parallelism, retries int, deadline time.Duration) {
	j := s.GetJob()
	deadline, _ = ParseDuration(j.GetDeadline()) // none, or valid
	return int(j.GetCompletions()), int(j.GetParallelism()), int(j.GetRetries()), deadline
}

// BackoffOf is the first and the longest pause before a failed replica is replaced. The
// spec is in canonical form.
func BackoffOf(s *v1.WorkloadSpec) (first, longest time.Duration) {
	first, _ = ParseDuration(s.GetRestart().GetBackoff())
	longest, _ = ParseDuration(s.GetRestart().GetMaxBackoff())
	return first, longest
}

// checkKind refuses what makes no sense for a kind. It gets what the author wrote and its
// canonical form.
func checkKind(name string, written, s *v1.WorkloadSpec, found *violations) {
	switch s.Kind {
	case "":
		if written.GetJob() != nil {
			found.add("spec.job", "is only for kind job or cron; set kind: job, or leave it out")
		}
		if written.GetCron() != nil {
			found.add("spec.cron", "is only for kind cron; set kind: cron, or leave it out")
		}
		if words := TooFew(s, s.GetReplicas()); words != "" && s.GetAutoscale() == nil && !found.has("spec.minAvailable") && !found.has("spec.replicas") {
			found.add("spec.minAvailable", "%s; lower it or ask for more replicas", words)
		}
	case KindJob:
		checkNoService(written, "a job: job.completions says how many must complete, and job.parallelism how many run at once", found)
		checkJob(s, found)
		if written.GetCron() != nil {
			found.add("spec.cron", "is only for kind cron; set kind: cron, or leave it out")
		}
	case KindCron:
		checkNoService(written, "a cron: job.completions says how many must complete, and job.parallelism how many run at once", found)
		checkJob(s, found)
		checkCron(s.Cron, found)
		if longest := maxName - RunSuffix; len(name) > longest {
			found.add("metadata.name", "must have at most %d characters for a cron: its jobs have the name with a time behind it", longest)
		}
	case KindDaemon:
		checkNoService(written, "a daemon: it has one on every node that suits", found)
		checkDaemon(written, s, found)
		if written.GetLostAfter() != "" {
			found.add("spec.lostAfter", "is not for a daemon, whose replicas cannot go to another node; leave it out")
		}
	}
}

// TooFew says that a service with so many replicas could not keep its minAvailable, because
// none of them could ever be preempted. It is empty if the service could. A stopped
// service, with no replicas, has nothing to keep.
func TooFew(s *v1.WorkloadSpec, replicas int32) string {
	if replicas == 0 || s.GetMinAvailable() <= replicas {
		return ""
	}
	return fmt.Sprintf("must be at most the number of replicas: %d is more than %d", s.GetMinAvailable(), replicas)
}

// checkNoService refuses fields that only services have.
func checkNoService(written *v1.WorkloadSpec, why string, found *violations) {
	if written.Replicas != nil {
		found.add("spec.replicas", "is not for %s; leave it out", why)
	}
	if written.GetMinAvailable() != 0 {
		found.add("spec.minAvailable", "is only for services; leave it out")
	}
}

func checkJob(s *v1.WorkloadSpec, found *violations) {
	if s.Restart.Policy != runsOnce {
		found.add("spec.restart.policy", "must be never for kind %s, or left out: what fails is replaced by another replica as often as job.retries says", s.Kind)
	}
	if s.Restart.Reset_ != "" {
		found.add("spec.restart.reset", "is not for kind %s, which restarts nothing in place; leave it out", s.Kind)
	}
	if c, p := s.Job.GetCompletions(), s.Job.GetParallelism(); p > c && !found.has("spec.job.parallelism") && !found.has("spec.job.completions") {
		found.add("spec.job.parallelism", "must be at most completions: %d is more than %d", p, c)
	}
	if d, ok := readAmount("spec.job.deadline", s.Job.GetDeadline(), ParseDuration, found); ok && d == 0 {
		found.add("spec.job.deadline", "must be more than 0; leave it out for none")
	}
}

func checkCron(c *v1.Cron, found *violations) {
	if c.GetSchedule() == "" {
		found.add("spec.cron.schedule", "is missing: write when it runs, such as \"30 3 * * *\" or @daily")
	} else if _, err := crontab.Parse(c.GetSchedule()); err != nil {
		found.add("spec.cron.schedule", "%v", err)
	}
	if _, err := crontab.Zone(c.GetTimeZone()); err != nil {
		found.add("spec.cron.timeZone", "%v", err)
	}
	if d, ok := readAmount("spec.cron.startDeadline", c.GetStartDeadline(), ParseDuration, found); ok && d == 0 {
		found.add("spec.cron.startDeadline", "must be more than 0; leave it out for none")
	}
}

func checkDaemon(written, s *v1.WorkloadSpec, found *violations) {
	if s.Restart.Policy != defaultPolicy {
		found.add("spec.restart.policy", "must be always for kind daemon, or left out; what has an end is a job")
	}
	if written.GetJob() != nil {
		found.add("spec.job", "is only for kind job or cron; leave it out")
	}
	if written.GetCron() != nil {
		found.add("spec.cron", "is only for kind cron; leave it out")
	}
	const path = "spec.placement."
	p := s.GetPlacement()
	for _, one := range []struct {
		field string
		set   bool
	}{
		{"prefer", len(p.GetPrefer()) > 0},
		{"spread", len(p.GetSpread()) > 0},
		{"strategy", p.GetStrategy() != ""},
		{"weights", p.GetWeights() != nil},
		{"nearRegion", p.GetNearRegion() != ""},
		{"nearZone", p.GetNearZone() != ""},
	} {
		if one.set {
			found.add(path+one.field, "is not for kind daemon, which is on every node that suits; leave it out")
		}
	}
}

// What a workload that depends on another one waits for.
const (
	DependsReady     = "ready"
	DependsCompleted = "completed"
)

// checkDependsOn refuses dependencies that could never be met, as far as one workload tells.
func checkDependsOn(name string, s *v1.WorkloadSpec, found *violations) {
	const path = "spec.dependsOn"
	if len(s.GetDependsOn()) > 0 && s.GetKind() == KindCron {
		found.add(path, "is not for kind cron, whose jobs start by the clock; leave it out")
	}
	if _, itself := s.GetDependsOn()[name]; itself {
		found.add(path, "names the workload itself, which would wait for itself forever; leave %s out", name)
	}
}

// DependencyCycle is a chain of workloads that depend on each other in a circle, from a workload back to itself. It is
// empty if there is none. dependsOn lists what the workload with a name depends on.
func DependencyCycle(start string, dependsOn func(name string) []string) []string {
	done := map[string]bool{}
	var walk func(name string, chain []string) []string
	walk = func(name string, chain []string) []string {
		chain = append(chain, name)
		for _, next := range dependsOn(name) {
			if next == start {
				return append(chain, start)
			}
			if done[next] {
				continue
			}
			done[next] = true
			if cycle := walk(next, chain); cycle != nil {
				return cycle
			}
		}
		return nil
	}
	return walk(start, nil)
}
