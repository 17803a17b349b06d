package scheduler_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
)

func node(t *testing.T, name string, change func(*v1.Node)) scheduler.Node {
	t.Helper()
	n := &v1.Node{
		Metadata: &v1.Metadata{Uid: "uid-" + name, Name: name},
		Status: &v1.NodeStatus{
			State:    "ready",
			Capacity: &v1.NodeResources{Cpu: "2", Memory: "4Gi"},
			Drivers:  []*v1.DriverInfo{{Name: "container"}},
		},
	}
	if change != nil {
		change(n)
	}
	got, err := scheduler.NodeFromProto(n)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func requirements(t *testing.T, s *v1.WorkloadSpec) scheduler.Requirements {
	t.Helper()
	r, err := scheduler.RequirementsFromProto(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func requests(cpu, memory string) *v1.Resources {
	return &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: cpu, Memory: memory}}
}

func nodesOf(p scheduler.Plan) (names []string) {
	for _, placement := range p.Placements {
		names = append(names, placement.NodeName)
	}
	return names
}

func TestRequirements(t *testing.T) {
	got := requirements(t, &v1.WorkloadSpec{
		Network:   "host",
		Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: "250m"}, Limits: &v1.ResourceAmounts{Cpu: "1", Memory: "1Gi"}},
		Placement: &v1.Placement{Labels: map[string]string{"disk": "ssd"}},
		Ports:     []*v1.Port{{Port: 80, Publish: 80}, {Port: 53, Protocol: "udp"}},
	})
	want := scheduler.Requirements{
		Resources: scheduler.Resources{CPU: 250, Memory: 1 << 30}, // A limit is requested where nothing else is.
		Labels:    map[string]string{"disk": "ssd"},
		Driver:    "container",
		Ports:     []scheduler.Port{{80, "tcp"}, {53, "udp"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	apart := requirements(t, &v1.WorkloadSpec{Network: "none", Ports: []*v1.Port{{Port: 80}}})
	if apart.Ports != nil {
		t.Errorf("a replica in a network of its own needs ports %v of the node", apart.Ports)
	}
	if _, err := scheduler.RequirementsFromProto(&v1.WorkloadSpec{Resources: requests("lots", "")}); err == nil {
		t.Error("a request of lots was read")
	}
}

// Replicas of one workload go to different nodes; another workload goes to the
// fullest node that has room.
func TestSpreadThenPack(t *testing.T) {
	snapshot := scheduler.Snapshot{Nodes: []scheduler.Node{node(t, "c", nil), node(t, "a", nil), node(t, "b", nil)}}
	small := requirements(t, &v1.WorkloadSpec{Resources: requests("500m", "256Mi")})
	snapshot.Nodes[2].Add("other", "other", small) // b is the fullest.

	plan := scheduler.Schedule(snapshot, scheduler.Request{Asks: []scheduler.Ask{
		{Workload: "web", Name: "web", Count: 4, Requirements: small},
		{Workload: "job", Name: "job", Count: 1, Requirements: small},
	}})
	if got, want := nodesOf(plan), []string{"b", "a", "c", "b", "b"}; !slices.Equal(got, want) {
		t.Errorf("placed on %v, want %v", got, want)
	}
	first, fourth := plan.Placements[0].Score, plan.Placements[3].Score
	if first.Spread != 0 || fourth.Spread >= 0 || fourth.Pack <= first.Pack || first.Total != first.Spread+first.Pack {
		t.Errorf("scores %+v and %+v do not explain the choice", first, fourth)
	}
	if snapshot.Nodes[2].Requested.CPU != 500 {
		t.Error("the snapshot was changed")
	}
}

// What fits nowhere says why, node by node.
func TestExplain(t *testing.T) {
	web := requirements(t, &v1.WorkloadSpec{Network: "host", Ports: []*v1.Port{{Port: 8080}, {Port: 53, Protocol: "udp"}}})
	used := node(t, "used", func(n *v1.Node) { n.Metadata.Labels = map[string]string{"disk": "ssd"} })
	used.Add("web", "web", web)
	full := node(t, "full", func(n *v1.Node) { n.Metadata.Labels = map[string]string{"disk": "hdd"} })
	full.Add("big", "big", requirements(t, &v1.WorkloadSpec{Resources: requests("1800m", "4Gi")}))
	snapshot := scheduler.Snapshot{Nodes: []scheduler.Node{
		used, full,
		node(t, "away", func(n *v1.Node) {
			n.Status.State, n.Status.Reason = "offline", "it has not answered for 30 s"
			n.Metadata.Labels = map[string]string{"disk": "ssd"}
		}),
		node(t, "bare", func(n *v1.Node) { n.Status.Drivers = nil }),
		node(t, "wasm", func(n *v1.Node) { n.Status.Drivers[0].Name = "wasm"; n.Status.State = "cordoned" }),
	}}
	plan := scheduler.Schedule(snapshot, scheduler.Request{Asks: []scheduler.Ask{{
		Workload: "api", Name: "api", Count: 2,
		Requirements: requirements(t, &v1.WorkloadSpec{
			Network:   "host",
			Resources: requests("500m", "1Gi"),
			Placement: &v1.Placement{Labels: map[string]string{"disk": "ssd"}},
			Ports:     []*v1.Port{{Port: 8080}, {Port: 53, Protocol: "udp"}},
		}),
	}}})
	if len(plan.Placements) != 0 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Count != 2 {
		t.Fatalf("the plan is %+v", plan)
	}
	var got []string
	for _, n := range plan.Unplaced[0].Nodes {
		got = append(got, n.NodeName+" "+n.String())
	}
	want := []string{
		"away is offline: it has not answered for 30 s",
		"bare driver container is not there; it has none; label disk=ssd is missing",
		"full label disk is hdd, not ssd; needs 500m CPU, 200m of 2 free, needs 1Gi memory, 0 of 4Gi free",
		"used port 8080 is used by web, port 53/udp is used by web; choose another with --publish",
		"wasm is cordoned; driver container is not there; it has wasm; label disk=ssd is missing",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	summary := "2 replicas of api cannot be placed: away: is offline: it has not answered for 30 s (and 1 more node refused for the like); " +
		"bare: driver container is not there; it has none; full: label disk is hdd, not ssd; used: port 8080 is used by web, port 53/udp is used by web; choose another with --publish"
	if got := plan.Unplaced[0].Summary(); got != summary {
		t.Errorf("the summary is\n%s\nwant\n%s", got, summary)
	}
}

func TestNoNodes(t *testing.T) {
	plan := scheduler.Schedule(scheduler.Snapshot{}, scheduler.Request{Asks: []scheduler.Ask{{Name: "web", Count: 1}, {Name: "none"}}})
	if len(plan.Unplaced) != 1 || plan.Unplaced[0].Summary() != "1 replica of web cannot be placed: the cluster has no nodes yet" {
		t.Errorf("the plan is %+v", plan)
	}
}

// A port is used up by the first replica of the same plan.
func TestPortsOfOnePlan(t *testing.T) {
	snapshot := scheduler.Snapshot{Nodes: []scheduler.Node{node(t, "a", nil), node(t, "b", nil)}}
	web := requirements(t, &v1.WorkloadSpec{Network: "host", Ports: []*v1.Port{{Port: 80}}})
	plan := scheduler.Schedule(snapshot, scheduler.Request{Asks: []scheduler.Ask{{Workload: "web", Name: "web", Count: 3, Requirements: web}}})
	if got := nodesOf(plan); !slices.Equal(got, []string{"a", "b"}) || plan.Unplaced[0].Nodes[0].String() != "port 80 is used by web; choose another with --publish" {
		t.Errorf("placed on %v, unplaced %+v", got, plan.Unplaced)
	}
}

// Replicas of one workload share its published ports; another workload cannot
// have them on the same node, nor can one that uses the machine's own network.
func TestPublishedPorts(t *testing.T) {
	published := func(edit func(*scheduler.Requirements)) scheduler.Requirements {
		r := requirements(t, &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80, Publish: 8080}, {Port: 90}}})
		if edit != nil {
			edit(&r)
		}
		return r
	}
	a := node(t, "a", nil)
	a.Add("web", "web", published(func(r *scheduler.Requirements) { r.Namespace = "default" }))
	snapshot := scheduler.Snapshot{Nodes: []scheduler.Node{a}}
	host := requirements(t, &v1.WorkloadSpec{Network: "host", Ports: []*v1.Port{{Port: 8080}}})
	plan := scheduler.Schedule(snapshot, scheduler.Request{Asks: []scheduler.Ask{
		{Workload: "web", Name: "web", Count: 3, Requirements: published(nil)},
		{Workload: "other", Name: "web", Count: 1, Requirements: published(nil)},
		{Workload: "host", Name: "host", Count: 1, Requirements: host},
		{Workload: "udp", Name: "udp", Count: 1, Requirements: requirements(t, &v1.WorkloadSpec{Ports: []*v1.Port{{Port: 80, Publish: 8080, Protocol: "udp"}}})},
	}})
	if got := nodesOf(plan); len(got) != 4 || len(plan.Unplaced) != 2 {
		t.Fatalf("placed on %v, unplaced %+v", got, plan.Unplaced)
	}
	for _, u := range plan.Unplaced {
		if got := u.Nodes[0].String(); got != "port 8080 is used by web in namespace default; choose another with --publish" {
			t.Errorf("%s: %s", u.Workload, got)
		}
	}
}

