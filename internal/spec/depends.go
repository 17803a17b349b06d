package spec

import v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

// What a workload that depends on another one waits for.
const (
	DependsReady     = "ready"
	DependsCompleted = "completed"
)

// checkDependsOn refuses dependencies that could never be met, as far as one workload tells.
func checkDependsOn(name string, s *v1.WorkloadSpec, found *violations) {
	const path = "spec.dependsOn"
	if len(s.GetDependsOn()) > 0 && s.GetKind() == KindCron {
		found.add(path, "is not for kind cron, whose jobs start by the clock; leave it out")
	}
	if _, itself := s.GetDependsOn()[name]; itself {
		found.add(path, "names the workload itself, which would wait for itself forever; leave %s out", name)
	}
}

// DependencyCycle is a chain of workloads that depend on each other in a circle, from a workload back to itself. It is
// empty if there is none. dependsOn lists what the workload with a name depends on.
func DependencyCycle(start string, dependsOn func(name string) []string) []string {
	done := map[string]bool{}
	var walk func(name string, chain []string) []string
	walk = func(name string, chain []string) []string {
		chain = append(chain, name)
		for _, next := range dependsOn(name) {
			if next == start {
				return append(chain, start)
			}
			if done[next] {
				continue
			}
			done[next] = true
			if cycle := walk(next, chain); cycle != nil {
				return cycle
			}
		}
		return nil
	}
	return walk(start, nil)
}
