package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

const gi = 1 << 30

// node has 2 CPU and 4 GiB, changed as a test needs it.
func node(name string, change ...func(*scheduler.Node)) scheduler.Node {
	n := scheduler.Node{
		UID: "uid-" + name, Name: name, Drivers: []string{"container"}, Platform: "linux/amd64", Reliability: 1000,
		Capacity: scheduler.Resources{scheduler.CPU: 2000, scheduler.Memory: 4 * gi},
	}
	for _, c := range change {
		c(&n)
	}
	return n
}

func labelled(labels ...string) func(*scheduler.Node) {
	return func(n *scheduler.Node) {
		n.Labels = map[string]string{}
		for i := 0; i < len(labels); i += 2 {
			n.Labels[labels[i]] = labels[i+1]
		}
	}
}

func inZone(zone string) func(*scheduler.Node) { return func(n *scheduler.Node) { n.Zone = zone } }

func cores(n int64) func(*scheduler.Node) {
	return func(node *scheduler.Node) {
		node.Capacity = scheduler.Resources{scheduler.CPU: n * 1000, scheduler.Memory: n * 2 * gi}
	}
}

// revision needs CPU in thousandths, and twice as many MiB of memory.
func revision(name string, millis int64, change ...func(*scheduler.Revision)) *scheduler.Revision {
	r := &scheduler.Revision{
		UID: "revision-" + name, Workload: "workload-" + name, Name: name, Namespace: "default", Priority: 100,
		Needs: scheduler.Needs{
			Driver: "container", Resources: scheduler.Resources{scheduler.CPU: millis, scheduler.Memory: millis << 21},
		},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func view(nodes ...scheduler.Node) *scheduler.View {
	v := scheduler.NewView(scheduler.Options{Preempt: true})
	for _, n := range nodes {
		v.ApplyNode(n)
	}
	return v
}

var replicas int

// run puts replicas of a revision on a node and returns their uids.
func run(v *scheduler.View, r *scheduler.Revision, node string, count int) (uids []string) {
	for range count {
		replicas++
		uids = append(uids, fmt.Sprintf("%s-%d", r.Name, replicas))
		v.ApplyReplica(uids[len(uids)-1], r, "uid-"+node)
	}
	return uids
}

func ask(r *scheduler.Revision, count int) scheduler.Request {
	return scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: count}}, Reasons: true}
}

// places are the names of the nodes in the order of the placements.
func places(p scheduler.Plan) string {
	var names []string
	for _, placement := range p.Placements {
		names = append(names, placement.NodeName)
	}
	return strings.Join(names, " ")
}

