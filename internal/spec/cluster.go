package spec

import (
	"cmp"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Liveness says when a node counts as offline.
type Liveness struct {
	// Heartbeat is how often an agent reports.
	Heartbeat time.Duration
	// Silence is how long an open session may be silent.
	Silence time.Duration
	// Reconnect is how long a node without a session may take to come back
	// while its machine still answers.
	Reconnect time.Duration
}

// DefaultLiveness is used if the configuration sets nothing.
var DefaultLiveness = Liveness{Heartbeat: time.Second, Silence: 3 * time.Second, Reconnect: 10 * time.Second}

// LivenessOf returns the timeouts for a node: from the first class that matches, then from
// the cluster, then the defaults. Unreadable values are ignored: the configuration was
// validated when it was set.
func LivenessOf(c *v1.ClusterSpec, n *v1.Node) Liveness {
	own, all := NodeClassOf(c, n).GetLiveness(), c.GetLiveness()
	return Liveness{
		Heartbeat: cmp.Or(durationOf(own.GetHeartbeat()), durationOf(all.GetHeartbeat()), DefaultLiveness.Heartbeat),
		Silence:   cmp.Or(durationOf(own.GetSilence()), durationOf(all.GetSilence()), DefaultLiveness.Silence),
		Reconnect: cmp.Or(durationOf(own.GetReconnect()), durationOf(all.GetReconnect()), DefaultLiveness.Reconnect),
	}
}

// ShortestSilence is the shortest silence limit of any node.
func ShortestSilence(c *v1.ClusterSpec) time.Duration {
	shortest := cmp.Or(durationOf(c.GetLiveness().GetSilence()), DefaultLiveness.Silence)
	for _, class := range c.GetNodeClasses() {
		if own := durationOf(class.GetLiveness().GetSilence()); own > 0 {
			shortest = min(shortest, own)
		}
	}
	return shortest
}

// durationOf is the parsed duration, 0 if there is none.
func durationOf(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// The limits of the disk that a configuration without its own has.
const (
	defaultUnpacked    = 20 << 30
	defaultHighPercent = 80
	defaultWritable    = 10 << 30
)

// DiskLimitsOf is how the nodes of a cluster keep their disks from filling up.
func DiskLimitsOf(c *v1.ClusterSpec) *v1.DiskLimits {
	s := c.GetSecurity()
	limits := &v1.DiskLimits{MaxUnpackedImage: defaultUnpacked, ImageHighPercent: defaultHighPercent, MaxWritableLayer: defaultWritable}
	if n, err := ParseBytes(s.GetMaxUnpackedImage()); err == nil && n > 0 {
		limits.MaxUnpackedImage = n
	}
	if s.GetImageHighPercent() > 0 {
		limits.ImageHighPercent = s.GetImageHighPercent()
	}
	if n, err := ParseBytes(s.GetMaxWritableLayer()); err == nil && n > 0 {
		limits.MaxWritableLayer = n
	}
	return limits
}
