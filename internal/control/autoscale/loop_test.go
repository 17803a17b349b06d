package autoscale

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// servers are the only server of a cluster, and the nodes' reports.
type servers struct {
	*world
	nanos  map[string]uint64
	quiet  atomic.Bool
	refuse int // so many proposals, as if something had changed meanwhile
}

func (s *servers) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	if s.refuse > 0 {
		s.refuse--
		return state.Result{}, &state.ConflictError{}
	}
	s.index++
	return s.store.Apply(s.index, proto.CloneOf(tx))
}

// Usage reports half a CPU more of each replica than the last time.
func (s *servers) Usage() (map[string]*v1.NodeResources, map[string]*v1.ReplicaUsage, <-chan struct{}) {
	all := map[string]*v1.ReplicaUsage{}
	for _, uid := range s.serving() {
		s.nanos[uid] += uint64(Period) / 2
		all[uid] = &v1.ReplicaUsage{Uid: uid, Time: timestamppb.Now(), CpuNanos: s.nanos[uid], MemoryBytes: 1 << 20}
	}
	return nil, all, nil
}

func (s *servers) Requests(string, time.Duration) (float64, bool) { return 0, s.quiet.Load() }

func TestLoopScalesByReportsAndWakesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, &v1.Autoscale{Min: proto.Int32(0), Max: 2, Cpu: "50%", Idle: "1m"})
		s := &servers{world: w, nanos: map[string]uint64{}}
		l := New(Options{Store: w.store, Proposer: s, Reports: s, Traffic: s})
		l.Wake("svc") // it does not lead yet
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(3*Period - time.Second)
		synctest.Wait()
		w.want(2) // half a CPU is twice of what one replica should use
		if values := l.Values("web"); len(values) != 2 || values[0].GetValue() != "100%" || values[0].GetGoal() != "50%" {
			t.Errorf("the measurements are %v", values)
		}
		s.quiet.Store(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		w.want(0)
		s.refuse = 1
		began := time.Now()
		l.Wake("unknown")
		l.Wake("svc")
		synctest.Wait()
		w.want(1)
		if passed := time.Since(began); passed != 0 {
			t.Errorf("the wake took %s", passed)
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("the loop ended without an error")
		}
	})
}

// Callers inside the cluster use services directly. Where they may have a service of their own, the workload is not idle.
func TestServiceWithoutARouteKeepsItsWorkloadAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, &v1.Autoscale{Min: proto.Int32(0), Max: 2, Cpu: "50%", Idle: "1m"})
		inside := &v1.Service{
			Metadata: &v1.Metadata{Uid: "inside", Name: "inside", Namespace: "default"},
			Spec:     &v1.ServiceSpec{Selector: map[string]string{"app": "web"}}, Status: &v1.ServiceStatus{},
		}
		w.change(func(web *v1.Workload) { web.Metadata.Labels = map[string]string{"app": "web"} })
		w.do(func(b *state.Batch) { b.Create(inside) })
		s := &servers{world: w, nanos: map[string]uint64{}}
		s.quiet.Store(true)
		l := New(Options{Store: w.store, Proposer: s, Reports: s, Traffic: s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.replicas() == 0 {
			t.Error("the workload sleeps beside a service that no route leads to")
		}
		w.do(func(b *state.Batch) { b.Delete(state.KindService, "inside") })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		w.want(0)
		cancel()
		<-done
	})
}

// Without autoscaled workloads, the loop sleeps until there is one.
func TestLoopBeginsWithTheFirstWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, byCPU(1, 2))
		w.change(func(web *v1.Workload) { web.Spec.Autoscale = nil })
		s := &servers{world: w, nanos: map[string]uint64{}}
		l := New(Options{Store: w.store, Proposer: s, Reports: s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(s.nanos) != 0 {
			t.Error("it measures without need")
		}
		w.change(func(web *v1.Workload) {
			web.Spec.Autoscale = spec.Normalized(&v1.WorkloadSpec{Autoscale: byCPU(1, 2)}).GetAutoscale()
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		w.want(2)
		cancel()
		<-done
	})
}
