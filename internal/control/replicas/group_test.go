package replicas

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// newApplying is a cluster without workloads.
func newApplying(t *testing.T) *deploying {
	w := newWorld(t)
	for _, name := range nodeNames {
		w.addNode(name, "8")
	}
	d := &deploying{world: w, feed: w.store.Follow()}
	d.engine.Begin(d.feed.Newest().Snapshot)
	return d
}

// applied is a workload of a file.
type applied struct {
	name   string
	change func(*v1.WorkloadSpec)
}

func dependsOn(on map[string]string) func(*v1.WorkloadSpec) {
	return func(s *v1.WorkloadSpec) { s.DependsOn = on }
}

func job(s *v1.WorkloadSpec) {
	s.Kind, s.Replicas, s.Restart = spec.KindJob, nil, nil
	proto.Merge(s, spec.Normalized(s))
}

// applyTogether creates or changes workloads by one apply.
func (d *deploying) applyTogether(files ...applied) {
	d.t.Helper()
	group := d.newUID()
	d.change(func(b *state.Batch) {
		for _, f := range files {
			old := d.snap().WorkloadByName("default", f.name)
			w := proto.CloneOf(old)
			if old == nil {
				w = newWorkload(d.newUID(), f.name, 2, "1")
			}
			before := proto.CloneOf(w.GetStatus())
			if f.change != nil {
				f.change(w.Spec)
			}
			d.revise(b, w)
			if spec.HasDeployments(w.GetSpec()) {
				d.recordIn(b, before, w, spec.CauseApply, group)
			}
			if old == nil {
				b.Create(w)
			} else {
				b.Update(w, old.GetMetadata().GetVersion())
			}
		}
	})
}

// newest is the newest deployment of a workload.
func (d *deploying) newest(name string) *v1.Deployment {
	return d.snap().Deployment(d.snap().WorkloadByName("default", name).GetStatus().GetDeploymentUid())
}

func (d *deploying) want(name, phase, reason string) {
	d.t.Helper()
	if got := d.newest(name); got.GetStatus().GetPhase() != phase || !strings.Contains(got.GetStatus().GetReason(), reason) {
		d.t.Fatalf("deployment %s is %s: %q; want %s: %q", got.GetMetadata().GetName(), got.GetStatus().GetPhase(), got.GetStatus().GetReason(), phase, reason)
	}
}

// crash makes the replicas of the current revision of a workload crash.
func (d *deploying) crash(name string) {
	d.t.Helper()
	w := d.snap().WorkloadByName("default", name)
	var b state.Batch
	for old := range d.snap().ReplicasOf(w.GetMetadata().GetUid()) {
		if old.GetSpec().GetRevisionUid() == w.GetStatus().GetRevisionUid() && spec.Live(old.GetStatus().GetPhase()) {
			r := proto.CloneOf(old)
			r.Status.Phase, r.Status.Restarts, r.Status.Reason = spec.PhaseBackoff, 2, "It exited with code 1."
			b.Update(r, old.GetMetadata().GetVersion())
		}
	}
	d.apply(&b)
}

// A deployment waits until the workloads that it depends on are ready, and a job, too.
func TestDeploymentWaitsForItsDependencies(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(
		applied{"web", dependsOn(map[string]string{"db": "ready", "migrate": "completed"})},
		applied{"migrate", func(s *v1.WorkloadSpec) { job(s); dependsOn(map[string]string{"db": "ready"})(s) }},
		applied{"db", nil},
	)
	d.settle()
	d.want("web", spec.DeploymentPending, "waits until workload db is ready")
	if d.running("db") != 2 || d.running("migrate") != 0 || d.running("web") != 0 {
		t.Fatalf("%d of db, %d of migrate and %d of web are there", d.running("db"), d.running("migrate"), d.running("web"))
	}
	d.rest()
	d.want("db", spec.DeploymentSucceeded, "")
	d.want("web", spec.DeploymentPending, "waits until job migrate has completed")
	if d.running("migrate") != 1 || d.running("web") != 0 {
		t.Fatalf("%d of migrate and %d of web are there", d.running("migrate"), d.running("web"))
	}
	d.endRelease("migrate", 0)
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")

	// What happens to db later does not concern web.
	d.crash("db")
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")
	if d.running("web") != 2 {
		t.Errorf("%d of web are there", d.running("web"))
	}
}

// Several may wait for the same workload, and begin to at different times.
func TestAllThatWaitForAWorkloadAreWoken(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"db", nil}, applied{"web", dependsOn(map[string]string{"db": "ready"})})
	d.settle()
	d.applyTogether(applied{"api", dependsOn(map[string]string{"db": "ready"})})
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")
	d.want("api", spec.DeploymentSucceeded, "")
}

// Replicas on offline nodes do not count, so what waits is looked at when a node is back.
func TestReturnOfANodeWakesWhatWaits(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"db", nil})
	d.rest()
	for _, name := range nodeNames {
		d.setNode(name, spec.NodeOffline)
	}
	d.applyTogether(applied{"web", dependsOn(map[string]string{"db": "ready"})})
	d.rest()
	d.want("web", spec.DeploymentPending, "waits until workload db is ready")
	for _, name := range nodeNames {
		d.setNode(name, spec.NodeReady)
	}
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")
}

