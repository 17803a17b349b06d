package nodes

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// The parts of the reliability score in per cent.
const (
	weightUptime       = 30
	weightResponseTime = 20
	weightSuccessRate  = 20
	weightCapacity     = 15
	weightStability    = 15
)

// The half-lives of observations.
const (
	uptimeHalfLife = 7 * 24 * time.Hour
	startsHalfLife = 24 * time.Hour
	lossesHalfLife = 6 * time.Hour
)

const (
	// quickAnswer is full marks for the response time, slowAnswer none. The scale between
	// them is logarithmic.
	quickAnswer = 10 * time.Millisecond
	slowAnswer  = time.Second
	// answerWeight is the weight of a new measurement.
	answerWeight = 0.2
	// enoughFree is the free share of the scarcest resource that is full marks for the
	// capacity.
	enoughFree = 0.5
	// brokenSession is the weight of a broken session, compared to a loss.
	brokenSession = 0.25
)

// pass adds time to a record in which the node was online or not.
func pass(r *v1.ReliabilityRecord, d time.Duration, online bool) {
	if d <= 0 {
		return
	}
	// The integral of exponential decay while time is added.
	rate := math.Ln2 / uptimeHalfLife.Seconds()
	kept := math.Exp(-rate * d.Seconds())
	gained := (1 - kept) / rate
	r.WatchedSeconds = r.WatchedSeconds*kept + gained
	r.OnlineSeconds *= kept
	if online {
		r.OnlineSeconds += gained
	}
	starts := math.Exp2(-d.Seconds() / startsHalfLife.Seconds())
	r.Started *= starts
	r.NotStarted *= starts
	r.Losses *= math.Exp2(-d.Seconds() / lossesHalfLife.Seconds())
}

// answered adds a measurement of the response time.
func answered(r *v1.ReliabilityRecord, took time.Duration) {
	if r.ResponseSeconds == 0 {
		r.ResponseSeconds = took.Seconds()
		return
	}
	r.ResponseSeconds += answerWeight * (took.Seconds() - r.ResponseSeconds)
}

// free is the free share of a node's scarcest resource, and its name.
func free(has, used *v1.NodeResources) (share float64, what string, known bool) {
	share = 1
	for _, one := range []struct {
		name      string
		has, used string
		parse     func(string) (int64, error)
	}{
		{"CPU", has.GetCpu(), used.GetCpu(), spec.ParseCPU},
		{"memory", has.GetMemory(), used.GetMemory(), spec.ParseBytes},
		{"disk", has.GetDisk(), used.GetDisk(), spec.ParseBytes},
	} {
		total, err := one.parse(one.has)
		taken, err2 := one.parse(one.used)
		if err != nil || err2 != nil || total <= 0 {
			continue
		}
		if left := max(0, 1-float64(taken)/float64(total)); !known || left < share {
			share, what, known = left, one.name, true
		}
	}
	return share, what, known
}

// score computes a node's reliability from its record. scarce names the scarcest resource,
// if known.
func score(now time.Time, r *v1.ReliabilityRecord, scarce string) *v1.Reliability {
	s := &v1.Reliability{
		Uptime: uptime(r), ResponseTime: responseTime(r), SuccessRate: successRate(r), Capacity: capacity(r, scarce), Stability: stability(r),
		Time: timestamppb.New(now), Record: r,
	}
	sum := weightUptime*s.GetUptime().GetScore() + weightResponseTime*s.GetResponseTime().GetScore() +
		weightSuccessRate*s.GetSuccessRate().GetScore() + weightCapacity*s.GetCapacity().GetScore() + weightStability*s.GetStability().GetScore()
	s.Score = (sum + 50) / 100
	return s
}

// part is one of the five parts. An unknown part counts in favour of the node.
func part(share float64, format string, args ...any) *v1.ReliabilityPart {
	return &v1.ReliabilityPart{Score: int32(math.Round(100 * min(1, max(0, share)))), Basis: fmt.Sprintf(format, args...)}
}

func uptime(r *v1.ReliabilityRecord) *v1.ReliabilityPart {
	if r.GetWatchedSeconds() < 1 {
		return part(1, "not watched for long enough yet")
	}
	return part(r.GetOnlineSeconds()/r.GetWatchedSeconds(), "there for %s of the %s that count",
		roughly(r.GetOnlineSeconds()), roughly(r.GetWatchedSeconds()))
}

func responseTime(r *v1.ReliabilityRecord) *v1.ReliabilityPart {
	if r.GetResponseSeconds() <= 0 {
		return part(1, "not measured yet")
	}
	share := math.Log(slowAnswer.Seconds()/r.GetResponseSeconds()) / math.Log(slowAnswer.Seconds()/quickAnswer.Seconds())
	return part(share, "answers in %.3g ms", 1000*r.GetResponseSeconds())
}

func successRate(r *v1.ReliabilityRecord) *v1.ReliabilityPart {
	tried := r.GetStarted() + r.GetNotStarted()
	if tried < 0.05 {
		return part(1, "no replica was started lately")
	}
	return part(r.GetStarted()/tried, "started %.3g of %.3g replicas; what is long ago counts less", r.GetStarted(), tried)
}

func capacity(r *v1.ReliabilityRecord, scarce string) *v1.ReliabilityPart {
	if r.FreeShare == nil {
		return part(1, "not measured yet")
	}
	of := "the scarcest resource"
	if scarce != "" {
		of = scarce
	}
	return part(r.GetFreeShare()/enoughFree, "%.0f %% of %s is free, on average", 100*r.GetFreeShare(), of)
}

func stability(r *v1.ReliabilityRecord) *v1.ReliabilityPart {
	if r.GetLosses() < 0.05 {
		return part(1, "not lost lately")
	}
	return part(math.Exp2(-r.GetLosses()), "lost %.2g times; what is long ago counts less", r.GetLosses())
}

// roughly formats a duration for people.
func roughly(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return spec.FormatDuration(d.Round(time.Minute))
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

const (
	// A score is stored when it has moved by so much, or a part of it by so much, but not
	// before the least time, and anyway after the longest.
	movedScore, movedPart = 3, 15
	keepAfter, keepAnyway = 5 * time.Minute, 6 * time.Hour
	// firstKept is how long a node is watched before its first score is stored.
	firstKept = 60 // seconds
)

// worthKeeping reports whether to store a fresh score.
func worthKeeping(stored, fresh *v1.Reliability) bool {
	if stored == nil {
		return fresh.GetRecord().GetWatchedSeconds() >= firstKept
	}
	age := fresh.GetTime().AsTime().Sub(stored.GetTime().AsTime())
	if age >= 0 && age < keepAfter {
		return false
	}
	// A score from the future comes from a leader with a wrong clock. It must not block
	// newer ones.
	moved := age < 0 || age >= keepAnyway || abs(stored.GetScore()-fresh.GetScore()) >= movedScore
	before, after := parts(stored), parts(fresh)
	for i := range before {
		moved = moved || abs(before[i].GetScore()-after[i].GetScore()) >= movedPart
	}
	return moved
}

func parts(r *v1.Reliability) [5]*v1.ReliabilityPart {
	return [5]*v1.ReliabilityPart{r.GetUptime(), r.GetResponseTime(), r.GetSuccessRate(), r.GetCapacity(), r.GetStability()}
}

func abs(n int32) int32 { return max(n, -n) }
