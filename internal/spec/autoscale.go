package spec

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Defaults of autoscaling.
const (
	defaultUpWindow    = "0s"
	defaultDownWindow  = "5m"
	defaultIdle        = "5m"
	defaultMetricsPath = "/metrics"
)

// What a replica is measured by, besides a metric of its own.
const (
	TargetCPU      = "cpu"
	TargetMemory   = "memory"
	TargetRequests = "requests"
)

// Replicas is how many replicas a service should have: the number that its author wrote, or the one that the cluster
// has decided, within the bounds of autoscaling. Everything that wants to know the desired number asks here.
func Replicas(w *v1.Workload) int32 {
	n := w.GetSpec().GetReplicas()
	a := w.GetSpec().GetAutoscale()
	if a == nil {
		return n
	}
	if decided := w.GetStatus().GetScale(); decided != nil {
		n = decided.GetReplicas()
	}
	least, most := Bounds(w.GetSpec())
	return min(max(n, least), most)
}

// Bounds are the fewest and the most replicas that autoscaling may choose. What minAvailable keeps is never scaled in.
func Bounds(s *v1.WorkloadSpec) (least, most int32) {
	a := s.GetAutoscale()
	least = 1
	if a != nil && a.Min != nil {
		least = a.GetMin()
	}
	if least > 0 {
		least = max(least, s.GetMinAvailable())
	}
	return least, max(least, a.GetMax())
}

// ForgetScale drops what autoscaling has decided for a workload that it no longer concerns. It changes its argument.
func ForgetScale(w *v1.Workload) {
	if w.GetSpec().GetAutoscale() == nil && w.GetStatus() != nil {
		w.Status.Scale = nil
	}
}

// Asleep reports whether a service was scaled to zero and waits for a request to wake it.
func Asleep(w *v1.Workload) bool {
	return w.GetSpec().GetAutoscale() != nil && Replicas(w) == 0
}

// Scaling is autoscaling in numbers.
type Scaling struct {
	// Least and Most are the bounds.
	Least, Most int
	// CPU and Memory are the shares of the requests that a replica should use, 0 for none. CPURequest is in CPUs,
	// MemoryRequest in bytes.
	CPU, CPURequest, Memory, MemoryRequest float64
	// Requests is how many requests a second a replica should get, 0 for none.
	Requests float64
	// Metric is the metric of the program; nil for none.
	Metric                     *v1.AutoscaleMetric
	UpWindow, DownWindow, Idle time.Duration
}

// ScalingOf reads the autoscaling of a workload, whose spec is in canonical form.
func ScalingOf(s *v1.WorkloadSpec) Scaling {
	a := s.GetAutoscale()
	least, most := Bounds(s)
	out := Scaling{
		Least: int(least), Most: int(most), CPU: share(a.GetCpu()), Memory: share(a.GetMemory()), Requests: a.GetRequests(), Metric: a.GetMetric(),
		UpWindow: durationOr(a.GetUpWindow(), defaultUpWindow), DownWindow: durationOr(a.GetDownWindow(), defaultDownWindow), Idle: durationOr(a.GetIdle(), defaultIdle),
	}
	requests := s.GetResources().GetRequests()
	if millis, err := ParseCPU(requests.GetCpu()); err == nil {
		out.CPURequest = float64(millis) / 1000
	}
	if bytes, err := ParseBytes(requests.GetMemory()); err == nil {
		out.MemoryRequest = float64(bytes)
	}
	return out
}

// String says in words by what a service is scaled, such as "from 1 to 20 replicas by cpu 70%".
func (s Scaling) String() string {
	var by []string
	if s.CPU > 0 {
		by = append(by, TargetCPU+" "+Share(s.CPU))
	}
	if s.Memory > 0 {
		by = append(by, TargetMemory+" "+Share(s.Memory))
	}
	if s.Requests > 0 {
		by = append(by, Number(s.Requests)+" requests/s")
	}
	if s.Metric != nil {
		by = append(by, s.Metric.GetName()+" "+Number(s.Metric.GetValue()))
	}
	text := fmt.Sprintf("from %d to %s", s.Least, Count(s.Most, "replica"))
	if len(by) > 0 {
		text += " by " + strings.Join(by, ", ")
	}
	if s.Least == 0 {
		text += fmt.Sprintf(", to 0 after %s without a request", FormatDuration(s.Idle))
	}
	return text
}

// Share is a share in percent, rounded to a whole one.
func Share(of float64) string { return strconv.FormatFloat(of*100, 'f', 0, 64) + "%" }

// Number is a measurement with at most three significant digits, or whole if it is large.
func Number(n float64) string {
	if n >= 100 || n <= -100 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strconv.FormatFloat(n, 'g', 3, 64)
}

// share reads a percentage, 0 if it is empty.
func share(text string) float64 {
	percent, _ := strconv.Atoi(strings.TrimSuffix(text, "%")) // valid, or refused before it was stored
	return float64(percent) / 100
}

