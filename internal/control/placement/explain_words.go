package placement

import (
	"fmt"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// summary describes the workload's status in a sentence.
func (x *explainer) summary(answer *v1.Explanation) string {
	var parts []string
	nodeless, unplaced := len(x.waiting)+x.missing, x.outlook.unplaced
	switch total := len(x.placed) + nodeless + len(x.successors); {
	case total == 0:
		parts = append(parts, "no replica runs or waits")
	case x.missing == total:
		parts = append(parts, counted(total-unplaced, total)+" would have a node")
	default:
		parts = append(parts, fmt.Sprintf("%s %s a node", counted(len(x.placed), total), verb(len(x.placed), total)))
	}
	if without := min(nodeless, unplaced); without > 0 {
		parts = append(parts, fmt.Sprintf("%d %s no place", without, verb(without, without)))
	}
	if held := x.heldBack(); held > 0 {
		parts = append(parts, fmt.Sprintf("%d %s to wait for a time", held, verb(held, held)))
	}
	if len(x.away) > 0 {
		text := fmt.Sprintf("%d on a node that is offline", len(x.away))
		if x.covers > 0 {
			text += stuck(answer, "a replacement")
			if limit := spec.FailoverOf(x.snap.Cluster().GetSpec()); limit.Replicas > 0 {
				text += ", and " + limit.String()
			}
		}
		parts = append(parts, text)
	}
	if len(x.outdated) > 0 {
		text := fmt.Sprintf("%d outdated", len(x.outdated))
		if nodeless+len(x.away) == 0 {
			text += stuck(answer, "a successor")
		}
		parts = append(parts, text)
	}
	if x.secret != "" {
		text := x.secret
		if nodeless+x.covers+len(x.outdated) == 0 {
			text = "one more " + text
		}
		parts = append(parts, text)
	}
	if answer.GetQuota() != "" {
		text := answer.GetQuota()
		if nodeless+x.covers+len(x.outdated) == 0 {
			text = "for one more, " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// heldBack counts the replicas that wait for a time.
func (x *explainer) heldBack() (count int) {
	for _, r := range x.waiting {
		if HeldBack(time.Now(), r) {
			count++
		}
	}
	return count
}

// stuck continues a sentence about replicas that cannot be replaced.
func stuck(answer *v1.Explanation, what string) string {
	switch {
	case answer.GetEveryNode():
		if n := answer.GetSuitingCount() - answer.GetTakingCount() - answer.GetYieldingCount(); n > 0 {
			return fmt.Sprintf(", and on %d of the nodes %s cannot be placed", n, what)
		}
		return ""
	case answer.GetTakingCount()+answer.GetYieldingCount() == 0:
		return ", and no node can take " + what
	case answer.GetQuota() != "":
		return ", and the quota has no room for " + what
	}
	return ""
}

// verb agrees with the count: 1 of 3 has, 0 of 3 have, 0 of 1 has.
func verb(n, of int) string {
	if n == 1 || of == 1 {
		return "has"
	}
	return "have"
}

// counted returns, for example, "2 of 3 replicas".
func counted(n, of int) string {
	if of == 1 {
		return fmt.Sprintf("%d of 1 replica", n)
	}
	return fmt.Sprintf("%d of %d replicas", n, of)
}

func scoreProto(j *scheduler.Judgement) *v1.NodeScore {
	if j.Rank == 0 || len(j.Refusals) > 0 {
		return nil
	}
	score := scoreOf(&j.Score)
	score.Same = j.Same
	return score
}

func scoreOf(s *scheduler.Score) *v1.NodeScore {
	return &v1.NodeScore{
		Affinity: s.Affinity, Avoided: s.Avoided, SameNode: s.SameNode, Total: float64(s.Total) / 1e6,
		Locality: part(s.Locality), Reliability: part(s.Reliability), Cost: part(s.Cost), Utilization: part(s.Utilization), Network: part(s.Network),
	}
}

func weightsProto(w scheduler.Weights) *v1.ScoreWeights {
	return &v1.ScoreWeights{
		Locality: new(part(w.Locality)), Reliability: new(part(w.Reliability)), Cost: new(part(w.Cost)),
		Utilization: new(part(w.Utilization)), Network: new(part(w.Network)),
	}
}

// part converts thousandths to a fraction of 1.
func part(thousandths int32) float64 { return float64(thousandths) / 1000 }