var (
	anyLabels = rapid.MapOfN(rapid.SampledFrom([]string{"disk", "zone"}), rapid.SampledFrom([]string{"x", "y"}), 0, 2)
	anyPorts  = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) scheduler.Port {
		return scheduler.Port{Number: rapid.Int32Range(1, 3).Draw(t, "number"), Protocol: "tcp"}
	}), 0, 2, rapid.ID[scheduler.Port])
	anyNode = rapid.Custom(func(t *rapid.T) scheduler.Node {
		return scheduler.Node{
			Labels:        anyLabels.Draw(t, "labels"),
			Unschedulable: rapid.SampledFrom([]string{"", "", "", "is offline"}).Draw(t, "unschedulable"),
			Capacity:      anyResources(t, 4000),
			Requested:     anyResources(t, 2000),
			Drivers:       rapid.SampledFrom([][]string{{"container"}, {"vm", "container"}, nil}).Draw(t, "drivers"),
		}
	})
	anyAsk = rapid.Custom(func(t *rapid.T) scheduler.Ask {
		uid := rapid.SampledFrom([]string{"w1", "w2", "w3"}).Draw(t, "workload")
		return scheduler.Ask{
			Workload: uid, Name: uid, Count: rapid.IntRange(-1, 8).Draw(t, "count"),
			Requirements: scheduler.Requirements{
				Resources: anyResources(t, 1500), Labels: anyLabels.Draw(t, "labels"),
				Driver: rapid.SampledFrom([]string{"container", "vm"}).Draw(t, "driver"), Ports: anyPorts.Draw(t, "ports"),
			},
		}
	})
)

