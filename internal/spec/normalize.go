package spec

import (
	"net/netip"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Defaults of the API.
const (
	defaultDriver     = "container"
	defaultNetwork    = "node"
	defaultProtocol   = "tcp"
	defaultPolicy     = "always"
	defaultBackoff    = "1s"
	defaultMaxBackoff = "1m"
	defaultReset      = "5m"
	defaultSignal     = "SIGTERM"
	defaultGrace      = "10s"
)

// Normalize brings a workload to its canonical form in place: it fills in defaults and
// writes amounts in one way. Unreadable values stay as they are, for Validate to refuse.
func Normalize(w *v1.Workload) {
	w.ApiVersion, w.Kind = APIVersion, KindWorkload
	if w.Metadata == nil {
		w.Metadata = &v1.Metadata{}
	}
	fill(&w.Metadata.Namespace, DefaultNamespace)
	if w.Spec == nil {
		w.Spec = &v1.WorkloadSpec{}
	}
	normalizeSpec(w.Spec)
}

// Normalized returns a spec in canonical form and does not change its argument.
func Normalized(s *v1.WorkloadSpec) *v1.WorkloadSpec {
	c := &v1.WorkloadSpec{}
	proto.Merge(c, s)
	normalizeSpec(c)
	return c
}

func normalizeSpec(s *v1.WorkloadSpec) {
	fill(&s.Driver, defaultDriver)
	fill(&s.Network, defaultNetwork)
	s.Resources = normalResources(s.Resources)
	for _, p := range s.Ports {
		if p != nil {
			fill(&p.Protocol, defaultProtocol)
			if p.PublishMode == PublishCluster {
				p.PublishMode = ""
			}
			if a, err := netip.ParseAddr(p.PublishAddress); err == nil {
				p.PublishAddress = a.String()
			}
		}
	}
	if s.Restart == nil {
		s.Restart = &v1.Restart{}
	}
	normalKind(s)
	s.Placement = normalPlacement(s.Placement)
	s.Update = normalUpdate(s.Update)
	normalDuration(&s.LostAfter, "")
	leaveOut(&s.LostAfter, "0s")
	normalRelease(s.Release)
	normalAutoscale(s.Autoscale)
	normalEgress(s.Egress)
	s.Security = normalSecurity(s.Security)
	normalSecrets(s.Secrets)
	normalIdentity(s.Identity)
	if s.GetPriority() == DefaultPriority {
		s.Priority = nil
	}
	if s.Stop == nil {
		s.Stop = &v1.Stop{}
	}
	fill(&s.Stop.Signal, defaultSignal)
	normalDuration(&s.Stop.Grace, defaultGrace)
	s.Probes = normalProbes(s.Probes)
}

// normalResources returns nil for an empty message, so that "nothing set" has one form. A
// limit without a request is also requested.
func normalResources(r *v1.Resources) *v1.Resources {
	limits := normalAmounts(r.GetLimits())
	requests := normalAmounts(r.GetRequests())
	if limits != nil {
		if requests == nil {
			requests = &v1.ResourceAmounts{}
		}
		fill(&requests.Cpu, limits.Cpu)
		fill(&requests.Memory, limits.Memory)
		requests = normalAmounts(requests)
	}
	gpu := r.GetGpu()
	if gpu.GetCount() == 0 {
		gpu = nil
	}
	if requests == nil && limits == nil && gpu == nil {
		return nil
	}
	return &v1.Resources{Requests: requests, Limits: limits, Gpu: gpu}
}

func normalAmounts(a *v1.ResourceAmounts) *v1.ResourceAmounts {
	if a.GetCpu() == "" && a.GetMemory() == "" && a.GetDisk() == "" && a.GetBandwidth() == "" {
		return nil
	}
	if millis, err := ParseCPU(a.Cpu); err == nil {
		a.Cpu = FormatCPU(millis)
	}
	if n, err := ParseBytes(a.Memory); err == nil {
		a.Memory = FormatBytes(n)
	}
	if n, err := ParseBytes(a.Disk); err == nil {
		a.Disk = FormatBytes(n)
	}
	if n, err := ParseBandwidth(a.Bandwidth); err == nil {
		a.Bandwidth = FormatBandwidth(n)
	}
	return a
}

func normalDuration(s *string, otherwise string) {
	if *s == "" || *s == otherwise {
		*s = otherwise
		return
	}
	if d, err := ParseDuration(*s); err == nil {
		*s = FormatDuration(d)
	}
}

func fill(s *string, otherwise string) {
	if *s == "" {
		*s = otherwise
	}
}
