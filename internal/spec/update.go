package spec

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// How a new revision replaces the old one.
const (
	StrategyRolling   = "rolling"
	StrategyRecreate  = "recreate"
	StrategyBlueGreen = "blue-green"
	StrategyCanary    = "canary"
)

const (
	defaultSurge            = "25%"
	defaultMinReady         = 3 * time.Second
	defaultProgressDeadline = "5m"
	defaultKeepOld          = "5m"
)

// The phases of a deployment. The last three are final.
//
//	pending ──▶ running ◀──▶ paused
//	   │           │            │
//	   └───────────┼────────────┘
//	               ▼
//	succeeded, failed or rolled back
const (
	DeploymentPending    = "pending" // the leader has not begun with it yet
	DeploymentRunning    = "running"
	DeploymentPaused     = "paused"
	DeploymentSucceeded  = "succeeded"
	DeploymentFailed     = "failed"
	DeploymentRolledBack = "rolled back"
)

// What made a deployment.
const (
	CauseCreate   = "create"
	CauseApply    = "apply"
	CauseRestart  = "restart"
	CauseRollback = "rollback"
)

// DeploymentEnded reports whether a deployment in this phase changes nothing any more.
func DeploymentEnded(phase string) bool {
	switch phase {
	case DeploymentSucceeded, DeploymentFailed, DeploymentRolledBack:
		return true
	}
	return false
}

// DeploymentOpen reports whether a deployment exists and has not ended.
func DeploymentOpen(d *v1.Deployment) bool {
	return d != nil && !DeploymentEnded(d.GetStatus().GetPhase())
}

// HasDeployments reports whether a deployment rolls out each revision of a workload: only services and daemons have
// old replicas to replace.
func HasDeployments(s *v1.WorkloadSpec) bool { return !RunsToEnd(s) }

// StrategyOf is how a new revision of a workload replaces the old one.
func StrategyOf(s *v1.WorkloadSpec) string {
	if s.GetSingleton() {
		return StrategyRecreate
	}
	if strategy := s.GetUpdate().GetStrategy(); strategy != "" {
		return strategy
	}
	return StrategyRolling
}

// DeploymentStrategy is how a deployment of a workload replaces replicas. One from a release that did not keep the
// strategy has that of the workload.
func DeploymentStrategy(d *v1.Deployment, s *v1.WorkloadSpec) string {
	if strategy := d.GetSpec().GetStrategy(); strategy != "" {
		return strategy
	}
	return StrategyOf(s)
}

// AwaitsPromotion reports whether a blue-green deployment of a workload switches only when an operator promotes it. A
// rollback does not wait, because its revision has had the traffic before.
func AwaitsPromotion(s *v1.WorkloadSpec, d *v1.Deployment) bool {
	return s.GetUpdate().GetManualSwitch() && !d.GetSpec().GetPromoted() && d.GetSpec().GetPreviousUid() != "" && d.GetSpec().GetCause() != CauseRollback
}

// SurgeOf is how many replicas a rolling update may run beyond the desired number. It is at least 1.
func SurgeOf(s *v1.WorkloadSpec, desired int) int {
	text := s.GetUpdate().GetMaxSurge()
	fill(&text, defaultSurge)
	number, percentage := strings.CutSuffix(text, "%")
	n, _ := strconv.Atoi(number) // valid, or refused before it was stored
	if percentage {
		n = (n*desired + 99) / 100
	}
	return max(n, 1)
}

// MinReadyOf is how long a new replica must serve before the update goes on.
func MinReadyOf(s *v1.WorkloadSpec) time.Duration {
	if text := s.GetUpdate().GetMinReady(); text != "" {
		return durationOr(text, "")
	}
	return defaultMinReady
}

// ProvenByOne reports whether a revision has proven itself as soon as one of its replicas is steady. The others then only
// have to be ready, which their readiness probe says better than time does.
func ProvenByOne(s *v1.WorkloadSpec) bool {
	return s.GetUpdate().GetMinReady() == "" && s.GetProbes().GetReadiness() != nil
}

// ProgressDeadlineOf is how long a deployment may go without progress before it fails.
func ProgressDeadlineOf(s *v1.WorkloadSpec) time.Duration {
	return durationOr(s.GetUpdate().GetProgressDeadline(), defaultProgressDeadline)
}

// KeepOldOf is how long a blue-green deployment keeps the old replicas after the switch.
func KeepOldOf(s *v1.WorkloadSpec) time.Duration {
	return durationOr(s.GetUpdate().GetKeepOld(), defaultKeepOld)
}

// LostAfterOf is how long after a node was last seen its replicas of a workload are replaced; 0 if as soon as the node
// is offline.
func LostAfterOf(s *v1.WorkloadSpec) time.Duration { return durationOr(s.GetLostAfter(), "") }

