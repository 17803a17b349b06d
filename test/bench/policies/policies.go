// Package policies measures what policies cost a call: twenty different ones judge one workload.
//
// It must not know how figures are recorded.
package policies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
)

// expressions are what teams write in policies: registries, users, ports, labels, resources, priorities and callers.
var expressions = []string{
	`registry(object.spec.image) in ["registry.cloudless.internal", "ghcr.io"]`,
	`digest(object.spec.image) != "" || tag(object.spec.image) != "latest"`,
	`object.spec.network != "host"`,
	`object.spec.user != "" && !object.spec.user.matches("^(root|0+)(:.*)?$")`,
	`object.spec.ports.all(p, p.publish == 0 || p.publish >= 1024)`,
	`has(object.metadata.labels.team)`,
	`object.metadata.labels[?"owner"].orValue("").matches("^[a-z][a-z0-9-]+$")`,
	`object.spec.priority <= 100 || "admin" in caller.roles`,
	`memory(object.spec.resources.limits.memory) <= memory("4Gi")`,
	`cpu(object.spec.resources.limits.cpu) <= cpu("4")`,
	`object.spec.replicas <= 50`,
	`object.spec.security.profile != "privileged"`,
	`size(object.spec.security.devices) == 0`,
	`object.spec.env.all(k, !k.endsWith("_PASSWORD"))`,
	`verb == "create" || before.spec.network == object.spec.network`,
	`object.metadata.namespace != "default"`,
	`object.metadata.name.size() <= 40`,
	`"developers" in caller.groups || "operator" in caller.roles`,
	`!object.spec.ports.exists(p, p.protocol == "udp" && p.publish != 0)`,
	`now > timestamp("2026-01-01T00:00:00Z")`,
}

// subject is the workload that is judged.
func subject() *v1.Workload {
	w := &v1.Workload{
		Metadata: &v1.Metadata{Name: "web", Namespace: "shop", Labels: map[string]string{"team": "shop", "owner": "ada"}},
		Spec: &v1.WorkloadSpec{
			Image: "ghcr.io/shop/web:1.2", User: "1000:1000", Replicas: proto.Int32(3), Env: map[string]string{},
			Resources: &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "500m", Memory: "256Mi"}},
		},
	}
	for i := range 4 {
		w.Spec.Ports = append(w.Spec.Ports, &v1.Port{Port: int32(8080 + i), Publish: int32(18080 + i)})
	}
	for i := range 20 {
		w.Spec.Env[fmt.Sprintf("SETTING_%d", i)] = "value"
	}
	return w
}

// rounds is how often the workload is judged.
const rounds = 2000

// Cost is the median time in which all policies judge the workload. It is an error if a rule is broken: then less would be
// evaluated than is measured.
func Cost(ctx context.Context) (time.Duration, error) {
	var all []*policy.Policy
	for i, expression := range expressions {
		p := &v1.Policy{
			Metadata: &v1.Metadata{Name: fmt.Sprintf("policy-%d", i), Uid: fmt.Sprint(i)},
			Spec:     &v1.PolicySpec{Rules: []*v1.PolicyRule{{Name: "rule", Expression: expression, Message: "it is broken"}}},
		}
		if err := policy.Check(p); err != nil {
			return 0, fmt.Errorf("policy %d: %w", i, err)
		}
		all = append(all, policy.Compile(p))
	}
	request := &policy.Request{
		Kind: "workload", Verb: policy.Create, Object: subject(), Now: time.Now(),
		Caller: &v1.PolicyCaller{Id: "user/ada", User: "ada", Groups: []string{"developers"}, Roles: []string{"operator"}},
	}
	took := make([]time.Duration, rounds)
	for i := range took {
		began := time.Now()
		for _, p := range all {
			if found := p.Judge(ctx, request); len(found) > 0 {
				return 0, fmt.Errorf("%s is broken: %s", found[0].GetPolicy(), found[0].GetMessage())
			}
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[rounds/2], nil
}
