package spec

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// KindConfiguration is the kind of a v1.Configuration.
const KindConfiguration = "Configuration"

// FirstConfiguration is the number of a new cluster's configuration.
const FirstConfiguration = 1

// NewConfiguration makes a version of the cluster's settings.
func NewConfiguration(uid string, number uint64, author string, settings *v1.ClusterSpec) *v1.Configuration {
	return &v1.Configuration{
		ApiVersion: APIVersion,
		Kind:       KindConfiguration,
		Metadata:   &v1.Metadata{Uid: uid, Name: "configuration-" + strconv.FormatUint(number, 10)},
		Spec:       &v1.ConfigurationSpec{Number: number, Author: author, Cluster: settings},
	}
}

// Defaults of the cluster's configuration.
const (
	defaultVoters    = 3
	defaultMaxEvents = 10_000
	defaultRevisions = 10
	maxNodes         = 100_000
	maxWorkloads     = 1_000_000
	maxReplicas      = 100_000
)

// defaultOvercommit is in percent: no overcommit.
const defaultOvercommit = "100"

// Retention says how long and how much ended and old objects are kept.
type Retention struct {
	Replicas, Events, Tokens, Images time.Duration
	MaxEvents, Revisions             int
}

var defaultRetention = Retention{
	Replicas: 24 * time.Hour, Events: 7 * 24 * time.Hour, Tokens: 24 * time.Hour, Images: 24 * time.Hour,
	MaxEvents: defaultMaxEvents, Revisions: defaultRevisions,
}

// VotersOf is how many servers should vote.
func VotersOf(c *v1.ClusterSpec) int { return cmp.Or(int(c.GetDesiredVoters()), defaultVoters) }

// RetentionOf returns the configured retention. Unreadable values are ignored: the
// configuration was validated when it was set.
func RetentionOf(c *v1.ClusterSpec) Retention {
	r := c.GetRetention()
	return Retention{
		Replicas:  cmp.Or(durationOf(r.GetReplicas()), defaultRetention.Replicas),
		Events:    cmp.Or(durationOf(r.GetEvents()), defaultRetention.Events),
		Tokens:    cmp.Or(durationOf(r.GetTokens()), defaultRetention.Tokens),
		Images:    cmp.Or(durationOf(r.GetImages()), defaultRetention.Images),
		MaxEvents: cmp.Or(int(r.GetMaxEvents()), defaultRetention.MaxEvents),
		Revisions: cmp.Or(int(r.GetRevisions()), defaultRetention.Revisions),
	}
}

// Failover says how many replicas of lost nodes are replaced within a time. Replicas is 0 if there is no limit.
type Failover struct {
	Replicas int
	Per      time.Duration
}

// defaultPer is the time that a limit of replacements is about.
const defaultPer = 10 * time.Second

// FailoverOf returns the configured limit of replacements.
func FailoverOf(c *v1.ClusterSpec) Failover {
	return Failover{Replicas: int(c.GetFailover().GetReplicas()), Per: cmp.Or(durationOf(c.GetFailover().GetPer()), defaultPer)}
}

// String is how a sentence names the limit.
func (f Failover) String() string {
	return fmt.Sprintf("lost replicas are replaced at a limited rate, at most %d within %s (failover.replicas and failover.per of the configuration)",
		f.Replicas, FormatDuration(f.Per))
}

// Rebalance says whether and how fast replicas that run are moved to better nodes.
type Rebalance struct {
	Enabled bool
	// MinGain is by how much the score of the other node must be higher, in millionths.
	MinGain int32
	// Replicas is how many may be moved within Per, and at the same time.
	Replicas int
	Per      time.Duration
	// Rest is how long a moved replica stays where it is.
	Rest time.Duration
}

