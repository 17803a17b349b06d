package spec

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// clusterPath is the path of the settings in a Configuration.
const clusterPath = "spec.cluster"

// The bounds of durations: below them the cluster would be busy with nothing else, above
// them it would never react.
const (
	minHeartbeat, maxHeartbeat = 100 * time.Millisecond, time.Minute
	maxSilence                 = time.Hour
	minReconnect, maxReconnect = time.Second, 24 * time.Hour
	minRetention, maxRetention = time.Minute, 10 * 365 * 24 * time.Hour
	minPer, MaxPer             = time.Second, time.Hour

	// The subnet of one node, and the widest private ranges.
	nodeBits4, nodeBits6 = 24, 64
)

func init() { checkObjects(checkConfiguration) }

// checkConfiguration checks what the API's rules cannot express about the settings of a
// cluster, as far as the settings alone show it.
func checkConfiguration(c *v1.Configuration, found *violations) {
	if c.GetSpec().GetCluster() == nil {
		found.add(clusterPath, "is missing: give the settings of the cluster, or {} for the defaults")
		return
	}
	s := c.GetSpec().GetCluster()
	checkRanges(s, found)
	checkPrivateRegistries(s, found)
	checkServiceRanges(s, found)
	checkLiveness(clusterPath+".liveness", s.GetLiveness(), LivenessOf(&v1.ClusterSpec{Liveness: s.GetLiveness()}, nil), found)
	checkClasses(s, found)
	checkRetention(s.GetRetention(), found)
	within(clusterPath+".failover.per", s.GetFailover().GetPer(), minPer, MaxPer, found)
	checkRebalance(clusterPath+".rebalance", s.GetRebalance(), found)
	checkStorage(clusterPath+".storage", s.GetStorage(), found)
	checkDefaults(s.GetDefaults(), found)
	checkReserved(clusterPath+".reserved", s.GetReserved(), found)
	checkWeights(clusterPath+".weights", s.GetWeights(), found)
	checkAcme(clusterPath+".acme", s.GetAcme(), found)
	checkIngress(s, found)
	checkDisks(clusterPath+".security", s.GetSecurity(), found)
	checkOidc(clusterPath+".oidc", s.GetOidc(), found)
	checkSeccompProfiles(s.GetSecurity().GetSeccompProfiles(), found)
}

// checkDisks refuses limits with which no image and no replica could run.
func checkDisks(path string, s *v1.ClusterSecurity, found *violations) {
	for name, text := range map[string]string{".maxUnpackedImage": s.GetMaxUnpackedImage(), ".maxWritableLayer": s.GetMaxWritableLayer()} {
		if n, ok := readAmount(path+name, text, ParseBytes, found); ok && n < minDisk {
			found.add(path+name, "%s is too small: give at least %s", FormatBytes(n), FormatBytes(minDisk))
		}
	}
}

// checkReserved refuses amounts that no node could read: the node would accept nothing.
func checkReserved(path string, a *v1.ResourceAmounts, found *violations) {
	readAmount(path+".cpu", a.GetCpu(), ParseCPU, found)
	readAmount(path+".memory", a.GetMemory(), ParseBytes, found)
	readAmount(path+".disk", a.GetDisk(), ParseBytes, found)
	readAmount(path+".bandwidth", a.GetBandwidth(), ParseBandwidth, found)
}

func checkRanges(s *v1.ClusterSpec, found *violations) {
	v4, ok := readRange(clusterPath+".rangeV4", s.GetRangeV4(), found)
	if ok {
		checkRange(clusterPath+".rangeV4", v4, private4, nodeBits4, "of private IPv4 addresses, within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10", s, found)
	}
	v6, ok := readRange(clusterPath+".rangeV6", s.GetRangeV6(), found)
	if ok {
		checkRange(clusterPath+".rangeV6", v6, private6, nodeBits6, "of unique local IPv6 addresses, within fd00::/8", s, found)
	}
}

// readRange parses a range that the API's rules have accepted.
func readRange(path, text string, found *violations) (netip.Prefix, bool) {
	if text == "" || found.has(path) {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		found.add(path, "must be a range of addresses such as 10.64.0.0/10 or fd12:3456:789a::/48")
		return p, false
	}
	return p, true
}

var (
	private4 = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
	}
	private6 = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
)

func checkRange(path string, p netip.Prefix, private []netip.Prefix, nodeBits int, words string, s *v1.ClusterSpec, found *violations) {
	switch {
	case !isWithin(p, private):
		found.add(path, "must be a range %s: others would lose what they have at %s", words, p)
	case p.Bits() > nodeBits:
		found.add(path, "is too small: every node needs a /%d of it, so give a /%d or a larger range", nodeBits, nodeBits)
	case nodesIn(p, nodeBits) < int(s.GetLimits().GetNodes()):
		found.add(path, "has room for %d nodes, and limits.nodes allows %d: give a larger range or lower limits.nodes", nodesIn(p, nodeBits), s.GetLimits().GetNodes())
	}
}

