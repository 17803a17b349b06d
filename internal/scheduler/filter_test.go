package scheduler_test

import (
	"testing"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// Every filter has its sentence. Node a is refused, node z is not.
func TestFilters(t *testing.T) {
	for _, c := range []struct {
		filter string
		a      func(*scheduler.Node)
		r      func(*scheduler.Revision)
		why    string
	}{
		{
			"platform", func(n *scheduler.Node) { n.Platform = "linux/arm64" },
			func(r *scheduler.Revision) { r.Needs.Platforms = []string{"linux/amd64"} },
			"is linux/arm64; the image is for linux/amd64",
		},
		{
			"place", func(n *scheduler.Node) { n.Region, n.Zone = "us", "us-1" },
			func(r *scheduler.Revision) { r.Needs.Regions, r.Needs.Zones = []string{"eu"}, []string{"eu-1", "eu-2"} },
			"is in region us, not eu, is in zone us-1, not eu-1 or eu-2",
		},
		{
			"labels", labelled("kernel", "5.10.0-8", "cores", "4", "name", "db-1"),
			func(r *scheduler.Revision) {
				r.Needs.Rules = []scheduler.Rule{
					rule(t, "kernel", scheduler.OpVersion, ">=6.1"), rule(t, "cores", scheduler.OpGreater, "4"),
					rule(t, "name", scheduler.OpMatches, "web-[0-9]+"), rule(t, "gpu", scheduler.OpNotExists),
				}
			},
			"label kernel is 5.10.0-8, not a version >=6.1, label cores is 4, not more than 4, label name is db-1, not what matches web-[0-9]+",
		},
		{
			"taints", func(n *scheduler.Node) {
				n.Taints = []scheduler.Taint{{Key: "only", Value: "db", Effect: scheduler.NoSchedule}}
			},
			func(*scheduler.Revision) {},
			"has the taint only=db:NoSchedule, which is not tolerated",
		},
		{
			"taints", func(n *scheduler.Node) { n.Taints = []scheduler.Taint{{Key: "out", Effect: scheduler.NoExecute}} },
			func(r *scheduler.Revision) { r.Needs.Tolerations = []scheduler.Toleration{{Key: "out", Seconds: 20}} },
			"has the taint out:NoExecute, which is tolerated for 20 seconds only, by those that are there already",
		},
		{
			"gpu", func(n *scheduler.Node) { n.GPUModel, n.Capacity[scheduler.GPU] = "t4", 4 },
			func(r *scheduler.Revision) { r.Needs.GPUModel, r.Needs.Resources[scheduler.GPU] = "a100", 1 },
			"has GPUs of model t4, not a100",
		},
		{
			"name", func(n *scheduler.Node) { n.Hostname = "b" },
			func(r *scheduler.Revision) {
				r.Needs.Rules = []scheduler.Rule{
					rule(t, spec.LabelName, scheduler.OpMatches, "[u-z]"), rule(t, spec.LabelHostname, scheduler.OpNotIn, "b"),
					rule(t, spec.LabelHostname, scheduler.OpNotExists),
				}
			},
			"label node.cloudless/name is a, not what matches [u-z], label node.cloudless/hostname is b, not something else, " +
				"label node.cloudless/hostname is b, not left out",
		},
		{
			"fit", func(n *scheduler.Node) { n.Capacity[scheduler.Disk], n.Capacity[scheduler.Bandwidth] = gi, 1e8 },
			func(r *scheduler.Revision) {
				r.Needs.Resources[scheduler.Disk], r.Needs.Resources[scheduler.Bandwidth] = 2*gi, 1e9
			},
			"needs 2Gi disk, 1Gi of 1Gi free, needs 1G bandwidth, 100M of 100M free",
		},
		{
			"volumes", func(*scheduler.Node) {},
			func(r *scheduler.Revision) { r.Needs.Nodes = []string{"uid-z"} },
			"is none of the nodes that must be used, and those are not there",
		},
		{
			"policy", func(n *scheduler.Node) { n.Labels = map[string]string{"trusted": "no"} },
			func(r *scheduler.Revision) {
				r.Needs.Policy = func(n *scheduler.Node) string {
					if n.Labels["trusted"] == "no" {
						return "is not trusted by policy secrets"
					}
					return ""
				}
			},
			"is not trusted by policy secrets",
		},
	} {
		good := node("z", inZone("eu-1"), labelled("kernel", "6.1.0-18", "cores", "8", "name", "web-1"), func(n *scheduler.Node) {
			n.Region, n.GPUModel = "eu", "a100"
			n.Capacity[scheduler.GPU], n.Capacity[scheduler.Disk], n.Capacity[scheduler.Bandwidth] = 1, 10*gi, 1e9
		})
		r := revision("web", 100, c.r)
		if got := places(view(node("a", c.a), good).Plan(ask(r, 1))); got != "z" {
			t.Errorf("%s: placed on %q", c.filter, got)
		}
		plan := view(node("a", c.a)).Plan(ask(r, 1))
		if len(plan.Unplaced) != 1 || plan.Unplaced[0].Nodes[0].Refusals[0].Filter != c.filter || plan.Unplaced[0].Nodes[0].String() != c.why {
			t.Errorf("%s: %+v, want %q", c.filter, plan.Unplaced, c.why)
		}
	}
}

// A preferred name outranks the score as every preference does, and the class of nodes does
// not depend on names.
func TestPreferredNames(t *testing.T) {
	v := view(node("a"), node("b"), node("c"))
	r := revision("web", 100, func(r *scheduler.Revision) {
		r.Preferences.Prefer = []scheduler.PreferredRule{
			{Rule: rule(t, spec.LabelName, scheduler.OpIn, "c"), Weight: 10}, {Rule: rule(t, spec.LabelName, scheduler.OpMatches, "[bc]"), Weight: 1},
		}
	})
	plan := v.Plan(ask(r, 2))
	if got := places(plan); got != "c c" || plan.Placements[0].Score.Affinity != 11 {
		t.Errorf("placed on %q, %+v", got, plan.Placements)
	}
	// The next ask is not about names.
	if got := places(v.Plan(ask(revision("api", 100), 3))); got != "a b c" {
		t.Errorf("placed on %q", got)
	}
}

// A model is named in full or by some of its words.
func TestGPUModels(t *testing.T) {
	gpus := func(n *scheduler.Node) { n.GPUModel, n.Capacity[scheduler.GPU] = "a100-sxm4-40gb", 2 }
	for model, fits := range map[string]bool{
		"": true, "a100": true, "A100": true, "a100-sxm4-40gb": true, "NVIDIA": false, "a10": false, "sxm4 40gb": true, "40gb-a100": false,
	} {
		r := revision("train", 100, func(r *scheduler.Revision) { r.Needs.GPUModel, r.Needs.Resources[scheduler.GPU] = model, 2 })
		if got := places(view(node("a", gpus)).Plan(ask(r, 1))) == "a"; got != fits {
			t.Errorf("%q is %v", model, got)
		}
	}
}

func TestOperators(t *testing.T) {
	labels := map[string]string{"zone": "b", "cores": "8", "version": "v1.10.2"}
	for _, c := range []struct {
		key, operator string
		values        []string
		holds         bool
	}{
		{"zone", scheduler.OpIn, []string{"a", "b"}, true},
		{"zone", scheduler.OpIn, []string{"a"}, false},
		{"zone", scheduler.OpNotIn, []string{"a"}, true},
		{"none", scheduler.OpNotIn, []string{"a"}, true},
		{"none", scheduler.OpIn, []string{"a"}, false},
		{"zone", scheduler.OpExists, nil, true},
		{"none", scheduler.OpExists, nil, false},
		{"none", scheduler.OpNotExists, nil, true},
		{"cores", scheduler.OpGreater, []string{"4"}, true},
		{"cores", scheduler.OpGreater, []string{"8"}, false},
		{"cores", scheduler.OpLess, []string{"16"}, true},
		{"zone", scheduler.OpLess, []string{"16"}, false},
		{"version", scheduler.OpVersion, []string{">=1.9, <2"}, true},
		{"version", scheduler.OpVersion, []string{"<1.10"}, false},
		{"version", scheduler.OpMatches, []string{`v1\..*`}, true},
		{"version", scheduler.OpMatches, []string{`1`}, false}, // the whole value must match
		{"version", scheduler.OpMatches, []string{`v1|v1\.10\.2`}, true},
		{"version", scheduler.OpMatches, []string{`\Qv1.10.2`}, true}, // \Q needs no \E
		{"version", scheduler.OpMatches, []string{`\Qv1.10`}, false},
	} {
		v := view(node("a", func(n *scheduler.Node) { n.Labels = labels }))
		r := revision("web", 1, func(r *scheduler.Revision) {
			r.Needs.Rules = []scheduler.Rule{rule(t, c.key, c.operator, c.values...)}
		})
		if got := len(v.Plan(ask(r, 1)).Placements) == 1; got != c.holds {
			t.Errorf("%s %s %v: %v", c.key, c.operator, c.values, got)
		}
	}
	for _, wrong := range [][]string{{"a", "in"}, {"a", "exists", "x"}, {"a", "gt", "x"}, {"a", "version", "new"}, {"a", "matches", "("}, {"a", "like", "x"}, {"a", "lt", "1", "2"}} {
		if _, err := scheduler.NewRule(wrong[0], wrong[1], wrong[2:]...); err == nil {
			t.Errorf("%v was read", wrong)
		}
	}
}

// Taints keep intolerant replicas away: always, or if any other node will do.
func TestTaints(t *testing.T) {
	tainted := func(effect string) func(*scheduler.Node) {
		return func(n *scheduler.Node) { n.Taints = []scheduler.Taint{{Key: "spot", Effect: effect}} }
	}
	bearing := func(tolerations ...scheduler.Toleration) *scheduler.Revision {
		return revision("web", 100, func(r *scheduler.Revision) { r.Needs.Tolerations = tolerations })
	}
	for _, c := range []struct {
		what, effect string
		r            *scheduler.Revision
		want         string
	}{
		{"NoSchedule keeps away", scheduler.NoSchedule, bearing(), "b b"},
		{"what is borne does not count", scheduler.NoSchedule, bearing(scheduler.Toleration{Key: "spot"}), "a b"},
		{"NoExecute borne for a while does not let in", scheduler.NoExecute, bearing(scheduler.Toleration{Key: "spot", Seconds: 60}), "b b"},
		{"NoExecute borne for ever does", scheduler.NoExecute, bearing(scheduler.Toleration{Effect: scheduler.NoExecute}), "a b"},
		{"PreferNoSchedule goes before levelling", scheduler.PreferNoSchedule, bearing(), "b b"},
	} {
		v := view(node("a", tainted(c.effect)), node("b"))
		if got := places(v.Plan(ask(c.r, 2))); got != c.want {
			t.Errorf("%s: placed on %q, want %q", c.what, got, c.want)
		}
	}
	avoided := view(node("a", tainted(scheduler.PreferNoSchedule)))
	if got := places(avoided.Plan(ask(bearing(), 1))); got != "a" {
		t.Errorf("what should be avoided is taken if nothing else is there, not %q", got)
	}
	seconds, forever := scheduler.Tolerates([]scheduler.Toleration{{Key: "spot", Seconds: 30}, {Seconds: 60}}, scheduler.Taint{Key: "spot", Effect: scheduler.NoExecute})
	if seconds != 60 || forever {
		t.Errorf("borne for %d seconds, for ever: %v", seconds, forever)
	}
}