// durationOr reads a valid duration, or the other one if it is empty.
func durationOr(text, otherwise string) time.Duration {
	fill(&text, otherwise)
	d, _ := ParseDuration(text)
	return d
}

// normalUpdate brings an update to its canonical form, which leaves out defaults, and is nil if nothing remains.
func normalUpdate(u *v1.Update) *v1.Update {
	if u == nil {
		return nil
	}
	for _, d := range []*string{&u.MinReady, &u.ProgressDeadline, &u.KeepOld} {
		normalDuration(d, "")
	}
	u.Canary = normalCanary(u.Canary)
	leaveOut(&u.Strategy, StrategyRolling)
	leaveOut(&u.MaxSurge, defaultSurge)
	leaveOut(&u.ProgressDeadline, defaultProgressDeadline)
	leaveOut(&u.KeepOld, defaultKeepOld)
	if proto.Equal(u, &v1.Update{}) {
		return nil
	}
	return u
}

func leaveOut(s *string, value string) {
	if *s == value {
		*s = ""
	}
}

// checkUpdate refuses settings of an update that would have no effect or could never be met.
func checkUpdate(s *v1.WorkloadSpec, found *violations) {
	const path = "spec.update"
	u, strategy := s.GetUpdate(), StrategyOf(s)
	if u == nil {
		return
	}
	if !HasDeployments(s) {
		found.add(path, "is not for kind %s, which has no old replicas to replace; leave it out", s.Kind)
		return
	}
	if s.GetKind() == KindDaemon && strategy == StrategyBlueGreen {
		found.add(path+".strategy", "must be rolling or recreate for kind daemon: a node has no room for two sets")
	}
	if strategy == StrategyRecreate && s.GetMinAvailable() > 0 {
		found.add(path+".strategy", "recreate stops all replicas at once, and minAvailable keeps %d of them: choose another strategy, or leave minAvailable out", s.GetMinAvailable())
	}
	if policy := s.GetRestart().GetPolicy(); strategy == StrategyBlueGreen && policy != "" && policy != defaultPolicy {
		found.add(path+".strategy", "blue-green runs two sets at once, which needs restart.policy always: work that ends by itself must not be done twice")
	}
	if u.MaxSurge != "" && strategy != StrategyRolling && strategy != StrategyCanary {
		found.add(path+".maxSurge", "is only for the strategies rolling and canary; leave it out")
	}
	checkCanary(s, strategy, found)
	if strategy != StrategyBlueGreen && u.KeepOld != "" {
		found.add(path+".keepOld", "is only for strategy blue-green; leave it out")
	}
	if strategy != StrategyBlueGreen && u.ManualSwitch {
		found.add(path+".manualSwitch", "is only for strategy blue-green; leave it out")
	}
	readAmount(path+".keepOld", u.KeepOld, ParseDuration, found)
	_, okReady := readAmount(path+".minReady", u.MinReady, ParseDuration, found)
	deadline, ok := readAmount(path+".progressDeadline", u.ProgressDeadline, ParseDuration, found)
	switch ready := MinReadyOf(s); {
	case ok && deadline == 0:
		found.add(path+".progressDeadline", "must be more than 0")
	case (ok || okReady) && ProgressDeadlineOf(s) <= ready:
		found.add(path+".progressDeadline", "must be longer than minReady, which is %s: otherwise no deployment could succeed", FormatDuration(ready))
	}
}

// EpochVariable is the environment variable with the fencing epoch of a singleton's replica.
const EpochVariable = "CLOUDLESS_EPOCH"

// checkSingleton refuses what a workload of which at most one replica runs cannot do. It gets the canonical form.
func checkSingleton(s *v1.WorkloadSpec, found *violations) {
	if !s.GetSingleton() {
		return
	}
	if s.GetKind() != "" {
		found.add("spec.singleton", "is only for services; leave it out")
		return
	}
	if s.GetReplicas() > 1 {
		found.add("spec.replicas", "must be 0 or 1 for a singleton")
	}
	if strategy := s.GetUpdate().GetStrategy(); strategy != "" && strategy != StrategyRecreate {
		found.add("spec.update.strategy", "must be recreate for a singleton, or left out: the old replica stops before the new one starts")
	}
	if s.GetMinAvailable() > 0 {
		found.add("spec.minAvailable", "is not for a singleton: its only replica stops before another one starts; leave it out")
	}
	if policy := s.GetRestart().GetPolicy(); policy != "" && policy != defaultPolicy {
		found.add("spec.restart.policy", "must be always for a singleton: a node stops the replica when it hears from no server, and starts it again later")
	}
	if _, given := s.GetEnv()[EpochVariable]; given {
		found.add("spec.env", "must not contain %s, which the cluster sets for a singleton", EpochVariable)
	}
}

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
