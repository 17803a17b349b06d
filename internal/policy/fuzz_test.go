package policy_test

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
)

// FuzzExpression compiles and evaluates any expression. None may panic or take long, and every accepted one gives a verdict.
func FuzzExpression(f *testing.F) {
	for _, expression := range []string{
		`true`, `object.spec.network != "host"`, `object.spec.ports.all(p, p.publish >= 1024)`, `has(object.metadata.labels.team)`,
		`registry(object.spec.image) in ["a", "b"]`, `cpu(object.spec.resources.limits.cpu) < 4000`, `"a".split("").join("b").size() < 3`,
		`object.metadata.labels.exists(k, k.matches("^[a-z]+$"))`, `now > timestamp("2026-01-01T00:00:00Z")`, `[1, 2].map(x, x * 2)[5] == 3`,
		`before == null || before.spec == object.spec`, `1 / 0 == 1`, `caller.groups.exists_one(g, g == "a")`, `object.spec.env == {}`,
		`sets.intersects(caller.roles, ["admin"])`, `object.metadata.labels[?"a"].orValue("") == ""`, `node.metadata.name == "a"`,
	} {
		f.Add(expression, false)
		f.Add(expression, true)
	}
	f.Fuzz(func(t *testing.T, expression string, aboutNodes bool) {
		if len(expression) > 1024 {
			return
		}
		p := with(expression)
		if aboutNodes {
			aboutNode(p)
		}
		if policy.Check(p) != nil {
			return
		}
		made := policy.Compile(p)
		made.Judge(t.Context(), &policy.Request{Kind: "workload", Verb: policy.Create, Object: workload(), Caller: &v1.PolicyCaller{}})
		made.RefusesNode(workload(), &v1.Node{Metadata: &v1.Metadata{Name: "a"}})
	})
}