func rule(t testing.TB, key, operator string, values ...string) scheduler.Rule {
	t.Helper()
	r, err := scheduler.NewRule(key, operator, values...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func selector(t testing.TB, text string) spec.Selector {
	t.Helper()
	s, err := spec.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Workloads are packed onto nodes, but the replicas of one workload are levelled
// over zones first and nodes second.
func TestPackingLevelsAWorkload(t *testing.T) {
	v := view(node("c", inZone("y")), node("a", inZone("x")), node("b", inZone("x")))
	run(v, revision("other", 500), "b", 1) // b is the fullest

	for _, c := range []struct {
		what  string
		r     *scheduler.Revision
		count int
		want  string
	}{
		{"one goes to the fullest node", revision("one", 250), 1, "b"},
		{"several go to zones in turn, and to other nodes of a zone", revision("web", 250), 5, "b c a c b"},
		{"best-fit fills one node", revision("tight", 250, func(r *scheduler.Revision) { r.Preferences.Strategy = scheduler.BestFit }), 4, "b b b b"},
		{"spread takes the emptiest", revision("wide", 250, func(r *scheduler.Revision) { r.Preferences.Strategy = scheduler.Even }), 1, "a"},
	} {
		if got := places(v.Plan(ask(c.r, c.count))); got != c.want {
			t.Errorf("%s: placed on %s, want %s", c.what, got, c.want)
		}
	}
}

// The explanation for a replica on the host network names its own replicas, and does not
// suggest publishing ports.
func TestHostPortsAreExplained(t *testing.T) {
	on := func(port int32) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) { r.Needs.Ports = []scheduler.Port{{Number: port, Protocol: "tcp"}} }
	}
	v := view(node("a"))
	web := revision("web", 100, on(8080))
	run(v, web, "a", 1)
	for r, want := range map[*scheduler.Revision]string{
		web:                              "port 8080 is used by another of its own replicas: one fits on each node",
		revision("other", 100, on(8080)): "port 8080 is used by web in namespace default; choose another port",
	} {
		if got := v.Plan(ask(r, 1)).Unplaced[0].Nodes[0].String(); got != want {
			t.Errorf("%s: %q, want %q", r.Name, got, want)
		}
	}
}

// A replica that fits nowhere gets a reason for each node, and a sentence for all.
func TestExplain(t *testing.T) {
	ports := func(r *scheduler.Revision) {
		r.Needs.Ports = []scheduler.Port{{Number: 8080, Protocol: "tcp"}, {Number: 53, Protocol: "udp"}}
		r.Needs.SharePorts = true
	}
	v := view(
		node("used", labelled("disk", "ssd")),
		node("full", labelled("disk", "hdd")),
		node("away", labelled("disk", "ssd"), func(n *scheduler.Node) { n.Unschedulable = "is offline: it has not answered for 30 s" }),
		node("bare", func(n *scheduler.Node) { n.Drivers = nil }),
		node("wasm", func(n *scheduler.Node) { n.Drivers, n.Unschedulable = []string{"wasm"}, "is cordoned" }),
	)
	run(v, revision("web", 0, ports), "used", 1)
	run(v, revision("big", 1800), "full", 1)
	plan := v.Plan(ask(revision("api", 500, ports, func(r *scheduler.Revision) {
		r.Needs.Rules = []scheduler.Rule{rule(t, "disk", scheduler.OpIn, "ssd")}
	}), 2))
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
		"full label disk is hdd, not ssd; needs 500m CPU, 200m of 2 free, needs 1000Mi memory, 496Mi of 4Gi free",
		"used port 8080 is used by web in namespace default, port 53/udp is used by web in namespace default; choose another with --publish",
		"wasm is cordoned; driver container is not there; it has wasm; label disk=ssd is missing",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	summary := "2 replicas of api cannot be placed: away: is offline: it has not answered for 30 s (and 1 more node refused for the like); " +
		"bare: driver container is not there; it has none; full: label disk is hdd, not ssd; " +
		"used: port 8080 is used by web in namespace default, port 53/udp is used by web in namespace default; choose another with --publish"
	if got := plan.Unplaced[0].Summary(); got != summary {
		t.Errorf("the summary is\n%s\nwant\n%s", got, summary)
	}
}

// Nodes that cannot keep a program in as its workload asks are refused, with the reason.
func TestSandboxesAndUserNamespacesNeedTheirNodes(t *testing.T) {
	v := view(
		node("gvisor", labelled(spec.LabelGVisor, "true")),
		node("users", labelled(spec.LabelUserNamespaces, "true")),
		node("plain"),
	)
	for _, test := range []struct {
		needs func(*scheduler.Revision)
		fits  string
		lacks string
	}{
		{func(r *scheduler.Revision) { r.Needs.Sandbox = spec.SandboxGVisor }, "gvisor", "has no runsc, which the sandbox gvisor needs"},
		{func(r *scheduler.Revision) { r.Needs.UserNamespace = true }, "users", "has no user namespaces"},
	} {
		plan := v.Plan(ask(revision("web", 100, test.needs), 1))
		if len(plan.Placements) != 1 || plan.Placements[0].NodeName != test.fits {
			t.Errorf("want it on %s: %+v", test.fits, plan)
		}
		plan = view(node("plain")).Plan(ask(revision("web", 100, test.needs), 1))
		if len(plan.Unplaced) != 1 || !strings.Contains(plan.Unplaced[0].Summary(), test.lacks) {
			t.Errorf("want %q: %+v", test.lacks, plan)
		}
	}
}

func TestNoNodes(t *testing.T) {
	plan := view().Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: revision("web", 1), Count: 1}, {Revision: revision("none", 1)}}})
	if len(plan.Unplaced) != 1 || plan.Unplaced[0].Summary() != "1 replica of web cannot be placed: the cluster has no nodes yet" {
		t.Errorf("the plan is %+v", plan)
	}
}

