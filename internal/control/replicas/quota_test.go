package replicas

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// configure sets the configuration of the cluster.
func (w *world) configure(s *v1.ClusterSpec) {
	w.t.Helper()
	old := w.snap().Cluster()
	w.change(func(b *state.Batch) {
		if old == nil {
			b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: w.newUID(), Name: "cluster"}, Spec: s})
			return
		}
		changed := proto.CloneOf(old)
		changed.Spec = s
		b.Update(changed, changed.GetMetadata().GetVersion())
	})
}

// quota sets the quota of the default namespace; nil removes it.
func (w *world) quota(q *v1.Quota) {
	w.t.Helper()
	old := w.snap().NamespaceByName(spec.DefaultNamespace)
	w.change(func(b *state.Batch) {
		if old == nil {
			b.Create(&v1.Namespace{
				Metadata: &v1.Metadata{Uid: w.newUID(), Name: spec.DefaultNamespace}, Spec: &v1.NamespaceSpec{Quota: q},
			})
			return
		}
		n := proto.CloneOf(old)
		n.Spec = &v1.NamespaceSpec{Quota: q}
		b.Update(n, old.GetMetadata().GetVersion())
	})
}

// setQuota applies a step: a quota of replicas and CPU, none for 6.
func (w *world) setQuota(replicas int32, cpu string) {
	if replicas == 6 {
		w.quota(nil)
		return
	}
	w.quota(&v1.Quota{Replicas: new(int64(replicas) * 2), Cpu: cpu + "0"})
}

// checkQuota: a new placement is within the quota.
func (w *world) checkQuota(r *v1.Replica) {
	w.t.Helper()
	n := w.snap().NamespaceByName(r.GetMetadata().GetNamespace())
	if over := (Placement{}).Used(w.snap(), n).GetOver(); len(over) > 0 {
		w.t.Fatalf("%s was placed, and now there is %v", r.GetMetadata().GetName(), over)
	}
}

// A replica beyond the quota waits, even if there is room, and says why. A higher quota
// wakes it.
func TestReplicasBeyondTheQuotaWait(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Replicas: new(int64(2))})
	w.addWorkload("web", 3, "1")
	d := drive(w)
	d.rest()
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	const why = "the quota of namespace default is used up: has 2 of at most 2 replicas"
	if got := w.phases("web"); got[spec.PhaseRunning] != 2 || got[spec.PhasePending] != 1 {
		t.Fatalf("web is %v", got)
	}
	for r := range w.snap().ReplicasOn("") {
		if got := r.GetStatus().GetReason(); got != "1 replica of web cannot be placed: "+why {
			t.Errorf("the reason is %q", got)
		}
	}
	if got := (Placement{}).ShortOfQuota(w.snap(), uid); got != why {
		t.Errorf("short of %q", got)
	}
	if got := (Placement{}).Explain(w.snap(), uid); len(got) != 0 {
		t.Errorf("nodes are blamed: %v", got)
	}
	if got := (Placement{}).Pending(w.snap()); got["quota"] != 1 {
		t.Errorf("pending is counted as %v", got)
	}

	// A change of the namespace's labels triggers nothing, a new quota does.
	labelled := proto.CloneOf(w.snap().NamespaceByName("default"))
	labelled.Metadata.Labels = map[string]string{"team": "shop"}
	w.change(func(b *state.Batch) { b.Update(labelled, labelled.GetMetadata().GetVersion()) })
	if news := d.loop.feed.Newest(); d.loop.engine.memory.after(news.Changes).Placement {
		t.Errorf("a label makes placement due")
	}
	w.quota(&v1.Quota{Replicas: new(int64(3))})
	due := d.follow()
	if !due.Workloads[uid] {
		t.Fatalf("a higher quota makes due %v", due)
	}
	d.settleLoop()
	d.rest()
	if got := w.phases("web"); got[spec.PhaseRunning] != 3 {
		t.Errorf("with a higher quota web is %v", got)
	}

	// A lower quota stops nothing. A replica that ends returns its share.
	w.quota(&v1.Quota{Replicas: new(int64(1))})
	d.rest()
	if got := w.phases("web"); got[spec.PhaseRunning] != 3 {
		t.Errorf("with a lower quota web is %v", got)
	}
	w.scale("web", 1)
	d.rest()
	w.addWorkload("other", 1, "1")
	d.rest()
	if got := w.phases("other"); got[spec.PhasePending] != 1 {
		t.Errorf("other is %v", got)
	}
	w.delete("web")
	d.rest()
	if got := w.phases("other"); got[spec.PhaseRunning] != 1 {
		t.Errorf("when web has ended other is %v", got)
	}
}

