package scheduler

import (
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Revision is what all replicas of one version of a workload have in common. It is
// immutable once it was given to a view.
type Revision struct {
	// UID is the revision's own; two revisions with the same uid are equal.
	UID string
	// Workload is the uid; Name, Namespace and Labels are the workload's.
	Workload  string
	Name      string
	Namespace string
	Labels    map[string]string
	// Priority is 0 to 1000, see preempt.go.
	Priority int
	// MinAvailable is how many replicas a preemption leaves at least.
	MinAvailable int

	Needs       Needs
	Preferences Preferences
}

// Needs are what a node must offer.
type Needs struct {
	Resources Resources
	// GPUModel is empty if any will do.
	GPUModel string
	Driver   string
	// Sandbox is the kernel that the replica runs on; empty for that of the node.
	Sandbox string
	// UserNamespace is whether it must run in a user namespace.
	UserNamespace bool
	// Platforms are those of the image; empty if unknown.
	Platforms []string
	// Rules must all hold.
	Rules       []Rule
	Tolerations []Toleration
	// Regions and Zones may be used; empty for all.
	Regions, Zones []string
	// Nodes are the uids of the only nodes that may be used, such as those that have a
	// volume; empty for all.
	Nodes []string
	Ports []Port
	// SharePorts is whether replicas of one workload on one node share its ports.
	SharePorts bool
	// Policy is a further condition. It returns why a node is refused, continuing its name,
	// or nothing. It must be a pure function. It may be nil.
	Policy func(*Node) string
}

// Preferences are what makes one node better than another, and rules about other replicas.
type Preferences struct {
	Strategy Strategy
	// Weights of the score that override the cluster's.
	Weights Weighing
	// Near is where the workload's users or data are; empty if anywhere.
	NearRegion, NearZone string
	// Prefer are nodes that outrank the score.
	Prefer []PreferredRule
	Spread []Spread
	// Affinity is to other workloads, or to the workload's own replicas.
	Affinity []Affinity
}

// Strategy says how to use nodes.
type Strategy string

// The strategies.
const (
	// Pack fills nodes, but levels the replicas of one workload over zones and nodes. It is
	// the default.
	Pack Strategy = "pack"
	// BestFit takes the node on which the least is left over, even if it has replicas of
	// the same workload.
	BestFit Strategy = "best-fit"
	// Even takes the emptiest node.
	Even Strategy = "spread"
)

// PreferredRule is a rule that should hold.
type PreferredRule struct {
	Rule
	Weight int32 // 1 to 100
}

// The topology keys that are not labels.
const (
	KeyNode   = "node"
	KeyZone   = "zone"
	KeyRegion = "region"
)

// Spread levels the replicas of a workload over the domains of a key.
type Spread struct {
	// Key is "node", "zone", "region" or that of a label.
	Key string
	// MaxSkew is how many more replicas a domain may have than the one with the fewest; 0
	// makes levelling a preference.
	MaxSkew int
}

// Affinity draws replicas to others, or keeps them away.
type Affinity struct {
	// Workload is the name of one in the same namespace. If it is empty, Selector matches
	// labels, in the same namespace, too.
	Workload string
	Selector spec.Selector
	// Key says what counts as the same place, as in Spread.
	Key string
	// Anti is whether to stay away.
	Anti bool
	// Weight is 0 if the rule must hold, else 1 to 100.
	Weight int32
}

// bound reports whether some rules depend on where other replicas are.
func (r *Revision) bound() bool {
	return r.levelled() || r.follows()
}

// follows reports whether it must be near others.
func (r *Revision) follows() bool {
	return slices.ContainsFunc(r.Preferences.Affinity, func(a Affinity) bool { return a.required() && !a.Anti })
}

// levelled reports whether it has a maximal skew.
func (r *Revision) levelled() bool {
	return slices.ContainsFunc(r.Preferences.Spread, func(s Spread) bool { return s.MaxSkew > 0 })
}

// repels reports whether it may keep others away from where it is.
func (r *Revision) repels() bool {
	return slices.ContainsFunc(r.Preferences.Affinity, func(a Affinity) bool { return a.Anti && a.required() })
}

func (a *Affinity) required() bool { return a.Weight == 0 }

// matches reports whether the rule of a revision matches a workload.
func (a *Affinity) matches(namespace string, other *Revision) bool {
	if namespace != other.Namespace {
		return false
	}
	if a.Workload != "" {
		return a.Workload == other.Name
	}
	return a.Selector.Matches(other.Labels)
}

// Port is a port of a node's own network.
type Port struct {
	Number   int32
	Protocol string
}
