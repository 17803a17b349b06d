package spec

import (
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// KindNamespace is the kind of a v1.Namespace.
const KindNamespace = "Namespace"

func init() {
	checkObjects(checkNamespace)
	checkObjects(checkPolicy)
	checkObjects(func(r *v1.Role, found *violations) { checkUnscoped(r.GetMetadata(), "role", found) })
	checkObjects(func(b *v1.RoleBinding, found *violations) { checkUnscoped(b.GetMetadata(), "binding", found) })
}

// checkUnscoped checks the metadata of what is in no namespace, although it may be about one.
func checkUnscoped(m *v1.Metadata, noun string, found *violations) {
	if m.GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	if m.GetNamespace() != "" {
		found.add("metadata.namespace", "must be left out: a %s is in no namespace; where a role counts is in spec.namespace of a binding", noun)
	}
}

// checkNamespace checks what the API's rules cannot express.
func checkNamespace(n *v1.Namespace, found *violations) {
	if n.GetMetadata().GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	if in := n.GetMetadata().GetNamespace(); in != "" {
		found.add("metadata.namespace", "must be left out: a namespace is in no other")
	}
	const path = "spec.quota"
	q := n.GetSpec().GetQuota()
	readAmount(path+".cpu", q.GetCpu(), ParseCPU, found)
	readAmount(path+".memory", q.GetMemory(), ParseBytes, found)
	readAmount(path+".disk", q.GetDisk(), ParseBytes, found)
	readAmount(path+".bandwidth", q.GetBandwidth(), ParseBandwidth, found)
	readAmount(path+".storage", q.GetStorage(), ParseBytes, found)
	const defaults = "spec.defaultRequests"
	d := n.GetSpec().GetDefaultRequests()
	readAmount(defaults+".cpu", d.GetCpu(), ParseCPU, found)
	readAmount(defaults+".memory", d.GetMemory(), ParseBytes, found)
	readAmount(defaults+".disk", d.GetDisk(), ParseBytes, found)
	readAmount(defaults+".bandwidth", d.GetBandwidth(), ParseBandwidth, found)
}

// NormalizeNamespace brings a namespace to its canonical form in place: amounts are written
// in one way, and empty parts are removed.
func NormalizeNamespace(n *v1.Namespace) {
	n.ApiVersion, n.Kind = APIVersion, KindNamespace
	if n.Metadata == nil {
		n.Metadata = &v1.Metadata{}
	}
	if n.Spec == nil {
		n.Spec = &v1.NamespaceSpec{}
	}
	n.Spec.Quota, n.Spec.DefaultRequests = normalQuota(n.Spec.GetQuota()), normalAmounts(n.Spec.GetDefaultRequests())
}

func normalQuota(q *v1.Quota) *v1.Quota {
	if q == nil {
		return nil
	}
	amounts := &v1.ResourceAmounts{Cpu: q.Cpu, Memory: q.Memory, Disk: q.Disk, Bandwidth: q.Bandwidth}
	if normal := normalAmounts(amounts); normal != nil {
		q.Cpu, q.Memory, q.Disk, q.Bandwidth = normal.Cpu, normal.Memory, normal.Disk, normal.Bandwidth
	}
	normalBytes(&q.Storage)
	return unlessEmpty(q)
}

// KindPolicy is the kind of a v1.Policy.
const KindPolicy = "Policy"

// NormalizePolicy brings a policy to its canonical form in place. Its expressions stay as their author writes them.
func NormalizePolicy(p *v1.Policy) {
	p.ApiVersion, p.Kind = APIVersion, KindPolicy
	if p.Spec == nil {
		p.Spec = &v1.PolicySpec{}
	}
	fill(&p.Spec.Mode, "enforce")
	if m := p.Spec.Match; m != nil {
		for i, kind := range m.Kinds {
			m.Kinds[i] = strings.ToLower(kind)
		}
		p.Spec.Match = unlessEmpty(m)
	}
}

// checkPolicy checks what the API's rules cannot express. The expressions are checked by package policy.
func checkPolicy(p *v1.Policy, found *violations) {
	if p.GetMetadata().GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	if p.GetMetadata().GetNamespace() != "" {
		found.add("metadata.namespace", "must be left out: a policy is in no namespace; spec.match.namespaces says where it applies")
	}
	if len(p.GetSpec().GetRules()) == 0 && !found.has("spec.rules") {
		found.add("spec.rules", "is missing: a policy has at least one rule")
	}
}

// checkPrivateRegistries refuses entries that could never be the host of a registry.
func checkPrivateRegistries(s *v1.ClusterSpec, found *violations) {
	for i, host := range s.GetSecurity().GetPrivateRegistries() {
		if host == "" || strings.ContainsAny(host, "/ \t*@") {
			found.add(indexPath(clusterPath+".security.privateRegistries", i), "must be the host of a registry with its port, such as registry.lan:5000, without https:// and without a path")
		}
	}
}
