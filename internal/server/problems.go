package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// tolerableSkew is how far clocks may differ before a problem is reported. A larger skew
// breaks nothing, but times in events and logs mislead.
const tolerableSkew = 10 * time.Second

// presentSkew returns a skew for the API; empty if it is tolerable.
func presentSkew(skew time.Duration) string {
	if skew.Abs() < tolerableSkew {
		return ""
	}
	return spec.FormatDuration(skew.Round(time.Second))
}

// clockProblems says which clocks are wrong, compared with the leader's. If all others
// differ from it, the leader's clock is the wrong one.
func clockProblems(servers []*v1.ServerStatus) (problems []string) {
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

// aheadOrBehind describes a skew.
func aheadOrBehind(skew string) string {
	if behind, ok := strings.CutPrefix(skew, "-"); ok {
		return behind + " behind"
	}
	return skew + " ahead of"
}

// authorityWarning is how long before its end the certificate authority becomes a problem.
const authorityWarning = 365 * 24 * time.Hour

// authorityProblems warns of the end of the certificate authority.
func authorityProblems(end, now time.Time) []string {
	if end.Sub(now) > authorityWarning {
		return nil
	}
	return []string{fmt.Sprintf("the certificate authority of the cluster ends on %s, and no certificate is valid afterwards: replace it, without downtime, with: cloudless ca rotate",
		end.UTC().Format(time.DateOnly))}
}

// rotationProblems says for whom the rotation of a key waits for too long. Only the leader hears the nodes.
func (s *Server) rotationProblems(ctx context.Context, snap *state.Snapshot) []string {
	if !authority.Overdue(s.Now(), snap) {
		return nil
	}
	if !s.Consensus.IsLeader() {
		return authority.Problems(s.Now(), snap, nil)
	}
	reports := s.KeyReports(ctx)
	return authority.Problems(s.Now(), snap, &reports)
}

// diskProblems says which servers have a full disk.
func diskProblems(servers []*v1.ServerStatus) (problems []string) {
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

// So many changes of the leader in a short time mean that the leadership is unstable. Fewer
// can come from a restart of all servers in turn.
const (
	changesTooMany = 5
	changesLately  = 10 * time.Minute
)

// leaderProblems reports an unstable leadership.
func leaderProblems(snap *state.Snapshot, now time.Time) []string {
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
	return []string{fmt.Sprintf("the leader has changed %d times in the last %s, most recently to server %s: unless somebody transferred the leadership, a server, its disk or the network is slow or fails now and then; "+
		"see the changes with: cloudless events --for server/%s, and the reasons in the logs of the servers; if the machines stall now and then, start the servers with --election-timeout 2s",
		changes, spec.FormatDuration(changesLately), last, last)}
}

// nodeProblems says which nodes are offline, have failed, are short of a resource or have a
// wrong clock, and what to do about it.
func (s *Server) nodeProblems(snap *state.Snapshot) []string {
	offline := &nodeProblem{wayOut: "start its machine, or its agent there with: cloudless agent; if it is gone for good: cloudless node rm NAME", more: "are offline"}
	failed := &nodeProblem{wayOut: "look on its machine with: cloudless doctor, and here with: cloudless node get NAME", more: "have failed"}
	short := &nodeProblem{wayOut: "make room there: it is given nothing new until then", more: "are short of disk, memory or processes"}
	skewed := &nodeProblem{more: "have clocks that are wrong"}
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
			case strings.HasSuffix(c.GetType(), "Pressure") && status.GetState() != spec.NodeOffline: // that of an offline node is outdated
				short.add(name, " has "+c.GetType(), c.GetReason())
			}
		}
	}
	return slices.Concat(offline.sentences(), failed.sentences(), short.sentences(), skewed.sentences())
}

// nodeProblem is one kind of problem. It names a few nodes that have it and counts the
// others.
type nodeProblem struct {
	// wayOut says what to do about it, if the reason does not.
	wayOut string
	// more is the verb phrase for the nodes that are not named.
	more  string
	named []string
	rest  int
}

func (t *nodeProblem) add(name, what, reason string) {
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

func (t *nodeProblem) sentences() []string {
	if t.rest == 0 {
		return t.named
	}
	return append(t.named, fmt.Sprintf("%d more nodes %s: look with: cloudless node ls", t.rest, t.more))
}