// Defaults of rebalancing.
const (
	defaultMinGain   = 0.1
	defaultMoves     = 1
	defaultMovesPer  = time.Minute
	defaultRest      = 10 * time.Minute
	minRest, maxRest = time.Second, 24 * time.Hour

	// maxDoubled is how often the rest of a replica that is moved again and again doubles.
	maxDoubled = 8
	// maxCalm is how long a node must have been ready at most before replicas are moved to it.
	maxCalm = time.Minute
)

// RebalanceOf returns the configured rebalancing.
func RebalanceOf(c *v1.ClusterSpec) Rebalance {
	r := c.GetRebalance()
	return Rebalance{
		Enabled: r.GetEnabled(), MinGain: int32(cmp.Or(r.GetMinGain(), defaultMinGain)*1e6 + 0.5),
		Replicas: cmp.Or(int(r.GetReplicas()), defaultMoves), Per: cmp.Or(durationOf(r.GetPer()), defaultMovesPer),
		Rest: cmp.Or(durationOf(r.GetRest()), defaultRest),
	}
}

// RestAfter is how long a replica rests after so many moves in a row.
func (r Rebalance) RestAfter(moves int) time.Duration {
	return r.Rest << min(max(moves-1, 0), maxDoubled)
}

// Calm is how long a node must have been ready before replicas are moved to it: one that comes and goes gets none.
func (r Rebalance) Calm() time.Duration { return min(r.Rest, maxCalm) }

// FormatScore formats a score or a gain in millionths as a fraction of 1.
func FormatScore(millionths int32) string { return fmt.Sprintf("%.3g", float64(millionths)/1e6) }

func normalRebalance(r *v1.Rebalance) *v1.Rebalance {
	if r == nil {
		return nil
	}
	canonicalDuration(&r.Per)
	canonicalDuration(&r.Rest)
	return unlessEmpty(r)
}

// MostNodes is how many nodes there may be.
func MostNodes(c *v1.ClusterSpec) int { return cmp.Or(int(c.GetLimits().GetNodes()), maxNodes) }

// MostWorkloads is how many workloads there may be in all namespaces.
func MostWorkloads(c *v1.ClusterSpec) int {
	return cmp.Or(int(c.GetLimits().GetWorkloads()), maxWorkloads)
}

// MostReplicas is how many replicas one workload may ask for.
func MostReplicas(c *v1.ClusterSpec) int {
	return cmp.Or(int(c.GetLimits().GetReplicasPerWorkload()), maxReplicas)
}

// NormalizedCluster returns a configuration in canonical form and does not change its
// argument: amounts are written in one way, and empty parts are removed. Defaults are not
// filled in, so that they can be distinguished from explicit settings.
func NormalizedCluster(c *v1.ClusterSpec) *v1.ClusterSpec {
	n := &v1.ClusterSpec{}
	proto.Merge(n, c)
	for _, r := range []*string{&n.RangeV4, &n.RangeV6, &n.ServiceRangeV4, &n.ServiceRangeV6} {
		if p, err := netip.ParsePrefix(*r); err == nil {
			*r = p.Masked().String()
		}
	}
	n.Liveness = normalLiveness(n.Liveness)
	for _, class := range n.NodeClasses {
		class.Liveness = normalLiveness(class.Liveness)
		if selector, err := ParseSelector(class.Labels); err == nil {
			class.Labels = selector.String()
		}
		class.Overcommit, class.Reserved = unlessEmpty(class.Overcommit), normalAmounts(class.Reserved)
	}
	if r := n.Retention; r != nil {
		for _, d := range []*string{&r.Replicas, &r.Events, &r.Tokens, &r.Images} {
			canonicalDuration(d)
		}
		n.Retention = unlessEmpty(r)
	}
	if n.Failover != nil {
		canonicalDuration(&n.Failover.Per)
		n.Failover = unlessEmpty(n.Failover)
	}
	n.Rebalance, n.Storage = normalRebalance(n.Rebalance), normalStorage(n.Storage)
	if d := n.Defaults; d != nil {
		d.Requests, d.Limits = normalAmounts(d.Requests), normalAmounts(d.Limits)
		if r := d.Restart; r != nil {
			for _, s := range []*string{&r.Backoff, &r.MaxBackoff, &r.Reset_} {
				canonicalDuration(s)
			}
			d.Restart = unlessEmpty(r)
		}
		if d.Stop != nil {
			canonicalDuration(&d.Stop.Grace)
			d.Stop = unlessEmpty(d.Stop)
		}
		n.Defaults = unlessEmpty(d)
	}
	n.Ingress, n.Acme = normalIngress(n.Ingress), normalAcme(n.Acme)
	n.Oidc, n.Security = normalOidc(n.Oidc), unlessEmpty(n.Security)
	n.Limits, n.Weights = unlessEmpty(n.Limits), unlessEmpty(n.Weights)
	n.Overcommit, n.Reserved = unlessEmpty(n.Overcommit), normalAmounts(n.Reserved)
	return n
}