// The score has five weighted components. They decide among suitable nodes, and are kept
// for the explanation.
func TestScore(t *testing.T) {
	only := func(w scheduler.Weighing) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) { r.Preferences.Weights = w }
	}
	for _, c := range []struct {
		what string
		a, b func(*scheduler.Node)
		r    func(*scheduler.Revision)
	}{
		{
			"the nearer zone", func(n *scheduler.Node) { n.Region, n.Zone = "eu", "eu-2" }, func(n *scheduler.Node) { n.Region, n.Zone = "eu", "eu-1" },
			func(r *scheduler.Revision) { r.Preferences.NearRegion, r.Preferences.NearZone = "eu", "eu-1" },
		},
		{
			"the same region", func(n *scheduler.Node) { n.Region = "us" }, func(n *scheduler.Node) { n.Region = "eu" },
			func(r *scheduler.Revision) { r.Preferences.NearRegion = "eu" },
		},
		{"the more reliable", func(n *scheduler.Node) { n.Reliability = 900 }, func(*scheduler.Node) {}, only(scheduler.Weighing{})},
		{"not on battery", func(n *scheduler.Node) { n.Battery = true }, func(*scheduler.Node) {}, only(scheduler.Weighing{})},
		{"the cheaper", func(n *scheduler.Node) { n.Price = 30 }, func(n *scheduler.Node) { n.Price = 10 }, only(scheduler.Weighing{})},
		{"the better link", func(n *scheduler.Node) { n.Link = 1e7 }, func(n *scheduler.Node) { n.Link = 1e10 }, only(scheduler.Weighing{})},
		{"of empty ones the larger", cores(2), cores(4), only(scheduler.Weighing{})},
		{
			"the cheaper, though it is less reliable", func(n *scheduler.Node) { n.Price = 30 }, func(n *scheduler.Node) { n.Price, n.Reliability = 10, 100 },
			only(scheduler.Weighing{Cost: new(int32(900)), Reliability: new(int32(100))}),
		},
	} {
		plan := view(node("a", c.a), node("b", c.b)).Plan(ask(revision("web", 100, c.r), 1))
		if got := places(plan); got != "b" {
			t.Errorf("%s is preferred: placed on %q with %+v", c.what, got, plan.Placements)
		}
	}
	s := view(node("a", func(n *scheduler.Node) { n.Reliability, n.Link, n.Price = 800, 5e8, 7 })).Plan(ask(revision("web", 500), 1)).Placements[0].Score
	want := scheduler.Score{Locality: 1000, Reliability: 800, Cost: 0, Utilization: 500, Network: 500}
	want.Total = 250*1000 + 300*800 + 200*500 + 100*500
	if s != want {
		t.Errorf("the score is %+v, want %+v", s, want)
	}
}

// Replicas are levelled over the domains of a key, with a maximal skew or as far
// as there is room.
func TestSpread(t *testing.T) {
	over := func(key string, skew int) *scheduler.Revision {
		return revision("web", 500, func(r *scheduler.Revision) { r.Preferences.Spread = []scheduler.Spread{{Key: key, MaxSkew: skew}} })
	}
	// x has room for eight, y for four and z for one.
	v := view(node("x1", inZone("x"), labelled("rack", "r1")), node("x2", inZone("x"), labelled("rack", "r1")), node("y1", inZone("y"), labelled("rack", "r2")),
		node("z1", inZone("z"), func(n *scheduler.Node) { n.Capacity[scheduler.CPU] = 500 }))
	for _, c := range []struct {
		what  string
		r     *scheduler.Revision
		count int
		want  map[string]int // by node
		left  int
	}{
		{"with a skew of one", over(scheduler.KeyZone, 1), 6, map[string]int{"x1": 1, "x2": 1, "y1": 2, "z1": 1}, 1},
		{"without a limit", over(scheduler.KeyZone, 0), 13, map[string]int{"x1": 4, "x2": 4, "y1": 4, "z1": 1}, 0},
		{"over a label, of which z1 has none", over("rack", 1), 8, map[string]int{"x1": 2, "x2": 2, "y1": 4}, 0},
		{"over nodes", over(scheduler.KeyNode, 1), 8, map[string]int{"x1": 2, "x2": 2, "y1": 2, "z1": 1}, 1},
	} {
		plan := v.Plan(ask(c.r, c.count))
		got := map[string]int{}
		for _, p := range plan.Placements {
			got[p.NodeName]++
		}
		left := 0
		for _, u := range plan.Unplaced {
			left += u.Count
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) || left != c.left {
			t.Errorf("%s: %v and %d left, want %v and %d", c.what, got, left, c.want, c.left)
		}
	}
	why := v.Plan(ask(over(scheduler.KeyZone, 1), 6)).Unplaced[0].Nodes[0].String()
	if why != "is in a zone with 2 replicas already, and another one has 1: at most 1 more are allowed" {
		t.Errorf("refused because %s", why)
	}
}