// A new leader continues to wait, and a rollback waits for nothing.
func TestDependenciesAndChangeOfLeader(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"db", nil}, applied{"web", dependsOn(map[string]string{"db": "ready"})})
	d.settle()
	d.engine = Engine{}
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.settle()
	d.want("web", spec.DeploymentPending, "waits until workload db is ready")
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")
	d.crash("db")
	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		d.revise(b, of)
		d.recordCause(b, before, of, spec.CauseRollback)
	})
	d.settle()
	d.want("web", spec.DeploymentRunning, "")
}

// A deployment fails if a job that it depends on has failed.
func TestFailedJobFailsItsDependents(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"web", nil})
	d.rest()
	d.applyTogether(
		applied{"migrate", func(s *v1.WorkloadSpec) { job(s); s.Job.Retries = proto.Int32(0) }},
		applied{"web", dependsOn(map[string]string{"migrate": "completed"})},
	)
	d.rest()
	d.endRelease("migrate", 1)
	d.rest()
	d.want("web", spec.DeploymentRolledBack, "job migrate, on which it depends, has failed; see: cloudless logs migrate")
	if w := d.web(); w.GetStatus().GetRevision() != 1 || d.running("web") != 2 {
		t.Errorf("web is at revision %d with %d replicas", w.GetStatus().GetRevision(), d.running("web"))
	}
}

// If one deployment of an apply fails, all of them go back: those that have succeeded, and those that have not ended.
// Workloads of other applies stay.
func TestGroupRollsBackTogether(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"api", nil}, applied{"db", nil}, applied{"web", nil})
	d.applyTogether(applied{"other", nil})
	d.rest()
	d.applyTogether(
		applied{"api", func(s *v1.WorkloadSpec) { s.Env = map[string]string{"V": "2"} }},
		applied{"db", dependsOn(map[string]string{"api": "ready"})},
		applied{"web", dependsOn(map[string]string{"db": "ready"})},
	)
	for d.newest("api").GetStatus().GetPhase() != spec.DeploymentSucceeded || d.newest("db").GetStatus().GetPhase() != spec.DeploymentRunning {
		if !d.settle() && !d.work() {
			t.Fatal("api is never deployed")
		}
	}
	d.work()
	d.crash("db")
	d.rest()
	const because = "deployment 2 of workload db, which was applied together with it, was rolled back: "
	d.want("db", spec.DeploymentRolledBack, "ended 3 times")
	d.want("web", spec.DeploymentRolledBack, because)
	d.want("api", spec.DeploymentSucceeded, because)
	for _, name := range []string{"api", "db", "web"} {
		w := d.snap().WorkloadByName("default", name)
		if w.GetStatus().GetRevision() != 1 || d.running(name) != 2 {
			t.Errorf("%s is at revision %d with %d replicas", name, w.GetStatus().GetRevision(), d.running(name))
		}
	}
	if got := d.newest("api").GetSpec(); got.GetNumber() != 3 || got.GetCause() != spec.CauseRollback || got.GetAuthor() != "scheduler" || got.GetGroup() != "" {
		t.Errorf("api went back by %v", got)
	}
	if got := d.newest("other").GetSpec().GetNumber(); got != 1 {
		t.Errorf("the other workload has deployment %d", got)
	}
}

// Workloads that have nothing to go back to stay, and those that have not begun do not begin.
func TestFirstDeploymentsOfAGroupStay(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"api", nil}, applied{"db", nil}, applied{"web", dependsOn(map[string]string{"db": "ready"})})
	d.settle()
	d.work()
	d.work()
	d.crash("db")
	d.rest()
	d.want("db", spec.DeploymentFailed, "ended 3 times")
	d.want("api", spec.DeploymentSucceeded, "")
	d.want("web", spec.DeploymentFailed, "deployment 1 of workload db, which was applied together with it, failed: ")
	if d.running("api") != 2 || d.running("db") != 2 || d.running("web") != 0 {
		t.Errorf("%d of api, %d of db and %d of web are there", d.running("api"), d.running("db"), d.running("web"))
	}
}

// An operator who aborts or replaces one deployment means only that one.
func TestAbortConcernsOneDeployment(t *testing.T) {
	d := newApplying(t)
	d.applyTogether(applied{"api", nil}, applied{"web", nil})
	d.rest()
	d.applyTogether(applied{"api", nil}, applied{"web", nil})
	d.order(func(s *v1.DeploymentSpec) { s.Aborted = true })
	d.rest()
	d.want("web", spec.DeploymentRolledBack, "it was aborted")
	d.want("api", spec.DeploymentSucceeded, "")
	d.applyTogether(applied{"api", nil}, applied{"web", nil})
	d.release()
	d.rest()
	d.want("web", spec.DeploymentSucceeded, "")
	if got := d.newest("api").GetSpec().GetNumber(); got != 3 {
		t.Errorf("api is at deployment %d", got)
	}
}