func normalLiveness(l *v1.Liveness) *v1.Liveness {
	if l == nil {
		return nil
	}
	for _, d := range []*string{&l.Heartbeat, &l.Silence, &l.Reconnect} {
		canonicalDuration(d)
	}
	return unlessEmpty(l)
}

// unlessEmpty is nil for an empty message, so that "nothing set" has one form.
func unlessEmpty[T proto.Message](m T) T {
	var none T
	if proto.Size(m) == 0 {
		return none
	}
	return m
}

// canonicalDuration ignores empty and unreadable text.
func canonicalDuration(s *string) {
	if *s != "" {
		normalDuration(s, "")
	}
}

// DiffCluster lists the settings in which two configurations differ, by key: in the order
// of the API, and those of node classes last. It is empty exactly if they mean the same.
func DiffCluster(a, b *v1.ClusterSpec) []FieldChange {
	a, b = NormalizedCluster(a), NormalizedCluster(b)
	classesA, classesB := a.NodeClasses, b.NodeClasses
	a.NodeClasses, b.NodeClasses = nil, nil
	d := differ{wholeLists: true}
	d.message("", a.ProtoReflect(), b.ProtoReflect())
	d.classes(classesA, classesB)
	return d.changes
}

// classes compares node classes by name, and then by their order, because the
// first one that matches counts.
func (d *differ) classes(a, b []*v1.NodeClass) {
	names := func(classes []*v1.NodeClass, among []*v1.NodeClass) (all []string) {
		for _, class := range classes {
			if among == nil || classNamed(among, class.GetName()) != nil {
				all = append(all, class.GetName())
			}
		}
		return all
	}
	seen := map[string]bool{}
	for _, name := range slices.Concat(names(b, nil), names(a, nil)) {
		if seen[name] {
			continue
		}
		seen[name] = true
		before, after := classNamed(a, name), classNamed(b, name)
		key := classKey + "." + name
		found := len(d.changes)
		d.message(key, withoutName(before).ProtoReflect(), withoutName(after).ProtoReflect())
		switch {
		case len(d.changes) > found || (before == nil) == (after == nil):
		case before == nil:
			d.changes = append(d.changes, FieldChange{Field: key, New: "{}"})
		default:
			d.changes = append(d.changes, FieldChange{Field: key, Old: "{}"})
		}
	}
	if len(a) > 0 && len(b) > 0 {
		if before, after := names(a, b), names(b, a); !slices.Equal(before, after) {
			d.changes = append(d.changes, FieldChange{Field: classKey, Old: strings.Join(before, ","), New: strings.Join(after, ",")})
		}
	}
}

func classNamed(all []*v1.NodeClass, name string) *v1.NodeClass {
	i := slices.IndexFunc(all, func(class *v1.NodeClass) bool { return class.GetName() == name })
	if i < 0 {
		return nil
	}
	return all[i]
}

func withoutName(class *v1.NodeClass) *v1.NodeClass {
	if class == nil {
		return &v1.NodeClass{}
	}
	class = proto.CloneOf(class)
	class.Name = ""
	return class
}