// Affinity draws replicas to others or keeps them apart, on the same node, in the same zone
// or wherever a label is the same. A preferred affinity outranks any score.
func TestAffinity(t *testing.T) {
	near := func(a ...scheduler.Affinity) *scheduler.Revision {
		return revision("web", 500, func(r *scheduler.Revision) {
			r.Preferences.Affinity, r.Labels = a, map[string]string{"app": "web"}
		})
	}
	v := view(node("a", inZone("x")), node("b", inZone("x")), node("c", inZone("y")), node("d", inZone("y")))
	run(v, revision("db", 100, func(r *scheduler.Revision) { r.Labels = map[string]string{"app": "db"} }), "d", 1)
	for _, c := range []struct {
		what  string
		r     *scheduler.Revision
		count int
		want  string
	}{
		{"on the node of db", near(scheduler.Affinity{Workload: "db", Key: scheduler.KeyNode}), 4, "d d d"},
		{"in the zone of db", near(scheduler.Affinity{Workload: "db", Key: scheduler.KeyZone}), 3, "d c d"},
		{"by label", near(scheduler.Affinity{Selector: selector(t, "app=db"), Key: scheduler.KeyZone}), 1, "d"},
		{"not in the zone of db", near(scheduler.Affinity{Workload: "db", Key: scheduler.KeyZone, Anti: true}), 3, "a b a"},
		{"one on each node", near(scheduler.Affinity{Workload: "web", Key: scheduler.KeyNode, Anti: true}), 5, "d a b c"},
		{"one in each zone", near(scheduler.Affinity{Workload: "web", Key: scheduler.KeyZone, Anti: true}), 3, "d a"},
		{"all on one node, whichever is the best", near(scheduler.Affinity{Workload: "web", Key: scheduler.KeyNode}), 4, "d d d"},
		{"all in one zone", near(scheduler.Affinity{Workload: "web", Key: scheduler.KeyZone}), 4, "d c d c"},
		{"rather with db, as long as there is room", near(scheduler.Affinity{Workload: "db", Key: scheduler.KeyNode, Weight: 1}), 5, "d d d a b"},
		{"rather not with db", near(scheduler.Affinity{Workload: "db", Key: scheduler.KeyZone, Anti: true, Weight: 1}), 2, "a b"},
	} {
		plan := v.Plan(ask(c.r, c.count))
		if got := places(plan); got != c.want {
			t.Errorf("%s: placed on %q, want %q", c.what, got, c.want)
		}
	}
	prefer := revision("web", 1000, func(r *scheduler.Revision) {
		r.Preferences.Prefer = []scheduler.PreferredRule{{Rule: rule(t, "disk", scheduler.OpIn, "ssd"), Weight: 1}}
	})
	preferred := view(node("a"), node("slow", labelled("disk", "ssd"), func(n *scheduler.Node) { n.Reliability = 1 }))
	if got := places(preferred.Plan(ask(prefer, 3))); got != "slow slow a" {
		t.Errorf("a preferred node goes first while it has room: placed on %q", got)
	}
}

// Later workloads respect the anti-affinity of earlier ones.
func TestAntiAffinityHoldsBothWays(t *testing.T) {
	v := view(node("a"), node("b"))
	alone := revision("alone", 100, func(r *scheduler.Revision) {
		r.Preferences.Affinity = []scheduler.Affinity{{Selector: selector(t, "noisy"), Key: scheduler.KeyNode, Anti: true}}
	})
	run(v, alone, "a", 1)
	noisy := revision("noisy", 1000, func(r *scheduler.Revision) { r.Labels = map[string]string{"noisy": "yes"} })
	plan := v.Plan(ask(noisy, 3))
	if got := places(plan); got != "b b" {
		t.Fatalf("placed on %q", got)
	}
	if why := plan.Unplaced[0].Nodes[0].String(); why != "is refused because a replica of alone is on it, and alone stays away from others like this" {
		t.Errorf("refused because %s", why)
	}
}