// An update and the loss of a node work at full quota as without one.
func TestFullQuotaBlocksNoUpdateOrReplacement(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.quota(&v1.Quota{Replicas: new(int64(2)), Cpu: "2"})
	w.addWorkload("web", 2, "1")
	d := drive(w)
	d.rest()
	w.restart("web")
	d.rest()
	revision := w.snap().WorkloadByName("default", "web").GetStatus().GetRevisionUid()
	for r := range w.snap().Replicas("default", "") {
		if spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetRevisionUid() != revision {
			t.Errorf("%s is still of the old revision", r.GetMetadata().GetName())
		}
	}
	w.setNode("a", "offline")
	d.rest()
	var running int
	for r := range w.snap().ReplicasOn(w.snap().NodeByName("b").GetMetadata().GetUid()) {
		if r.GetStatus().GetPhase() == spec.PhaseRunning {
			running++
		}
	}
	if running != 2 {
		t.Errorf("%d run on the node that is left", running)
	}
	w.setNode("a", "ready")
	d.rest()
	if got := (Placement{}).Used(w.snap(), w.snap().NamespaceByName("default")); got.GetReplicas() != 2 || len(got.GetOver()) > 0 {
		t.Errorf("with the node back %v is used", got)
	}
}

// A quota that is lowered between plan and commit is respected.
func TestQuotaLoweredBeforeTheCommitIsRespected(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Replicas: new(int64(5))})
	w.addWorkload("web", 3, "1")
	batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	w.quota(&v1.Quota{Replicas: new(int64(1))})
	w.index++
	if _, err := w.store.Apply(w.index, batch.Transaction(w.now())); !state.MovedOn(err) {
		t.Fatalf("a plan on an older quota gives %v", err)
	}
	w.settle()
	if got := w.phases("web"); got[spec.PhaseRunning] != 1 || got[spec.PhasePending] != 2 {
		t.Errorf("web is %v", got)
	}
}

// Forecasts respect quotas.
func TestForecastRespectsQuotas(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Cpu: "2500m"})
	made := newWorkload(w.newUID(), "web", 3, "1")
	var b state.Batch
	w.revise(&b, made)
	b.Create(made)
	planned, _, err := (Placement{}).Forecast(w.now(), w.store.Fork(), b.Transaction(w.now()), []string{made.GetMetadata().GetUid()})
	if err != nil {
		t.Fatal(err)
	}
	const why = "the quota of namespace default is used up: needs 1 CPU, 500m of 2500m left"
	if got := planned[0]; len(got.GetReplicas()) != 2 || got.GetUnplaced() != 1 || got.GetQuota() != why {
		t.Errorf("the forecast is %v", got)
	}
}

// The reported usage of a namespace is what the scheduler counts.
func TestUsageIsWhatTheViewCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for _, name := range nodeNames {
			w.addNode(name, "4")
		}
		for _, s := range drawSteps(t) {
			w.take(s)
			c := newCluster(w.snap())
			if got, _ := c.Usage(w.snap(), "default"); got != c.View.Used("default") {
				t.Fatalf("%+v is used, and the view counts %+v", got, c.View.Used("default"))
			}
		}
	})
}

// A higher overcommit wakes waiting replicas, be they new or successors.
func TestHigherOvercommitWakesWaitingReplicas(t *testing.T) {
	w := newWorld(t)
	w.configure(&v1.ClusterSpec{})
	w.addNode("a", "2")
	w.addWorkload("web", 1, "1")
	d := drive(w)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) { // its successor does not fit in its place
		of.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "3"}}
		w.revise(b, of)
	})
	w.addWorkload("more", 2, "1")
	d.rest()
	if web, more := w.phases("web"), w.phases("more"); web[spec.PhaseRunning] != 1 || more[spec.PhasePending] != 1 {
		t.Fatalf("before, web is %v and more %v", web, more)
	}
	w.configure(&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{
		Name: "thin", Labels: "name=a", Overcommit: &v1.Overcommit{Cpu: new(int32(400))}, Reserved: &v1.ResourceAmounts{Cpu: "2"},
	}}})
	d.rest()
	n := w.snap().NodeByName("a")
	if got := (Placement{}).Allocatable(w.snap(), n).GetCpu(); got != "6" {
		t.Errorf("4 times 2 CPU less 2 may be promised, not %s", got)
	}
	if got := w.phases("more"); got[spec.PhaseRunning] != 2 {
		t.Errorf("with overcommit more is %v", got)
	}
	if got := (Placement{}).Requested(w.snap(), n.GetMetadata().GetUid()).GetCpu(); got != "5" {
		t.Errorf("%s CPU is promised: the successor of web is not there", got)
	}
}
