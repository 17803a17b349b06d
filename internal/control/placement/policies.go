package placement

import (
	"fmt"
	"slices"
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// nodeRules are the policies with rules about nodes. They are replaced as a whole, so that verdicts from before are not
// mistaken for new ones.
type nodeRules struct{ policies []*policy.Policy }

func nodeRulesOf(snap *state.Snapshot) *nodeRules {
	rules := &nodeRules{}
	for p := range snap.Policies("") {
		if policy.AboutNodes(p) {
			rules.policies = append(rules.policies, policy.Compiled(p))
		}
	}
	return rules
}

// followPolicy applies a change of a policy. It reads everything again, as after a start: replicas that run stay, and those
// that wait are tried again.
func (c *Model) followPolicy(snap *state.Snapshot, change state.Change) {
	if !ChangesPlacement(change) {
		return
	}
	c.rules = nodeRulesOf(snap)
	c.reread(snap, "")
	c.configure(snap)
}

// ChangesPlacement reports whether the change of a policy changes where replicas may go.
func ChangesPlacement(change state.Change) bool {
	before, _ := change.Old.(*v1.Policy)
	after, _ := change.New.(*v1.Policy)
	return policy.AboutNodes(before) || policy.AboutNodes(after)
}

// reread forgets what is known of the revisions of a namespace, or of all of them, and adds their replicas again.
func (c *Model) reread(snap *state.Snapshot, namespace string) {
	for uid, known := range c.revisions {
		if namespace == "" || known == nil || known.Namespace == namespace {
			delete(c.revisions, uid)
		}
	}
	for r := range snap.Replicas(namespace, "") {
		c.View.RemoveReplica(r.GetMetadata().GetUid())
	}
	for r := range snap.Replicas(namespace, "") {
		c.Put(snap, r)
	}
}

// judgement are the verdicts of the rules about nodes on one revision. Nodes are judged once until they change.
type judgement struct {
	object *v1.Workload
	mu     sync.Mutex
	by     *nodeRules
	known  map[*v1.Node]string
}

// maxVerdicts bounds what is left behind by nodes that have changed.
const maxVerdicts = 16384

// judge gives a revision the condition of the rules about nodes, if there are some.
func (c *Model) judge(w *v1.Workload, of *v1.Revision, revision *scheduler.Revision) {
	judges := func(p *policy.Policy) bool { return p.JudgesNodes(w.GetMetadata()) }
	if !slices.ContainsFunc(c.rules.policies, judges) {
		return
	}
	j := &judgement{object: &v1.Workload{
		ApiVersion: spec.APIVersion, Kind: spec.KindWorkload, Metadata: w.GetMetadata(), Spec: of.GetSpec().GetWorkload(),
	}}
	revision.Needs.Policy = func(n *scheduler.Node) string { return j.of(c.rules, n.Source) }
}

// of says why a node is refused, empty if it is not.
func (j *judgement) of(rules *nodeRules, node *v1.Node) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.by != rules || len(j.known) >= maxVerdicts {
		j.by, j.known = rules, map[*v1.Node]string{}
	}
	words, known := j.known[node]
	if known {
		return words
	}
	for _, p := range rules.policies {
		if words == "" && p.JudgesNodes(j.object.GetMetadata()) {
			words = p.RefusesNode(j.object, node)
		}
	}
	j.known[node] = words
	return words
}

// What is reserved in a namespace with a quota for each replica of a workload that requests nothing, if neither the
// namespace nor the cluster says how much.
const (
	quotaCPU    = 100
	quotaMemory = 128 << 20
)

// addDefaults reserves the namespace's defaults for what a workload does not request, so that no quota is bypassed by
// requesting nothing. The defaults of the cluster are in the workload already.
func addDefaults(n *v1.Namespace, need *scheduler.Resources) {
	if n == nil {
		return
	}
	own, quota := defaultRequests(n), quotaOf(n)
	for _, one := range []struct {
		of        scheduler.Resource
		otherwise int64
	}{{scheduler.CPU, quotaCPU}, {scheduler.Memory, quotaMemory}, {scheduler.Disk, 0}, {scheduler.Bandwidth, 0}} {
		switch {
		case need[one.of] != 0:
		case own.Resources[one.of] > 0:
			need[one.of] = own.Resources[one.of]
		case quota.Resources[one.of] == 0: // it is not limited
		default:
			need[one.of] = one.otherwise
		}
	}
}

func defaultRequests(n *v1.Namespace) scheduler.Quota {
	a := n.GetSpec().GetDefaultRequests()
	return quotaOf(&v1.Namespace{Spec: &v1.NamespaceSpec{Quota: &v1.Quota{Cpu: a.GetCpu(), Memory: a.GetMemory(), Disk: a.GetDisk(), Bandwidth: a.GetBandwidth()}}})
}

// sameDefaults reports whether workloads of a namespace that request nothing need the same as before.
func sameDefaults(before, after *v1.Namespace) bool {
	var was, is scheduler.Resources
	addDefaults(before, &was)
	addDefaults(after, &is)
	return was == is
}

// CountedDefaults says in sentences what counts against the quota of a namespace although a workload does not request it.
func (Queries) CountedDefaults(n *v1.Namespace, w *v1.WorkloadSpec) (all []string) {
	given, err := scheduler.RevisionFromProto(nil, &v1.Revision{Spec: &v1.RevisionSpec{Workload: w}})
	if err != nil || n == nil {
		return nil
	}
	need := given.Needs.Resources
	addDefaults(n, &need)
	for _, one := range []struct {
		of     scheduler.Resource
		name   string
		format func(int64) string
	}{
		{scheduler.CPU, "CPU", spec.FormatCPU},
		{scheduler.Memory, "memory", spec.FormatBytes},
		{scheduler.Disk, "disk", spec.FormatBytes},
		{scheduler.Bandwidth, "bandwidth", spec.FormatBandwidth},
	} {
		if was := given.Needs.Resources[one.of]; was != need[one.of] {
			all = append(all, fmt.Sprintf("it requests no %s, so each replica is given %s and counts with that in namespace %s",
				one.name, one.format(need[one.of]), n.GetMetadata().GetName()))
		}
	}
	return all
}