// normalAutoscale brings autoscaling to its canonical form.
func normalAutoscale(a *v1.Autoscale) {
	if a == nil {
		return
	}
	if a.Min == nil {
		a.Min = proto.Int32(1)
	}
	if a.Metric != nil {
		fill(&a.Metric.Path, defaultMetricsPath)
	}
	normalDuration(&a.UpWindow, defaultUpWindow)
	normalDuration(&a.DownWindow, defaultDownWindow)
	if a.GetMin() == 0 {
		normalDuration(&a.Idle, defaultIdle)
	}
}

// checkAutoscale refuses settings that could never have an effect. It gets what the author wrote and its canonical form.
func checkAutoscale(written, s *v1.WorkloadSpec, found *violations) {
	const path = "spec.autoscale"
	a := s.GetAutoscale()
	if a == nil {
		return
	}
	switch {
	case s.GetKind() != "":
		found.add(path, "is only for services: the number of replicas of a %s follows from its work; leave it out", s.GetKind())
		return
	case s.GetSingleton():
		found.add(path, "is not for a singleton, which has at most one replica; leave one of them out")
		return
	}
	if policy := s.GetRestart().GetPolicy(); policy != "" && policy != defaultPolicy {
		found.add(path, "needs restart.policy always: how much work that ends by itself is done does not follow from its load; leave one of them out")
	}
	checkBounds(s, found)
	checkTargets(s, found)
	for _, window := range []struct{ name, text string }{{"upWindow", a.GetUpWindow()}, {"downWindow", a.GetDownWindow()}} {
		if d, ok := readAmount(path+"."+window.name, window.text, ParseDuration, found); ok && d > longestWindow {
			found.add(path+"."+window.name, "must be at most %s", FormatDuration(longestWindow))
		}
	}
	idle, ok := readAmount(path+".idle", a.GetIdle(), ParseDuration, found)
	switch {
	case written.GetAutoscale().GetIdle() != "" && a.GetMin() > 0:
		found.add(path+".idle", "is only for min 0: with min %d the service is never scaled to zero", a.GetMin())
	case ok && (idle < shortestIdle || idle > longestWindow):
		found.add(path+".idle", "must be from %s to %s", FormatDuration(shortestIdle), FormatDuration(longestWindow))
	}
}

// Requests are counted in steps of some seconds, and measurements are kept in memory.
const (
	shortestIdle  = 10 * time.Second
	longestWindow = 24 * time.Hour
)

func checkBounds(s *v1.WorkloadSpec, found *violations) {
	const path = "spec.autoscale"
	a := s.GetAutoscale()
	if found.has(path+".min") || found.has(path+".max") {
		return
	}
	switch {
	case a.GetMax() == 0:
		found.add(path+".max", "is missing: say how many replicas there may be at most")
	case a.GetMax() < a.GetMin():
		found.add(path+".max", "must be at least min: %d is less than %d", a.GetMax(), a.GetMin())
	}
	switch available := s.GetMinAvailable(); {
	case available > 0 && a.GetMin() == 0:
		found.add(path+".min", "must not be 0: minAvailable keeps %s; raise min, or leave minAvailable out", Count(int(available), "replica"))
	case available > a.GetMax() && a.GetMax() >= a.GetMin() && a.GetMax() > 0:
		found.add("spec.minAvailable", "must be at most autoscale.max: %d is more than %d; lower it or raise max", available, a.GetMax())
	}
}

func checkTargets(s *v1.WorkloadSpec, found *violations) {
	const path = "spec.autoscale"
	a, requests := s.GetAutoscale(), s.GetResources().GetRequests()
	if a.GetCpu() != "" && requests.GetCpu() == "" {
		found.add(path+".cpu", "is a share of the requested CPU, and none is requested; set spec.resources.requests.cpu")
	}
	if a.GetMemory() != "" && requests.GetMemory() == "" {
		found.add(path+".memory", "is a share of the requested memory, and none is requested; set spec.resources.requests.memory")
	}
	if m := a.GetMetric(); m != nil {
		if m.GetName() == "" {
			found.add(path+".metric.name", "is missing: name a metric that the program exports, such as queue_length")
		}
		if m.GetPort() == 0 {
			found.add(path+".metric.port", "is missing: say on which port the program exports the metric")
		}
		if m.GetValue() == 0 {
			found.add(path+".metric.value", "must be more than 0: it is how much of %s one replica should have", m.GetName())
		}
		if s.GetNetwork() == "none" {
			found.add(path+".metric", "cannot be read with network none; use network node")
		}
	}
	if a.GetCpu() == "" && a.GetMemory() == "" && a.GetRequests() == 0 && a.GetMetric() == nil && a.GetMin() > 0 {
		found.add(path, "has no target, so the number would never change: set cpu, memory, requests or metric, or min 0 to scale to zero when there are no requests")
	}
}
