package spec

import (
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The phases of a release command.
const (
	ReleaseRunning   = "running"
	ReleaseCompleted = "completed"
	ReleaseFailed    = "failed"
	ReleaseStopped   = "stopped" // its deployment has ended before
)

const defaultReleaseTimeout = "10m"

// releaseSuffix is how much longer the name of a release job is than that of its workload, at most.
const releaseSuffix = len("-release-999999")

// ReleaseName is the name of the job that runs the release command of a deployment.
func ReleaseName(workload string, deployment uint64) string {
	return fmt.Sprintf("%s-release-%d", workload, deployment)
}

// IsRelease reports whether a workload is the job of a release command.
func IsRelease(w *v1.Workload) bool {
	return w.GetSpec().GetKind() == KindJob && w.GetStatus().GetDeploymentUid() != ""
}

// Waits reports whether the newest deployment of a workload has not begun to create replicas.
func Waits(w *v1.Workload, newest *v1.Deployment) bool {
	return newest.GetStatus().GetWaiting() && newest.GetSpec().GetRevisionUid() == w.GetStatus().GetRevisionUid()
}

func normalRelease(r *v1.Release) {
	if r != nil {
		normalDuration(&r.Timeout, defaultReleaseTimeout)
	}
}

// checkRelease refuses a release command that could not run.
func checkRelease(name string, s *v1.WorkloadSpec, found *violations) {
	const path = "spec.release"
	if s.GetRelease() == nil {
		return
	}
	if !HasDeployments(s) {
		found.add(path, "is not for kind %s, which has no deployments; leave it out", s.Kind)
		return
	}
	if command := s.Release.GetCommand(); len(command) == 0 || command[0] == "" {
		found.add(path+".command", "is missing: write what to run before the first new replica, such as [/app, migrate]")
	}
	if timeout, ok := readAmount(path+".timeout", s.Release.GetTimeout(), ParseDuration, found); ok && timeout == 0 {
		found.add(path+".timeout", "must be more than 0")
	}
	if longest := maxName - releaseSuffix; len(name) > longest {
		found.add("metadata.name", "must have at most %d characters for a workload with a release command: its jobs have the name with a number behind it", longest)
	}
}

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