// Replicas of one workload share its published ports; no other workload can have them.
func TestPorts(t *testing.T) {
	with := func(shared bool) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) {
			r.Needs.Ports, r.Needs.SharePorts = []scheduler.Port{{Number: 8080, Protocol: "tcp"}}, shared
		}
	}
	v := view(node("a"), node("b"))
	run(v, revision("web", 0, with(true)), "a", 1)
	for _, c := range []struct {
		what  string
		r     *scheduler.Revision
		count int
		want  string
	}{
		{"the same workload", revision("web", 0, with(true)), 3, "b a b"},
		{"another workload", revision("api", 0, with(true)), 3, "b b b"},
		{"in the machine's own network", revision("host", 0, with(false)), 3, "b"},
	} {
		if got := places(v.Plan(ask(c.r, c.count))); got != c.want {
			t.Errorf("%s: placed on %q, want %q", c.what, got, c.want)
		}
	}
}

// More or less of a node may be promised than it has.
func TestOvercommitAndReservation(t *testing.T) {
	v := view(node("a", func(n *scheduler.Node) {
		n.Overcommit[scheduler.CPU], n.Reserved[scheduler.CPU] = 1500, 500 // 2 CPU become 3, less a half
	}))
	plan := v.Plan(ask(revision("web", 500), 9))
	if got := len(plan.Placements); got != 4 { // memory is not overcommitted
		t.Errorf("%d fit", got)
	}
	light := revision("light", 500, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 })
	if got := len(v.Plan(ask(light, 9)).Placements); got != 5 {
		t.Errorf("%d light ones fit", got)
	}
}

// A quota is part of the plan, whatever room the nodes have.
func TestQuota(t *testing.T) {
	v := view(node("a"), node("b"))
	run(v, revision("old", 500), "a", 1)
	v.SetQuota("default", scheduler.Quota{Resources: scheduler.Resources{scheduler.CPU: 1200}, Replicas: 10})
	plan := v.Plan(ask(revision("web", 300), 4))
	if len(plan.Placements) != 2 || plan.Unplaced[0].Count != 2 {
		t.Fatalf("the plan is %+v", plan)
	}
	want := "2 replicas of web cannot be placed: the quota of namespace default is used up: needs 300m CPU, 100m of 1200m left"
	if got := plan.Unplaced[0].Summary(); got != want || plan.Unplaced[0].MainReason() != "quota" {
		t.Errorf("the summary is %q", got)
	}
	other := revision("web", 300, func(r *scheduler.Revision) { r.Namespace = "team" })
	if got := len(v.Plan(ask(other, 4)).Placements); got != 4 {
		t.Errorf("another namespace has %d", got)
	}
}

// Replicas on an offline node do not count against the quota, because they may have to be
// replaced. When the node is back, they do.
func TestOfflineReplicasDoNotCountAgainstQuota(t *testing.T) {
	away := func(n *scheduler.Node) { n.Unschedulable, n.Away = "is offline", true }
	v := view(node("a"), node("b"))
	web := revision("web", 500)
	run(v, web, "a", 2)
	v.SetQuota("default", scheduler.Quota{Replicas: 2})
	v.Wait(web)
	if got := len(v.Plan(ask(web, 2)).Placements); got != 0 {
		t.Errorf("%d more fit", got)
	}
	v.ApplyNode(node("a", away))
	if got := strings.Join(v.Wake(), " "); got != "workload-web" || v.Used("default") != (scheduler.Usage{}) {
		t.Errorf("a lost node wakes %q and leaves %+v", got, v.Used("default"))
	}
	if got := len(v.Plan(ask(web, 3)).Placements); got != 2 {
		t.Errorf("%d take the place of 2", got)
	}
	run(v, web, "b", 1)
	v.ApplyNode(node("a"))
	if got := v.Used("default"); got.Replicas != 3 || got.Resources[scheduler.CPU] != 1500 {
		t.Errorf("with the node back %+v is used", got)
	}
}

