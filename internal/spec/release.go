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