func anyResources(t *rapid.T, most int64) scheduler.Resources {
	amount := rapid.Int64Range(0, most/250)
	return scheduler.Resources{CPU: amount.Draw(t, "cpu") * 250, Memory: amount.Draw(t, "memory") * 250 << 20}
}

func anySnapshot(t *rapid.T) scheduler.Snapshot {
	s := scheduler.Snapshot{Nodes: rapid.SliceOfN(anyNode, 0, 6).Draw(t, "nodes")}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.UID, n.Name = fmt.Sprint("uid", i), fmt.Sprint("node", i)
		for _, ask := range rapid.SliceOfN(anyAsk, 0, 2).Draw(t, "replicas") {
			n.Add(ask.Workload, ask.Name, ask.Requirements)
		}
	}
	return s
}

// The promises of the package, checked by replaying the plan step by step on a
// model that knows the rules but neither heap nor score.
func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anySnapshot(t)
		r := scheduler.Request{Asks: rapid.SliceOfN(anyAsk, 0, 5).Draw(t, "asks")}
		plan := scheduler.Schedule(s, r)

		shuffled := scheduler.Snapshot{Nodes: rapid.Permutation(s.Nodes).Draw(t, "order")}
		if again := scheduler.Schedule(shuffled, r); !reflect.DeepEqual(plan, again) {
			t.Fatalf("another order of nodes gives\n%+v\nafter\n%+v", again, plan)
		}

		model := map[string]*scheduler.Node{}
		for _, n := range s.Nodes {
			n.Ports, n.Replicas = slices.Clone(n.Ports), nil
			model[n.UID] = &n
		}
		placements, left := plan.Placements, plan.Unplaced
		for i, ask := range r.Asks {
			missing := 0
			if len(left) > 0 && left[0].Ask == i {
				missing = left[0].Count
			}
			for range max(0, ask.Count) - missing {
				p := placements[0]
				placements = placements[1:]
				if p.Ask != i || p.Workload != ask.Workload || !takes(model[p.Node], ask.Requirements) {
					t.Fatalf("%+v for %+v goes to %+v", p, ask, model[p.Node])
				}
				model[p.Node].Add(ask.Workload, ask.Name, ask.Requirements)
			}
			if missing == 0 {
				continue
			}
			for _, reason := range left[0].Nodes {
				if takes(model[reason.Node], ask.Requirements) || reason.String() == "" {
					t.Fatalf("%+v is unplaced because of %q, but %+v would take it", ask, reason, model[reason.Node])
				}
			}
			if len(left[0].Nodes) != len(s.Nodes) {
				t.Fatalf("%d of %d nodes are explained", len(left[0].Nodes), len(s.Nodes))
			}
			left = left[1:]
		}
		if len(placements) != 0 || len(left) != 0 {
			t.Fatalf("nobody asked for %+v and %+v", placements, left)
		}
	})
}

