package spec

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The labels of a node that the cluster sets itself. Rules and selectors treat them like
// those of operators.
const (
	// OwnLabels is their prefix; users cannot set such a label.
	OwnLabels = "node.cloudless/"

	LabelName     = OwnLabels + "name"
	LabelHostname = OwnLabels + "hostname"
	LabelOS       = OwnLabels + "os"
	LabelArch     = OwnLabels + "arch"
	LabelKernel   = OwnLabels + "kernel"
	LabelVersion  = OwnLabels + "version"
	LabelGPU      = OwnLabels + "gpu"

	// "true" where programs can run in the sandbox gvisor, or in user namespaces of their own.
	LabelGVisor         = OwnLabels + "gvisor"
	LabelUserNamespaces = OwnLabels + "user-namespaces"
)

// The labels that say where a node is.
const (
	LabelRegion = "region"
	LabelZone   = "zone"
)

// NodeLabels are all labels of a node: the operator's and the cluster's own. Unknown ones
// are omitted.
func NodeLabels(n *v1.Node) map[string]string {
	given := n.GetMetadata().GetLabels()
	all := make(map[string]string, len(given)+7)
	maps.Copy(all, given)
	info := n.GetStatus().GetInfo()
	for _, one := range [...]struct{ key, value string }{
		{LabelName, n.GetMetadata().GetName()},
		{LabelHostname, info.GetHostname()},
		{LabelOS, info.GetOs()},
		{LabelArch, info.GetArch()},
		{LabelKernel, info.GetKernel()},
		{LabelVersion, info.GetVersion()},
		{LabelGPU, n.GetStatus().GetCapacity().GetGpuModel()},
		{LabelGVisor, trueIf(anyDriver(n, func(d *v1.DriverInfo) bool { return slices.Contains(d.GetSandboxes(), SandboxGVisor) }))},
		{LabelUserNamespaces, trueIf(anyDriver(n, (*v1.DriverInfo).GetUserNamespaces))},
	} {
		if one.value != "" {
			all[one.key] = one.value
		} else {
			delete(all, one.key)
		}
	}
	return all
}

func anyDriver(n *v1.Node, can func(*v1.DriverInfo) bool) bool {
	return slices.ContainsFunc(n.GetStatus().GetDrivers(), can)
}

func trueIf(it bool) string {
	if it {
		return "true"
	}
	return ""
}

// Drains reports whether the replicas of a node are to leave it.
func Drains(n *v1.Node) bool { return n.GetStatus().GetState() == NodeDraining }

// NodeSettings is the part of a node's spec that operators write. The cluster writes the rest.
func NodeSettings(of *v1.NodeSpec) *v1.NodeSpec {
	s := proto.CloneOf(of)
	if s == nil {
		return &v1.NodeSpec{}
	}
	s.SubnetV4, s.SubnetV6, s.AvailabilityBy, s.Drain = "", "", "", nil
	for _, t := range s.GetTaints() {
		t.Time = nil
	}
	return s
}

func init() { checkObjects(checkNodeObject) }

// checkNodeObject checks what the API's rules cannot express about a node in a file.
func checkNodeObject(n *v1.Node, found *violations) {
	if n.GetMetadata().GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	if n.GetMetadata().GetNamespace() != "" {
		found.add("metadata.namespace", "must be left out: a node is in no namespace")
	}
	checkNodeLabels("metadata.labels", n.GetMetadata().GetLabels(), found)
	checkBandwidth("spec.bandwidth", n.GetSpec().GetBandwidth(), found)
	checkTaints("spec.taints", n.GetSpec().GetTaints(), found)
}

// checkNode checks what the API's rules cannot express about changes of a node.
func checkNode(msg proto.Message, found *violations) {
	switch m := msg.(type) {
	case *v1.EnrollRequest:
		checkNodeLabels("labels", m.GetLabels(), found)
	case *v1.DrainNodeRequest:
		readAmount("grace", m.GetGrace(), ParseDuration, found)
		readAmount("timeout", m.GetTimeout(), ParseDuration, found)
	case *v1.UpdateNodeRequest:
		checkNodeLabels("labels", m.GetLabels(), found)
		for i, key := range m.GetRemoveLabels() {
			if strings.HasPrefix(key, OwnLabels) {
				found.add(indexPath("removeLabels", i), "%s is the cluster's own and cannot be taken away", key)
			} else if _, set := m.GetLabels()[key]; set {
				found.add(indexPath("removeLabels", i), "%s is set by the same change; leave one of them out", key)
			}
		}
		checkBandwidth("bandwidth", m.GetBandwidth(), found)
		checkTaints("taints", m.GetTaints(), found)
	}
}

func checkBandwidth(path, given string, found *violations) {
	if n, ok := readAmount(path, given, ParseBandwidth, found); ok && n == 0 {
		found.add(path, "must be more than 0; leave it empty to use what the machine reports")
	}
}

func checkNodeLabels(path string, labels map[string]string, found *violations) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, OwnLabels) {
			found.add(path, "%s is the cluster's own: labels that begin with %s cannot be set", key, OwnLabels)
		}
	}
}

// checkTaints refuses two taints if one would replace the other.
func checkTaints(path string, taints []*v1.Taint, found *violations) {
	for i, t := range taints {
		if slices.ContainsFunc(taints[:i], func(o *v1.Taint) bool { return SameTaint(o, t) }) {
			found.add(indexPath(path, i), "%s:%s is given twice", t.GetKey(), t.GetEffect())
		}
	}
}

// SameTaint reports whether one taint replaces the other: a node has one of each key and
// effect.
func SameTaint(a, b *v1.Taint) bool {
	return a.GetKey() == b.GetKey() && a.GetEffect() == b.GetEffect()
}

// FormatTaint formats a taint as on the command line.
func FormatTaint(t *v1.Taint) string {
	if t.GetValue() == "" {
		return t.GetKey() + ":" + t.GetEffect()
	}
	return t.GetKey() + "=" + t.GetValue() + ":" + t.GetEffect()
}

// LinkOf is the bandwidth of a node's network in bits per second: what the operator says,
// or else the machine; empty if unknown.
func LinkOf(n *v1.Node) string {
	if bandwidth := n.GetSpec().GetBandwidth(); bandwidth != "" {
		return bandwidth
	}
	return n.GetStatus().GetCapacity().GetBandwidth()
}

// ModelMatches reports whether a GPU model matches the requested one: by its full name, or
// by some words of it, as "a100" matches "a100-sxm4-40gb".
func ModelMatches(model, requested string) bool {
	return requested == "" || strings.Contains("-"+model+"-", "-"+GPUModel(requested)+"-")
}

// GPUModel is the name of a GPU in the form in which names are compared: lower
// case, and dashes between the words.
func GPUModel(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}), "-")
}