// Unset means unlimited, and 0 means nothing.
func TestQuotaFromProto(t *testing.T) {
	quota, err := scheduler.QuotaFromProto(&v1.Quota{Cpu: "1.5", Memory: "0", Replicas: new(int64(3)), Gpu: new(int64(0))})
	want := scheduler.Quota{
		Resources: scheduler.Resources{scheduler.CPU: 1500, scheduler.Memory: scheduler.NoneAtAll, scheduler.GPU: scheduler.NoneAtAll}, Replicas: 3,
	}
	if err != nil || quota != want {
		t.Errorf("%+v, %v", quota, err)
	}
	if none, err := scheduler.QuotaFromProto(nil); err != nil || none != (scheduler.Quota{}) {
		t.Errorf("nothing said is %+v, %v", none, err)
	}
	if _, err := scheduler.QuotaFromProto(&v1.Quota{Disk: "much"}); err == nil || !strings.Contains(err.Error(), "read the quota: disk") {
		t.Errorf("nonsense gives %v", err)
	}
	used := scheduler.Usage{Replicas: 4}
	need := scheduler.Resources{scheduler.CPU: 1000, scheduler.Memory: 1 << 20, scheduler.GPU: 1}
	used.Resources[scheduler.CPU] = 1000
	short := "the quota of namespace shop is used up: needs 1 CPU, 500m of 1500m left, needs 1Mi memory, 0 of 0 left, needs 1 GPU, 0 of 0 left, has 4 of at most 3 replicas"
	if got := quota.Short("shop", &used, &need); got != short {
		t.Errorf("short of %q", got)
	}
	if got := strings.Join(quota.Over(&used), ", "); got != "4 replicas of 3" {
		t.Errorf("over by %q", got)
	}
	if got := quota.Room(&used, &need); got != 0 {
		t.Errorf("room for %d", got)
	}
}

// Pending replicas get suggestions.
func TestHelp(t *testing.T) {
	v := view(node("a"), node("b"), node("c"), node("off", func(n *scheduler.Node) { n.Unschedulable = "is offline" }))
	for name, used := range map[string]int64{"a": 1800, "b": 1800, "c": 1900} {
		run(v, revision("filler-"+name, used, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 }), name, 1)
	}
	want := []string{
		"2 nodes would fit after 300m CPU is freed; the largest free is 200m on a",
		"1 node would fit but for ready: off is offline",
	}
	if got := v.Explain(scheduler.Question{Revision: revision("web", 500)}).Help; !slices.Equal(got, want) {
		t.Errorf("help is %q", got)
	}
}

// A waiting workload is woken only by changes that help it.
func TestWake(t *testing.T) {
	v := view(node("a"), node("b", labelled("disk", "ssd")))
	filler := revision("filler", 1900)
	onA, onB := run(v, filler, "a", 1), run(v, filler, "b", 1)
	ssd := revision("ssd", 500, func(r *scheduler.Revision) { r.Needs.Rules = []scheduler.Rule{rule(t, "disk", scheduler.OpIn, "ssd")} })
	limited := revision("limited", 500, func(r *scheduler.Revision) { r.Namespace = "team" })
	v.SetQuota("team", scheduler.Quota{Replicas: scheduler.NoneAtAll})
	huge := revision("huge", 9000)
	for _, r := range []*scheduler.Revision{ssd, limited, huge} {
		v.Wait(r)
	}
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"nothing", func() {}, ""},
		{"room on a node that will not do", func() { v.RemoveReplica(onA[0]) }, ""},
		{"a node that is still too small", func() { v.ApplyNode(node("b", labelled("disk", "ssd"), cores(2))) }, ""},
		{"a higher quota, now that a has room", func() { v.SetQuota("team", scheduler.Quota{Replicas: 1}) }, "workload-limited"},
		{"a label", func() { v.ApplyNode(node("a", labelled("disk", "ssd"))) }, "workload-ssd"},
		{"the same again", func() { v.RemoveReplica(onB[0]) }, ""},
		{"a new node", func() { v.ApplyNode(node("c", cores(16))) }, "workload-huge"},
	} {
		step.do()
		if got := strings.Join(v.Wake(), " "); got != step.want {
			t.Errorf("%s wakes %q, want %q", step.what, got, step.want)
		}
	}
}

// A plan leaves the view as it was: planned replicas are not there, running ones are.
func TestPlanLeavesTheViewUnchanged(t *testing.T) {
	v := view(node("a"))
	web := revision("web", 1500)
	first := v.Plan(ask(web, 1))
	if again := v.Plan(ask(web, 1)); len(again.Placements) != 1 || again.Placements[0].Node != first.Placements[0].Node {
		t.Errorf("what was planned does not fit any more: %v", again)
	}
	run(v, revision("other", 1000), "a", 1)
	if later := v.Plan(ask(web, 1)); len(later.Placements) != 0 {
		t.Errorf("what was planned fits though something else is there now: %v", later)
	}
}
