package scheduler_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// Any spec and any node, valid or not, give a plan without a panic.
func FuzzSpecs(f *testing.F) {
	whole := &v1.WorkloadSpec{
		Image: "hello:1", Network: "host", Priority: proto.Int32(500), MinAvailable: 1,
		Ports: []*v1.Port{{Port: 80, Publish: 80}},
		Resources: &v1.Resources{
			Requests: &v1.ResourceAmounts{Cpu: "500m", Memory: "64Mi", Disk: "1Gi", Bandwidth: "10M"}, Gpu: &v1.Gpu{Count: 1, Model: "t4"},
		},
		Placement: &v1.Placement{
			Labels: map[string]string{"disk": "ssd"}, Require: []*v1.LabelRule{{Key: "kernel", Operator: "version", Values: []string{">=6"}}},
			Prefer:      []*v1.LabelPreference{{Rule: &v1.LabelRule{Key: "fast", Operator: "exists"}, Weight: 3}},
			Tolerations: []*v1.Toleration{{Key: "spot"}}, Spread: []*v1.Spread{{Key: "zone", MaxSkew: 1}, {Key: "node", MaxSkew: 2}},
			Affinity: []*v1.Affinity{{Workload: "web", Key: "rack"}, {Labels: "app=db", Key: "node", Anti: true, Weight: 5}},
			Strategy: "best-fit", Weights: &v1.ScoreWeights{Cost: new(0.9)},
		},
	}
	machine := &v1.Node{
		Metadata: &v1.Metadata{Uid: "n", Name: "n", Labels: map[string]string{"disk": "ssd", "zone": "x", "kernel": "6.1"}},
		Spec:     &v1.NodeSpec{Price: 3, Taints: []*v1.Taint{{Key: "spot", Effect: "NoSchedule"}}},
		Status: &v1.NodeStatus{
			State: "ready", Drivers: []*v1.DriverInfo{{Name: "container"}}, Info: &v1.NodeInfo{Os: "linux", Arch: "arm64"},
			Capacity: &v1.NodeResources{Cpu: "8", Memory: "16Gi", Disk: "100Gi", Bandwidth: "1G", Gpu: 2, GpuModel: "t4"},
		},
	}
	for _, s := range []*v1.WorkloadSpec{whole, {}} {
		one, err := proto.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		other, err := proto.Marshal(machine)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(one, other, 3)
	}
	f.Fuzz(func(t *testing.T, workload, machine []byte, count int) {
		var s v1.WorkloadSpec
		var n v1.Node
		if proto.Unmarshal(workload, &s) != nil || proto.Unmarshal(machine, &n) != nil {
			t.Skip()
		}
		w := &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}}
		r, err := scheduler.RevisionFromProto(w, &v1.Revision{Metadata: &v1.Metadata{Uid: "r"}, Spec: &v1.RevisionSpec{WorkloadUid: "w", Workload: &s}})
		if err != nil {
			return
		}
		v := view(node("a", inZone("x")), scheduler.NodeFromProto(&n, spec.NodePolicy{}))
		run(v, revision("low", 1500, priority(1)), "a", 1)
		request := ask(r, min(count, 50))
		plan := v.Plan(request)
		if again := v.Plan(request); !reflect.DeepEqual(plan, again) {
			t.Fatalf("the second plan is\n%+v\nafter\n%+v", again, plan)
		}
		e := v.Explain(scheduler.Question{Revision: r})
		if len(plan.Placements) > 0 && !plan.Placements[0].Preempts && e.Nodes[0].Node != plan.Placements[0].Node {
			t.Fatalf("%+v is placed first, and the first node is %+v", plan.Placements[0], e.Nodes[0])
		}
		for i := 1; i < len(e.Nodes); i++ {
			e.Why(&e.Nodes[i-1], &e.Nodes[i])
		}
		v.Wait(r)
		v.RemoveReplica("low-1")
		v.Wake()
	})
}

