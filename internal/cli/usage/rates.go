package usage

import (
	"fmt"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// rates turns the totals of replicas into rates per second.
type rates struct {
	last map[string]*cloudlessv1.ReplicaUsage // the newest measurement of each replica, by uid
	now  map[string]rate
}

// rate is the usage of a replica between its last two measurements.
type rate struct {
	throttled               float64 // part of the time
	received, sent          float64 // bytes a second
	readBytes, writtenBytes float64
	dropped, delayed        float64 // packets a second that the limit of the bandwidth has held back
}

func newRates() *rates {
	return &rates{last: map[string]*cloudlessv1.ReplicaUsage{}, now: map[string]rate{}}
}

// see adds a frame and forgets the replicas that are not in it.
func (r *rates) see(frame *cloudlessv1.Usage) {
	last, now := map[string]*cloudlessv1.ReplicaUsage{}, map[string]rate{}
	for _, u := range frame.GetReplicas() {
		uid := u.GetUid()
		before, known := r.last[uid]
		last[uid] = u
		if !known {
			continue
		}
		passed := u.GetTime().AsTime().Sub(before.GetTime().AsTime()).Seconds()
		if passed > 0 {
			now[uid] = between(before, u, passed)
		} else if old, ok := r.now[uid]; ok { // the same measurement again
			now[uid] = old
		}
	}
	r.last, r.now = last, now
}

func between(before, after *cloudlessv1.ReplicaUsage, seconds float64) rate {
	per := func(get func(*cloudlessv1.ReplicaUsage) uint64) float64 {
		if get(after) < get(before) { // the replica was restarted
			return 0
		}
		return float64(get(after)-get(before)) / seconds
	}
	return rate{
		dropped:   per((*cloudlessv1.ReplicaUsage).GetReceivedDropped) + per((*cloudlessv1.ReplicaUsage).GetSentDropped),
		delayed:   per((*cloudlessv1.ReplicaUsage).GetReceivedDelayed) + per((*cloudlessv1.ReplicaUsage).GetSentDelayed),
		throttled: per((*cloudlessv1.ReplicaUsage).GetThrottledNanos) / float64(time.Second),
		received:  per((*cloudlessv1.ReplicaUsage).GetReceivedBytes), sent: per((*cloudlessv1.ReplicaUsage).GetSentBytes),
		readBytes: per((*cloudlessv1.ReplicaUsage).GetReadBytes), writtenBytes: per((*cloudlessv1.ReplicaUsage).GetWrittenBytes),
	}
}

// complete reports whether every replica of the newest frame has a rate.
func (r *rates) complete() bool { return len(r.now) == len(r.last) }

// cells are the columns of a replica's usage: CPU, throttled, memory, network, block I/O, processes.
func (r *rates) cells(u *cloudlessv1.ReplicaUsage) []string {
	now, known := r.now[u.GetUid()]
	cells := []string{cpus(u.GetCpu()), "-", memory(u), "-", "-", fmt.Sprint(u.GetPids())}
	if known {
		cells[1] = percent(now.throttled)
		cells[4] = perSecond(now.readBytes) + " / " + perSecond(now.writtenBytes)
		if u.GetReceivedBytes()+u.GetSentBytes() > 0 { // else it is on the machine's own network
			cells[3] = perSecond(now.received) + " / " + perSecond(now.sent) + limited(u, now)
		}
	}
	return cells
}

// limited says how much of the limit of its bandwidth a replica uses, and what the limit holds back.
func limited(u *cloudlessv1.ReplicaUsage, now rate) string {
	limit := float64(u.GetBandwidthLimit())
	if limit == 0 {
		return ""
	}
	text := fmt.Sprintf(" (%s / %s of %s", percent(now.received*8/limit), percent(now.sent*8/limit), spec.FormatBandwidth(u.GetBandwidthLimit()))
	if now.delayed >= 1 {
		text += fmt.Sprintf(", %.0f delayed/s", now.delayed)
	}
	if now.dropped >= 1 {
		text += fmt.Sprintf(", %.0f dropped/s", now.dropped)
	}
	return text + ")"
}

func cpus(n float64) string { return fmt.Sprintf("%.2f", n) }

func percent(part float64) string { return fmt.Sprintf("%.0f%%", part*100) }

func memory(u *cloudlessv1.ReplicaUsage) string {
	used := humanBytes(float64(u.GetMemoryBytes()))
	if limit := u.GetMemoryLimitBytes(); limit > 0 {
		return used + " / " + humanBytes(float64(limit))
	}
	return used
}

func perSecond(bytes float64) string { return humanBytes(bytes) + "/s" }

// humanBytes is a size in its largest unit, with two or three digits.
func humanBytes(n float64) string {
	if n < 1024 {
		return fmt.Sprintf("%.0f", n)
	}
	units := []string{"Ki", "Mi", "Gi", "Ti", "Pi"}
	for i, unit := range units {
		n /= 1024
		switch {
		case n < 9.95:
			return fmt.Sprintf("%.1f%s", n, unit)
		case n < 1023.5 || i == len(units)-1:
			return fmt.Sprintf("%.0f%s", n, unit)
		}
	}
	return ""
}