func takes(n *scheduler.Node, r scheduler.Requirements) bool {
	for key, value := range r.Labels {
		if got, ok := n.Labels[key]; !ok || got != value {
			return false
		}
	}
	for _, p := range r.Ports {
		if slices.ContainsFunc(n.Ports, func(u scheduler.PortUse) bool { return u.Port == p }) {
			return false
		}
	}
	enough := func(need, used, all int64) bool { return need == 0 || need+used <= all }
	return n.Unschedulable == "" && slices.Contains(n.Drivers, r.Driver) &&
		enough(r.Resources.CPU, n.Requested.CPU, n.Capacity.CPU) &&
		enough(r.Resources.Memory, n.Requested.Memory, n.Capacity.Memory)
}

func benchNodes(count int) scheduler.Snapshot {
	var s scheduler.Snapshot
	for i := range count {
		n := scheduler.Node{
			UID: fmt.Sprintf("uid%05d", i), Name: fmt.Sprintf("node%05d", i),
			Labels: map[string]string{"disk": "ssd"}, Drivers: []string{"container"},
			Capacity: scheduler.Resources{CPU: 16000, Memory: 64 << 30},
		}
		for w := range 10 {
			n.Add(fmt.Sprint("w", (i+w)%500), "w", scheduler.Requirements{Resources: scheduler.Resources{CPU: 250, Memory: 1 << 30}})
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// 100 replicas onto 5,000 nodes: of one workload, and of 100 different ones.
func BenchmarkSchedule(b *testing.B) {
	s := benchNodes(5000)
	ask := func(i, count int) scheduler.Ask {
		return scheduler.Ask{Workload: fmt.Sprint("w", i), Name: "w", Count: count, Requirements: scheduler.Requirements{
			Resources: scheduler.Resources{CPU: 500, Memory: 1 << 30}, Driver: "container",
			Labels: map[string]string{"disk": "ssd"}, Ports: []scheduler.Port{{Number: int32(8000 + i), Protocol: "tcp"}},
		}}
	}
	var many scheduler.Request
	for i := range 100 {
		many.Asks = append(many.Asks, ask(i, 1))
	}
	for name, r := range map[string]scheduler.Request{"one": {Asks: []scheduler.Ask{ask(1, 100)}}, "hundred": many} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if plan := scheduler.Schedule(s, r); len(plan.Placements) != 100 {
					b.Fatalf("%d placed", len(plan.Placements))
				}
			}
		})
	}
}
