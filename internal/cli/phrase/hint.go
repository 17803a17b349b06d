package phrase

import (
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// GetHint is the command that shows a workload.
func GetHint(m *cloudlessv1.Metadata) string {
	return spec.Hint(m.GetNamespace(), "cloudless workload get "+m.GetName())
}

// LogsHint is the command that shows the output of a workload.
func LogsHint(m *cloudlessv1.Metadata) string {
	return spec.Hint(m.GetNamespace(), "cloudless logs "+m.GetName())
}

// ExplainHint is the command that explains why a workload is pending. Several workloads get PsHint.
func ExplainHint(workloads []*cloudlessv1.Workload) string {
	if len(workloads) != 1 {
		return PsHint(workloads)
	}
	m := workloads[0].GetMetadata()
	return spec.Hint(m.GetNamespace(), "cloudless explain "+m.GetName())
}

// PsHint is the command that shows the replicas of workloads, which may be in several namespaces.
func PsHint(workloads []*cloudlessv1.Workload) string {
	for _, w := range workloads {
		if w.GetMetadata().GetNamespace() != workloads[0].GetMetadata().GetNamespace() {
			return "cloudless ps --all-namespaces"
		}
	}
	if len(workloads) == 0 {
		return "cloudless ps"
	}
	return spec.Hint(workloads[0].GetMetadata().GetNamespace(), "cloudless ps")
}
