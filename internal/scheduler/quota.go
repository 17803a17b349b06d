package scheduler

import (
	"fmt"
	"math"
	"strings"
)

// Quota is the most that a namespace may have promised to it. An amount of 0 is
// no limit; NoneAtAll is none at all.
type Quota struct {
	Resources Resources
	Replicas  int64
}

// NoneAtAll is the quota of what may not be used.
const NoneAtAll = -1

// namespace is what a namespace has and may have.
type namespace struct {
	name     string
	quota    Quota
	used     Resources
	replicas int64
}

func (v *View) space(name string) *namespace {
	s := v.namespaces[name]
	if s == nil {
		s = &namespace{name: name}
		v.namespaces[name] = s
	}
	return s
}

// SetQuota sets what a namespace may have; a zero Quota is no limit.
func (v *View) SetQuota(name string, q Quota) {
	s := v.space(name)
	s.quota = q
	v.waits.noteQuota(s)
}

func (n *namespace) take(r *Resources) {
	n.used = n.used.plus(*r)
	n.replicas++
}

func (n *namespace) give(r *Resources) {
	n.used = n.used.minus(*r)
	n.replicas--
}

// room is for how many replicas of the needs the quota has room.
func (n *namespace) room(need *Resources) int {
	room := int64(math.MaxInt32)
	for i, limit := range n.quota.Resources {
		if limit != 0 && need[i] > 0 {
			room = min(room, (max(0, limit)-n.used[i])/need[i])
		}
	}
	if limit := n.quota.Replicas; limit != 0 {
		room = min(room, max(0, limit)-n.replicas)
	}
	return int(max(0, room))
}

// explain says what of the quota is used up, empty if there is room.
func (n *namespace) explain(need *Resources) string {
	var reasons []string
	for i, limit := range n.quota.Resources {
		limit, of := max(0, limit), Resource(i)
		if n.quota.Resources[i] != 0 && need[i] > 0 && n.used[i]+need[i] > limit {
			reasons = append(reasons, fmt.Sprintf("needs %s %s, %s of %s left",
				of.format(need[i]), of, of.format(max(0, limit-n.used[i])), of.format(limit)))
		}
	}
	if limit := n.quota.Replicas; limit != 0 && n.replicas+1 > max(0, limit) {
		reasons = append(reasons, fmt.Sprintf("has %d of at most %d replicas", n.replicas, max(0, limit)))
	}
	if reasons == nil {
		return ""
	}
	return fmt.Sprintf("the quota of namespace %s is used up: %s", n.name, strings.Join(reasons, ", "))
}
