package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func kinded(kind string, change func(*v1.WorkloadSpec)) *v1.Workload {
	s := &v1.WorkloadSpec{Image: "hello:1", Kind: kind}
	if kind == KindCron {
		s.Cron = &v1.Cron{Schedule: "@daily"}
	}
	if change != nil {
		change(s)
	}
	return &v1.Workload{Metadata: &v1.Metadata{Name: "work"}, Spec: s}
}

func TestKindsHaveDefaults(t *testing.T) {
	job := Normalized(kinded(KindJob, func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Completions: proto.Int32(4), Deadline: "90m"} }).GetSpec())
	want := &v1.Job{Completions: proto.Int32(4), Parallelism: proto.Int32(4), Retries: proto.Int32(3), Deadline: "1h30m"}
	if !proto.Equal(job.GetJob(), want) || job.GetRestart().GetPolicy() != "never" || job.Replicas != nil || job.GetRestart().GetReset_() != "" {
		t.Errorf("a job becomes %v", job)
	}
	cron := Normalized(kinded(KindCron, nil).GetSpec())
	if c := cron.GetCron(); c.GetTimeZone() != "UTC" || c.GetOverlap() != "skip" || c.GetKeepSucceeded() != 3 || c.GetKeepFailed() != 3 || cron.GetJob().GetCompletions() != 1 {
		t.Errorf("a cron becomes %v", cron)
	}
	daemon := Normalized(kinded(KindDaemon, nil).GetSpec())
	if daemon.Replicas != nil || daemon.GetRestart().GetPolicy() != "always" {
		t.Errorf("a daemon becomes %v", daemon)
	}
	service := Normalized(kinded("service", nil).GetSpec())
	if service.GetKind() != "" || service.GetReplicas() != 1 || KindOf(service) != "service" {
		t.Errorf("a service becomes %v", service)
	}
	for _, s := range []*v1.WorkloadSpec{job, cron, daemon, service} {
		if again := Normalized(s); !proto.Equal(again, s) {
			t.Errorf("what is in canonical form changes from %v to %v", s, again)
		}
		if err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "work"}, Spec: s}); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	}
}

// Defaults in the cluster's configuration do not make a job invalid.
func TestClusterDefaultsFitEveryKind(t *testing.T) {
	d := &v1.WorkloadDefaults{Restart: &v1.Restart{Policy: "on-failure", Backoff: "2s", MaxBackoff: "10s", Reset_: "1m"}}
	for _, kind := range []string{"", KindJob, KindCron, KindDaemon} {
		w := kinded(kind, nil)
		FillDefaults(w.Spec, d)
		if err := Validate(w); err != nil {
			t.Errorf("%s: %v", KindOf(w.GetSpec()), err)
		}
		if w.GetSpec().GetRestart().GetBackoff() != "2s" {
			t.Errorf("%s: the pause is %s", KindOf(w.GetSpec()), w.GetSpec().GetRestart().GetBackoff())
		}
	}
}

