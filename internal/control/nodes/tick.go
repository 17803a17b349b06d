package nodes

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// The states of a node that this loop moves between.
const (
	stateReady   = "ready"
	stateOffline = "offline"
)

// Observation is what is known of a node in memory.
type Observation struct {
	// Status is what the agent last said about the machine, without usage.
	Status *v1.NodeStatus
	Usage  *v1.NodeResources
	// Replicas is what the node's replicas use, by uid; see usage.go.
	Replicas  map[string]*v1.ReplicaUsage
	LastSeen  time.Time
	Connected bool
}

// Windows are how long a node may be away before it counts as offline.
type Windows struct {
	// Silence is for a node whose session is open but says nothing.
	Silence time.Duration
	// Reconnect is for a node without a session, so that a restart of its
	// agent or of the leader takes nobody offline.
	Reconnect time.Duration
}

// maxChanges keeps one transaction small when thousands of nodes change at
// once; the next tick does the rest.
const maxChanges = 500

// Tick returns the changes that are due and when to look again without any
// news, zero if never. since is when this server began to lead: before that it
// cannot have heard of anybody.
func Tick(now, since time.Time, snap *state.Snapshot, seen map[string]Observation, windows Windows, newUID func() string) (*state.Batch, time.Time) {
	batch := &state.Batch{}
	var next time.Time
	for old := range snap.Nodes("") {
		o := seen[old.GetMetadata().GetUid()]
		n, until := judge(now, since, old, o, windows)
		if !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
		if proto.Equal(old, n) {
			continue
		}
		if batch.Len() >= maxChanges {
			return batch, now
		}
		batch.Update(n, old.GetMetadata().GetVersion())
		if before, after := old.GetStatus().GetState(), n.GetStatus().GetState(); before != after {
			batch.Create(event(now, newUID(), n, before))
		}
	}
	return batch, next
}

// judge is what a node should look like, and until when that holds without news.
func judge(now, since time.Time, old *v1.Node, o Observation, windows Windows) (*v1.Node, time.Time) {
	window, reference := windows.Reconnect, o.LastSeen
	if o.Connected {
		window = windows.Silence
	}
	if reference.Before(since) {
		reference = since
	}
	until := reference.Add(window)
	n := proto.CloneOf(old)
	if n.Status == nil {
		n.Status = &v1.NodeStatus{}
	}
	switch {
	case now.Before(until) && o.Connected:
		if o.Status != nil {
			n.Status = proto.CloneOf(o.Status)
		}
		n.Status.State, n.Status.Reason = stateReady, ""
		return n, until
	case now.Before(until) || n.GetStatus().GetState() == stateOffline:
		return n, future(now, until)
	case n.GetStatus().GetState() == stateReady:
		n.Status.State = stateOffline
		n.Status.Reason = fmt.Sprintf("not heard of for %s", window)
		n.Status.LastSeen = timestamppb.New(reference)
	}
	return n, time.Time{}
}

func future(now, t time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

func event(now time.Time, uid string, n *v1.Node, before string) *v1.Event {
	if n.GetStatus().GetState() == stateOffline {
		return state.NewEvent(uid, now, n, state.SeverityWarning, "Offline", n.GetStatus().GetReason(), "control/nodes")
	}
	return state.NewEvent(uid, now, n, state.SeverityInfo, "Ready", "was "+before, "control/nodes")
}