// Every field of the API reaches the plan.
func TestFromProto(t *testing.T) {
	w := &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "team", Labels: map[string]string{"app": "web"}}, Spec: &v1.WorkloadSpec{
		MinAvailable: 2, Priority: proto.Int32(0), Placement: &v1.Placement{Weights: &v1.ScoreWeights{Cost: new(0.5), Network: new(0.0)}},
	}}
	r, err := scheduler.RevisionFromProto(w, &v1.Revision{
		Metadata: &v1.Metadata{Uid: "r"},
		Spec: &v1.RevisionSpec{WorkloadUid: "w", Platforms: []string{"linux/arm64"}, Workload: &v1.WorkloadSpec{
			Priority: proto.Int32(7), MinAvailable: 1, Ports: []*v1.Port{{Port: 80, Publish: 8080}, {Port: 90}},
			Resources: &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "1", Memory: "1Gi"}, Requests: &v1.ResourceAmounts{Cpu: "250m", Disk: "2Gi", Bandwidth: "5M"}, Gpu: &v1.Gpu{Count: 2, Model: "t4"}},
			Placement: &v1.Placement{
				Labels: map[string]string{"disk": "ssd"}, Regions: []string{"eu"}, Zones: []string{"eu-1"}, NearZone: "eu-1", Strategy: "spread",
				Tolerations: []*v1.Toleration{{Key: "spot", Seconds: 5}}, Spread: []*v1.Spread{{MaxSkew: 1}}, Affinity: []*v1.Affinity{{Workload: "db", Anti: true}},
				Weights: &v1.ScoreWeights{Cost: new(7.0)},
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &scheduler.Revision{
		UID: "r", Workload: "w", Name: "web", Namespace: "team", Labels: map[string]string{"app": "web"}, Priority: 0, MinAvailable: 2,
		Needs: scheduler.Needs{
			// Without a request, the limit counts as the request.
			Resources: scheduler.Resources{scheduler.CPU: 250, scheduler.Memory: gi, scheduler.Disk: 2 * gi, scheduler.Bandwidth: 5e6, scheduler.GPU: 2},
			GPUModel:  "t4", Driver: "container", Platforms: []string{"linux/arm64"}, Rules: []scheduler.Rule{rule(t, "disk", scheduler.OpIn, "ssd")},
			Tolerations: []scheduler.Toleration{{Key: "spot", Seconds: 5}}, Regions: []string{"eu"}, Zones: []string{"eu-1"},
			Ports: []scheduler.Port{{Number: 8080, Protocol: "tcp"}}, SharePorts: true,
		},
		Preferences: scheduler.Preferences{
			Strategy: scheduler.Even, NearZone: "eu-1", Spread: []scheduler.Spread{{Key: scheduler.KeyZone, MaxSkew: 1}},
			Affinity: []scheduler.Affinity{{Workload: "db", Key: scheduler.KeyNode, Anti: true}}, Weights: scheduler.Weighing{Cost: new(int32(500)), Network: new(int32(0))},
		},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got\n%+v\nwant\n%+v", r, want)
	}
	if _, err := scheduler.RevisionFromProto(w, &v1.Revision{Spec: &v1.RevisionSpec{Workload: &v1.WorkloadSpec{
		Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "lots"}},
	}}}); err == nil {
		t.Error("a request of lots was read")
	}

	source := &v1.Node{
		Metadata: &v1.Metadata{Uid: "n", Name: "n", Labels: map[string]string{"region": "eu", "zone": "eu-1"}},
		Spec:     &v1.NodeSpec{Price: 7, Bandwidth: "1G", Taints: []*v1.Taint{{Key: "spot", Value: "yes", Effect: "NoExecute"}}},
		Status: &v1.NodeStatus{
			State: "ready", Conditions: []*v1.Condition{{Type: "DiskPressure", Status: true, Reason: "2% are free"}},
			Capacity: &v1.NodeResources{Cpu: "4", Bandwidth: "100M", Gpu: 2, GpuModel: "tesla-t4"},
			Info:     &v1.NodeInfo{Os: "linux", Arch: "arm64", Kernel: "6.1.0-18", Hostname: "box", Battery: true}, Reliability: &v1.Reliability{Score: 87},
		},
	}
	n := scheduler.NodeFromProto(source, spec.NodePolicyOf(&v1.ClusterSpec{
		Overcommit:  &v1.Overcommit{Cpu: new(int32(200)), Memory: new(int32(150))},
		NodeClasses: []*v1.NodeClass{{Name: "edge", Labels: "region=eu", Overcommit: &v1.Overcommit{Cpu: new(int32(100))}, Reserved: &v1.ResourceAmounts{Cpu: "500m"}}},
	}, &v1.Node{Metadata: &v1.Metadata{Labels: map[string]string{"region": "eu"}}}))
	wanted := scheduler.Node{
		UID: "n", Name: "n", Hostname: "box", Region: "eu", Zone: "eu-1", GPUModel: "tesla-t4", Link: 1e9,
		Labels: map[string]string{
			"region": "eu", "zone": "eu-1", "node.cloudless/os": "linux", "node.cloudless/arch": "arm64",
			"node.cloudless/kernel": "6.1.0-18", "node.cloudless/gpu": "tesla-t4",
		},
		Unschedulable: "has DiskPressure: 2% are free", Platform: "linux/arm64", Battery: true, Reliability: 870, Price: 7,
		Taints:   []scheduler.Taint{{Key: "spot", Value: "yes", Effect: scheduler.NoExecute}},
		Capacity: scheduler.Resources{scheduler.CPU: 4000, scheduler.Bandwidth: 1e9, scheduler.GPU: 2}, Reserved: scheduler.Resources{scheduler.CPU: 500},
		Overcommit: scheduler.Resources{scheduler.CPU: 1000, scheduler.Memory: 1500}, Source: source,
	}
	if !reflect.DeepEqual(n, wanted) {
		t.Errorf("got\n%+v\nwant\n%+v", n, wanted)
	}
}
