package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// tolerableSkew is how far clocks may be apart before it is said: nothing
// breaks by more than that, but times in events and logs mislead.
const tolerableSkew = 10 * time.Second

// skewOf is by how much a clock that said a time between two moments of ours is
// ahead.
func skewOf(said *timestamppb.Timestamp, asked, answered time.Time) time.Duration {
	if said == nil {
		return 0 // of a server that does not say
	}
	return said.AsTime().Sub(asked.Add(answered.Sub(asked) / 2))
}

// presentSkew is what is shown of a difference of clocks.
func presentSkew(skew time.Duration) string {
	if skew.Abs() < tolerableSkew {
		return ""
	}
	return spec.FormatDuration(skew.Round(time.Second))
}

// clockTroubles says which clocks are wrong. The leader's is the measure; where
// all others differ from it, it is the one that is wrong.
func clockTroubles(servers []*v1.ServerStatus) (problems []string) {
	const wayOut = "set it right, best by time synchronization (NTP); times in events and logs mislead until then"
	var leader, skew string
	differ := 0
	for _, one := range servers {
		if one.GetLeader() {
			leader = one.GetName()
		}
		if one.GetClockSkew() != "" {
			skew = one.GetClockSkew()
			differ++
		}
	}
	if differ > 1 && differ == len(servers)-1 {
		return []string{fmt.Sprintf("the clocks of all other servers differ from that of server %s, which leads, and is about %s theirs: %s",
			leader, aheadOrBehind(opposite(skew)), wayOut)}
	}
	for _, one := range servers {
		if one.GetClockSkew() != "" {
			problems = append(problems, fmt.Sprintf("the clock of server %s is %s that of server %s, which leads: %s",
				one.GetName(), aheadOrBehind(one.GetClockSkew()), leader, wayOut))
		}
	}
	return problems
}

func opposite(skew string) string {
	if positive, ok := strings.CutPrefix(skew, "-"); ok {
		return positive
	}
	return "-" + skew
}

// aheadOrBehind puts a difference into words.
func aheadOrBehind(skew string) string {
	if behind, ok := strings.CutPrefix(skew, "-"); ok {
		return behind + " behind"
	}
	return skew + " ahead of"
}

// diskTroubles says whose disk is full.
func diskTroubles(servers []*v1.ServerStatus) (problems []string) {
	voters, full := 0, 0
	var names []string
	for _, one := range servers {
		if one.GetVoter() {
			voters++
		}
		if one.GetFull() {
			names = append(names, one.GetName())
			if one.GetVoter() {
				full++
			}
		}
	}
	if full > 0 && full == voters && voters > 1 {
		return []string{fmt.Sprintf("the disks of all voting servers are full (%s), so nothing can be changed: make room on them", strings.Join(names, ", "))}
	}
	for _, name := range names {
		problems = append(problems, fmt.Sprintf("the disk of server %s is full: make room there; it cannot lead until then, and stops when nothing more fits", name))
	}
	return problems
}

// A leadership that has changed so often lately does not hold; less often, somebody
// may have restarted all servers in turn.
const (
	changesTooMany = 5
	changesLately  = 10 * time.Minute
)

// leaderTroubles says so if the leadership does not hold.
func leaderTroubles(snap *state.Snapshot, now time.Time) []string {
	changes, last := 0, ""
	for e := range snap.LeaderEvents() {
		if now.Sub(e.GetSpec().GetTime().AsTime()) > changesLately {
			break
		}
		changes++
		last = cmp.Or(last, e.GetSpec().GetObjectName())
	}
	if changes < changesTooMany {
		return nil
	}
	return []string{fmt.Sprintf("the leadership has changed %d times in the last %s, at last to server %s: unless somebody has handed it over, a server, its disk or the network between them is slow, or comes and goes; "+
		"see who led when with: cloudless events --for server/%s, and why in the logs of the servers; where machines stand still now and then, start them with --election-timeout 2s",
		changes, spec.FormatDuration(changesLately), last, last)}
}

// nodeTroubles says which nodes are away, cannot work, are short of something or
// have a wrong clock, and what to do about it.
func (s *Server) nodeTroubles(snap *state.Snapshot) []string {
	offline := &nodeTrouble{wayOut: "start its machine, or its agent there with: cloudless agent; if it is gone for good: cloudless node rm NAME", more: "are offline"}
	failed := &nodeTrouble{wayOut: "look on its machine with: cloudless doctor, and here with: cloudless node get NAME", more: "have failed"}
	short := &nodeTrouble{wayOut: "make room there: it is given nothing new until then", more: "are short of disk, memory or processes"}
	skewed := &nodeTrouble{more: "have clocks that are wrong"}
	for n := range snap.Nodes("") {
		name, status := n.GetMetadata().GetName(), n.GetStatus()
		switch status.GetState() {
		case spec.NodeOffline:
			offline.add(name, " is offline", status.GetReason())
		case spec.NodeFailed:
			failed.add(name, " has failed", status.GetReason())
		}
		for _, c := range status.GetConditions() {
			switch {
			case !c.GetStatus():
			case c.GetType() == "ClockSkewed":
				skewed.add(name, "", c.GetReason())
			case strings.HasSuffix(c.GetType(), "Pressure") && status.GetState() != spec.NodeOffline: // where it is what was heard last
				short.add(name, " has "+c.GetType(), c.GetReason())
			}
		}
	}
	return slices.Concat(offline.sentences(), failed.sentences(), short.sentences(), skewed.sentences())
}

// nodeTrouble is one thing that is wrong with nodes, of which a few are named.
type nodeTrouble struct {
	// wayOut is what to do about it, if the reason does not say it.
	wayOut string
	// more is what is said of those that are not named.
	more  string
	named []string
	rest  int
}

func (t *nodeTrouble) add(name, what, reason string) {
	const most = 5
	if len(t.named) == most {
		t.rest++
		return
	}
	sentence := "node " + name + what
	if reason != "" {
		sentence += ": " + strings.TrimSuffix(reason, ".")
	}
	if t.wayOut != "" {
		sentence += "; " + strings.ReplaceAll(t.wayOut, "NAME", name)
	}
	t.named = append(t.named, sentence)
}

func (t *nodeTrouble) sentences() []string {
	if t.rest == 0 {
		return t.named
	}
	return append(t.named, fmt.Sprintf("%d more nodes %s: look with: cloudless node ls", t.rest, t.more))
}