// WithDefaults returns a workload's spec in canonical form, with the cluster's defaults for
// unset fields. It does not change its argument.
//
// A default never makes a spec invalid: a request is at most the author's limit, and a
// limit at least the author's request.
func WithDefaults(s *v1.WorkloadSpec, d *v1.WorkloadDefaults) *v1.WorkloadSpec {
	w := &v1.WorkloadSpec{}
	proto.Merge(w, s)
	FillDefaults(w, d)
	normalizeSpec(w)
	return w
}

// FillDefaults writes the cluster's defaults into the unset fields of a spec as its author
// wrote it.
func FillDefaults(w *v1.WorkloadSpec, d *v1.WorkloadDefaults) {
	if d == nil {
		return
	}
	if d.Requests != nil || d.Limits != nil {
		if w.Resources == nil {
			w.Resources = &v1.Resources{}
		}
		r := w.Resources
		if r.Requests == nil {
			r.Requests = &v1.ResourceAmounts{}
		}
		if r.Limits == nil {
			r.Limits = &v1.ResourceAmounts{}
		}
		fillAmounts(&r.Requests.Cpu, &r.Limits.Cpu, d.GetRequests().GetCpu(), d.GetLimits().GetCpu(), ParseCPU)
		fillAmounts(&r.Requests.Memory, &r.Limits.Memory, d.GetRequests().GetMemory(), d.GetLimits().GetMemory(), ParseBytes)
		fill(&r.Requests.Disk, d.GetRequests().GetDisk())
		fillAmounts(&r.Requests.Bandwidth, &r.Limits.Bandwidth, d.GetRequests().GetBandwidth(), d.GetLimits().GetBandwidth(), ParseBandwidth)
	}
	if d.Restart != nil {
		if w.Restart == nil {
			w.Restart = &v1.Restart{}
		}
		if KindOf(w) == kindService { // other kinds have no choice
			fill(&w.Restart.Policy, d.Restart.GetPolicy())
		}
		fillBackoff(w.Restart, d.Restart)
		if !RunsToEnd(w) {
			fill(&w.Restart.Reset_, d.Restart.GetReset_())
		}
	}
	if d.Stop != nil {
		if w.Stop == nil {
			w.Stop = &v1.Stop{}
		}
		fill(&w.Stop.Signal, d.Stop.GetSignal())
		fill(&w.Stop.Grace, d.Stop.GetGrace())
	}
}

// fillAmounts fills the request and the limit of one resource.
func fillAmounts(request, limit *string, otherRequest, otherLimit string, parse func(string) (int64, error)) {
	smaller := func(a, b string) string {
		x, errX := parse(a)
		y, errY := parse(b)
		if errX == nil && errY == nil && y < x {
			return b
		}
		return a
	}
	switch {
	case *request == "" && *limit == "":
		*request, *limit = otherRequest, otherLimit
	case *request == "" && otherRequest != "":
		*request = smaller(otherRequest, *limit)
	case *limit == "" && otherLimit != "":
		if *limit = otherLimit; smaller(*request, otherLimit) == otherLimit {
			*limit = *request
		}
	}
}

// fillBackoff fills both pauses such that the first is at most the longest, even if the
// author set only one of them.
func fillBackoff(w, d *v1.Restart) {
	written := w.Backoff
	fill(&w.Backoff, d.GetBackoff())
	fill(&w.MaxBackoff, d.GetMaxBackoff())
	first, err1 := ParseDuration(cmp.Or(w.Backoff, defaultBackoff))
	longest, err2 := ParseDuration(cmp.Or(w.MaxBackoff, defaultMaxBackoff))
	if err1 != nil || err2 != nil || first <= longest {
		return
	}
	if written == "" {
		w.Backoff = cmp.Or(w.MaxBackoff, defaultMaxBackoff)
	} else {
		w.MaxBackoff = w.Backoff
	}
}