// nodesIn is how many nodes get a subnet out of a range, capped.
func nodesIn(p netip.Prefix, nodeBits int) int {
	return 1 << min(max(nodeBits-p.Bits(), 0), 30)
}

// NodesIn is how many nodes get a subnet out of a range.
func NodesIn(p netip.Prefix) int {
	if p.Addr().Is4() {
		return nodesIn(p, nodeBits4)
	}
	return nodesIn(p, nodeBits6)
}

// checkLiveness gets what was written and the effective values.
func checkLiveness(path string, written *v1.Liveness, l Liveness, found *violations) {
	within(path+".heartbeat", written.GetHeartbeat(), minHeartbeat, maxHeartbeat, found)
	within(path+".silence", written.GetSilence(), minHeartbeat, maxSilence, found)
	within(path+".reconnect", written.GetReconnect(), minReconnect, maxReconnect, found)
	durationOf := written.GetHeartbeat() != "" || written.GetSilence() != ""
	if !durationOf || found.has(path+".heartbeat") || found.has(path+".silence") || l.Silence > 2*l.Heartbeat {
		return
	}
	field := path + ".silence"
	if written.GetSilence() == "" && written.GetHeartbeat() != "" {
		field = path + ".heartbeat"
	}
	found.add(field, "silence must be longer than two heartbeats, so that one lost report makes no node offline: silence is %s and the heartbeat %s; raise silence or lower the heartbeat",
		FormatDuration(l.Silence), FormatDuration(l.Heartbeat))
}

// within checks an optional duration.
func within(path, text string, least, most time.Duration, found *violations) {
	d, ok := readAmount(path, text, ParseDuration, found)
	if ok && (d < least || d > most) {
		found.add(path, "must be between %s and %s, or left out for the default", FormatDuration(least), FormatDuration(most))
	}
}

func checkClasses(s *v1.ClusterSpec, found *violations) {
	names := map[string]int{}
	for i, class := range s.GetNodeClasses() {
		path := indexPath(clusterPath+".nodeClasses", i)
		if first, taken := names[class.GetName()]; taken && class.GetName() != "" {
			found.add(path+".name", "is the name of %s too; names of node classes must differ", indexPath(clusterPath+".nodeClasses", first))
		} else {
			names[class.GetName()] = i
		}
		selector, err := ParseSelector(class.GetLabels())
		switch broken, ok := err.(*Error); {
		case ok:
			found.add(path+".labels", "%s", broken.Violations[0].Message)
		case selector.Empty():
			found.add(path+".labels", "is missing: say which nodes are of the class, such as kind=laptop; what holds for all nodes is set in liveness")
		}
		checkReserved(path+".reserved", class.GetReserved(), found)
		// As for a node of this class: unset values come from the cluster.
		judged := LivenessOf(&v1.ClusterSpec{Liveness: overlay(s.GetLiveness(), class.GetLiveness())}, nil)
		if l := class.GetLiveness(); l.GetHeartbeat() != "" || l.GetSilence() != "" || l.GetReconnect() != "" {
			checkLiveness(path+".liveness", class.GetLiveness(), judged, found)
		}
	}
}

func overlay(below, above *v1.Liveness) *v1.Liveness {
	return &v1.Liveness{
		Heartbeat: cmp.Or(above.GetHeartbeat(), below.GetHeartbeat()),
		Silence:   cmp.Or(above.GetSilence(), below.GetSilence()),
		Reconnect: cmp.Or(above.GetReconnect(), below.GetReconnect()),
	}
}

func checkRetention(r *v1.Retention, found *violations) {
	const path = clusterPath + ".retention"
	for name, text := range map[string]string{
		"replicas": r.GetReplicas(), "events": r.GetEvents(), "tokens": r.GetTokens(), "images": r.GetImages(),
	} {
		within(path+"."+name, text, minRetention, maxRetention, found)
	}
}

// checkDefaults refuses defaults that would make an empty workload invalid.
func checkDefaults(d *v1.WorkloadDefaults, found *violations) {
	if d == nil {
		return
	}
	var own violations
	written := &v1.Resources{Requests: d.GetRequests(), Limits: d.GetLimits()}
	w := &v1.WorkloadSpec{Resources: written, Restart: d.GetRestart(), Stop: d.GetStop()}
	normal := Normalized(w)
	checkResources(written, normal.GetResources(), &own)
	checkDurations(normal, &own)
	for _, v := range own {
		path := strings.TrimPrefix(v.Field, "spec.")
		path = clusterPath + ".defaults." + strings.TrimPrefix(path, "resources.")
		if !found.has(path) {
			found.add(path, "%s", v.Message)
		}
	}
}

func checkRebalance(path string, r *v1.Rebalance, found *violations) {
	within(path+".per", r.GetPer(), minPer, MaxPer, found)
	within(path+".rest", r.GetRest(), minRest, maxRest, found)
}