func TestFieldsOfOtherKindsAreRefused(t *testing.T) {
	long := strings.Repeat("a", 50)
	for _, c := range []struct {
		name   string
		of     *v1.Workload
		want   string
		change func(*v1.Workload)
	}{
		{
			"replicas of a job", kinded(KindJob, func(s *v1.WorkloadSpec) { s.Replicas = proto.Int32(2) }),
			"spec.replicas: is not for a job: job.completions says how many must complete, and job.parallelism how many run at once; leave it out", nil,
		},
		{
			"replicas of a daemon", kinded(KindDaemon, func(s *v1.WorkloadSpec) { s.Replicas = proto.Int32(2) }),
			"spec.replicas: is not for a daemon: it has one on every node that suits; leave it out", nil,
		},
		{
			"a job that always restarts", kinded(KindJob, func(s *v1.WorkloadSpec) { s.Restart = &v1.Restart{Policy: "always"} }),
			"spec.restart.policy: must be never for kind job, or left out: what fails is replaced by another replica as often as job.retries says", nil,
		},
		{
			"a daemon that ends", kinded(KindDaemon, func(s *v1.WorkloadSpec) { s.Restart = &v1.Restart{Policy: "never"} }),
			"spec.restart.policy: must be always for kind daemon, or left out; what has an end is a job", nil,
		},
		{
			"a daemon that is spread", kinded(KindDaemon, func(s *v1.WorkloadSpec) { s.Placement = &v1.Placement{Spread: []*v1.Spread{{}}} }),
			"spec.placement.spread: is not for kind daemon, which is on every node that suits; leave it out", nil,
		},
		{
			"a service with retries", kinded("", func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Retries: proto.Int32(1)} }),
			"spec.job: is only for kind job or cron; set kind: job, or leave it out", nil,
		},
		{
			"a job with a schedule", kinded(KindJob, func(s *v1.WorkloadSpec) { s.Cron = &v1.Cron{Schedule: "@daily"} }),
			"spec.cron: is only for kind cron; set kind: cron, or leave it out", nil,
		},
		{
			"a cron without one", kinded(KindCron, func(s *v1.WorkloadSpec) { s.Cron = nil }),
			`spec.cron.schedule: is missing: write when it runs, such as "30 3 * * *" or @daily`, nil,
		},
		{
			"a cron at no time", kinded(KindCron, func(s *v1.WorkloadSpec) { s.Cron.Schedule = "0 25 * * *" }),
			`spec.cron.schedule: has the hour "25", which must be between 0 and 23`, nil,
		},
		{
			"a cron nowhere", kinded(KindCron, func(s *v1.WorkloadSpec) { s.Cron.TimeZone = "Berlin" }),
			`spec.cron.timeZone: "Berlin" is not known; write the name of a time zone such as Europe/Berlin or UTC`, nil,
		},
		{
			"a cron with a long name", kinded(KindCron, nil),
			"metadata.name: must have at most 49 characters for a cron: its jobs have the name with a time behind it",
			func(w *v1.Workload) { w.Metadata.Name = long },
		},
		{
			"more at once than in all", kinded(KindJob, func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Completions: proto.Int32(2), Parallelism: proto.Int32(3)} }),
			"spec.job.parallelism: must be at most completions: 3 is more than 2", nil,
		},
		{
			"no time at all", kinded(KindJob, func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Deadline: "0s"} }),
			"spec.job.deadline: must be more than 0; leave it out for none", nil,
		},
		{"an unknown kind", kinded("batch", nil), "spec.kind: must be service, job, cron or daemon", nil},
		{"minAvailable of more", kinded("", func(s *v1.WorkloadSpec) { s.Replicas, s.MinAvailable = proto.Int32(2), 3 }), "spec.minAvailable: must be at most the number of replicas: 3 is more than 2; lower it or ask for more replicas", nil},
		{"minAvailable of more than the one replica by default", kinded("", func(s *v1.WorkloadSpec) { s.Replicas, s.MinAvailable = nil, 2 }), "spec.minAvailable: must be at most the number of replicas: 2 is more than 1; lower it or ask for more replicas", nil},
		{"minAvailable of a job", kinded(KindJob, func(s *v1.WorkloadSpec) { s.MinAvailable = 1 }), "spec.minAvailable: is only for services; leave it out", nil},
	} {
		if c.change != nil {
			c.change(c.of)
		}
		if err := Validate(c.of); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// A service may keep all of its replicas, and a stopped one may say how many it will keep.
func TestMinAvailableOfAllReplicasAndOfAStoppedService(t *testing.T) {
	for _, replicas := range []int32{2, 0} {
		w := kinded("", func(s *v1.WorkloadSpec) { s.Replicas, s.MinAvailable = new(replicas), 2 })
		if err := Validate(w); err != nil {
			t.Errorf("with %d replicas: %v", replicas, err)
		}
	}
}
