package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	defaultBake        = "2m"
	defaultMinRequests = 50
)

var defaultSteps = []string{"5%", "25%", "50%"}

// CanaryOf is the canary block of a deployment that goes by steps, nil for any other. Without an earlier revision nothing
// could get the rest of the traffic, and a rollback leads to a revision that has had all of it.
func CanaryOf(d *v1.Deployment) *v1.Canary {
	s := d.GetSpec()
	if s.GetStrategy() != StrategyCanary || s.GetPreviousUid() == "" {
		return nil
	}
	if s.GetCanary() == nil {
		return &v1.Canary{}
	}
	return s.GetCanary()
}

// CanaryOpen reports whether a deployment shares the traffic out between the last good revision and its own.
func CanaryOpen(d *v1.Deployment) bool {
	return CanaryOf(d) != nil && DeploymentOpen(d) && !d.GetStatus().GetWaiting()
}

// CanaryStepping reports whether a deployment has steps left, the present one included. Afterwards it replaces the other
// replicas as a rolling update does.
func CanaryStepping(d *v1.Deployment) bool {
	return CanaryOpen(d) && int(d.GetStatus().GetStep()) <= len(StepsOf(CanaryOf(d)))
}

// StepsOf are the shares of the steps of a canary, in percent.
func StepsOf(c *v1.Canary) (shares []int) {
	steps := c.GetSteps()
	if len(steps) == 0 {
		steps = defaultSteps
	}
	for _, text := range steps {
		n, _ := strconv.Atoi(strings.TrimSuffix(text, "%")) // valid, or refused before it was stored
		shares = append(shares, n)
	}
	return shares
}

// BakeOf is how long each step of a canary must hold.
func BakeOf(c *v1.Canary) time.Duration { return durationOr(c.GetBake(), defaultBake) }

// Analysis are the limits of a canary.
type Analysis struct {
	// MaxErrors is how many of 10,000 requests may fail, and MaxP99 how long 99 of 100 may take. JudgesErrors and
	// JudgesP99 are whether there is such a limit.
	MaxErrors               int
	MaxP99                  time.Duration
	JudgesErrors, JudgesP99 bool
	// MaxRestarts is how often replicas may restart in total.
	MaxRestarts int
	// MinRequests is how many requests there must be before errors and P99 are judged.
	MinRequests uint64
}

// AnalysisOf are the limits of a canary.
func AnalysisOf(c *v1.Canary) Analysis {
	a := c.GetAnalysis()
	limits := Analysis{MaxRestarts: int(a.GetMaxRestarts()), MinRequests: defaultMinRequests}
	if a != nil && a.MinRequests != nil {
		limits.MinRequests = uint64(a.GetMinRequests())
	}
	if text := a.GetMaxErrorRate(); text != "" {
		limits.JudgesErrors, limits.MaxErrors = true, parseRate(text)
	}
	if text := a.GetMaxP99(); text != "" {
		limits.JudgesP99, limits.MaxP99 = true, durationOr(text, "")
	}
	return limits
}

// parseRate reads a valid percentage with at most two decimals, as parts of 10,000.
func parseRate(text string) int {
	whole, fraction, _ := strings.Cut(strings.TrimSuffix(text, "%"), ".")
	n, _ := strconv.Atoi(whole + (fraction + "00")[:2])
	return n
}

// FormatRate writes parts of 10,000 as a percentage, such as "0.5%".
func FormatRate(parts int) string {
	text := fmt.Sprintf("%d.%02d", parts/100, parts%100)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "%"
}

// normalCanary brings a canary block to its canonical form, which leaves out defaults, and is nil if nothing remains.
func normalCanary(c *v1.Canary) *v1.Canary {
	if c == nil {
		return nil
	}
	if slices.Equal(c.Steps, defaultSteps) {
		c.Steps = nil
	}
	normalDuration(&c.Bake, defaultBake)
	if a := c.Analysis; a != nil {
		normalDuration(&a.MaxP99, "")
		if rateRegexp().MatchString(a.MaxErrorRate) {
			a.MaxErrorRate = FormatRate(parseRate(a.MaxErrorRate))
		}
		if a.MaxRestarts != nil && a.GetMaxRestarts() == 0 {
			a.MaxRestarts = nil
		}
		if a.MinRequests != nil && a.GetMinRequests() == defaultMinRequests {
			a.MinRequests = nil
		}
		if proto.Equal(a, &v1.CanaryAnalysis{}) {
			c.Analysis = nil
		}
	}
	leaveOut(&c.Bake, defaultBake)
	if proto.Equal(c, &v1.Canary{}) {
		return nil
	}
	return c
}

// rateRegexp matches what the rules of the .proto file accept: a file is normalized before it is checked.
var rateRegexp = lazyRegexp(`^(100|[0-9]{1,2}([.][0-9]{1,2})?)%$`)

// checkCanary refuses a canary block that has no effect or could not be carried out.
func checkCanary(s *v1.WorkloadSpec, strategy string, found *violations) {
	const path = "spec.update"
	c := s.GetUpdate().GetCanary()
	if strategy != StrategyCanary {
		if c != nil {
			found.add(path+".canary", "is only for strategy canary; set spec.update.strategy to canary, or leave it out")
		}
		return
	}
	if s.GetKind() == KindDaemon {
		found.add(path+".strategy", "must be rolling or recreate for kind daemon: a node has no room for two sets")
	}
	if policy := s.GetRestart().GetPolicy(); policy != "" && policy != defaultPolicy {
		found.add(path+".strategy", "canary runs two sets at once, which needs restart.policy always: work that ends by itself must not be done twice")
	}
	before := 0
	for i, share := range StepsOf(c) {
		if share <= before && share > 0 {
			found.add(fmt.Sprintf("%s.canary.steps[%d]", path, i), "must be more than the step before, which is %d%%: each step adds traffic", before)
		}
		before = share
	}
	readAmount(path+".canary.bake", c.GetBake(), ParseDuration, found)
	a := c.GetAnalysis()
	if p99, ok := readAmount(path+".canary.analysis.maxP99", a.GetMaxP99(), ParseDuration, found); ok && p99 == 0 {
		found.add(path+".canary.analysis.maxP99", "must be more than 0: every request takes some time")
	}
	if a != nil && a.MinRequests != nil && a.GetMaxErrorRate() == "" && a.GetMaxP99() == "" {
		found.add(path+".canary.analysis.minRequests", "has no effect without maxErrorRate or maxP99; set one of them, or leave it out")
	}
}
