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
	// Silence is how long an open session may say nothing.
	Silence time.Duration
	// Reconnect is how long a node without a session may take to come back
	// while its machine still answers.
	Reconnect time.Duration
}

// DefaultLiveness is that of a cluster whose configuration says nothing else.
var DefaultLiveness = Liveness{Heartbeat: time.Second, Silence: 3 * time.Second, Reconnect: 10 * time.Second}

// LivenessOf returns how a node is judged: as the first class that matches says, then
// as the cluster says, then by default. What cannot be read counts as not said: the
// configuration was validated when it was set.
func LivenessOf(c *v1.ClusterSpec, n *v1.Node) Liveness {
	own, all := NodeClassOf(c, n).GetLiveness(), c.GetLiveness()
	return Liveness{
		Heartbeat: cmp.Or(said(own.GetHeartbeat()), said(all.GetHeartbeat()), DefaultLiveness.Heartbeat),
		Silence:   cmp.Or(said(own.GetSilence()), said(all.GetSilence()), DefaultLiveness.Silence),
		Reconnect: cmp.Or(said(own.GetReconnect()), said(all.GetReconnect()), DefaultLiveness.Reconnect),
	}
}

// ShortestSilence is how long an open session of any node may say nothing.
func ShortestSilence(c *v1.ClusterSpec) time.Duration {
	shortest := cmp.Or(said(c.GetLiveness().GetSilence()), DefaultLiveness.Silence)
	for _, class := range c.GetNodeClasses() {
		if own := said(class.GetLiveness().GetSilence()); own > 0 {
			shortest = min(shortest, own)
		}
	}
	return shortest
}

// said is the length of time that a text names, 0 if it names none.
func said(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}
