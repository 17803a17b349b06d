package scheduler

import (
	"fmt"
	"math"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Quota is the most that may be promised to a namespace. An amount of 0 means no limit;
// NoneAtAll means nothing.
type Quota struct {
	Resources Resources
	Replicas  int64
}

// NoneAtAll is the quota of what may not be used.
const NoneAtAll = -1

// Usage is what is promised to the replicas of a namespace that have a node which is not
// offline.
type Usage struct {
	Resources Resources
	Replicas  int64
}

// Take adds one replica.
func (u *Usage) Take(r *Resources) {
	u.Resources = u.Resources.plus(*r)
	u.Replicas++
}

// Give removes one replica.
func (u *Usage) Give(r *Resources) {
	u.Resources = u.Resources.minus(*r)
	u.Replicas--
}

// QuotaFromProto reads a quota, in which 0 means nothing and unset means unlimited.
func QuotaFromProto(q *v1.Quota) (Quota, error) {
	read, err := amounts(&v1.ResourceAmounts{Cpu: q.GetCpu(), Memory: q.GetMemory(), Disk: q.GetDisk(), Bandwidth: q.GetBandwidth()})
	if err != nil {
		return Quota{}, fmt.Errorf("read the quota: %w", err)
	}
	for i, text := range map[Resource]string{CPU: q.GetCpu(), Memory: q.GetMemory(), Disk: q.GetDisk(), Bandwidth: q.GetBandwidth()} {
		if text != "" && read[i] == 0 {
			read[i] = NoneAtAll
		}
	}
	limit := func(n *int64) int64 {
		switch {
		case n == nil:
			return 0
		case *n <= 0:
			return NoneAtAll
		}
		return *n
	}
	quota := Quota{Resources: read}
	var replicas, gpu *int64
	if q != nil {
		replicas, gpu = q.Replicas, q.Gpu
	}
	quota.Replicas, quota.Resources[GPU] = limit(replicas), limit(gpu)
	return quota, nil
}

// Room is how many more replicas of the needs fit.
func (q *Quota) Room(used *Usage, need *Resources) int {
	room := int64(math.MaxInt32)
	for i, limit := range q.Resources {
		if limit != 0 && need[i] > 0 {
			room = min(room, (max(0, limit)-used.Resources[i])/need[i])
		}
	}
	if q.Replicas != 0 {
		room = min(room, max(0, q.Replicas)-used.Replicas)
	}
	return int(max(0, room))
}

// Short says which part of the quota is too small for one more replica. It is empty if
// there is room.
func (q *Quota) Short(namespace string, used *Usage, need *Resources) string {
	lacks := q.Lacks(used, need)
	if lacks == "" {
		return ""
	}
	return fmt.Sprintf("the quota of namespace %s is used up: %s", namespace, lacks)
}

// Lacks says how much one more replica needs of the parts of the quota that are too small for
// it. It is empty if there is room.
func (q *Quota) Lacks(used *Usage, need *Resources) string {
	var reasons []string
	for i, limit := range q.Resources {
		most, of := max(0, limit), Resource(i)
		if limit != 0 && need[i] > 0 && used.Resources[i]+need[i] > most {
			reasons = append(reasons, fmt.Sprintf("needs %s %s, %s of %s left",
				of.format(need[i]), of, of.format(max(0, most-used.Resources[i])), of.format(most)))
		}
	}
	if q.Replicas != 0 && used.Replicas+1 > max(0, q.Replicas) {
		reasons = append(reasons, fmt.Sprintf("has %d of at most %s", used.Replicas, spec.Count(int(max(0, q.Replicas)), "replica")))
	}
	return strings.Join(reasons, ", ")
}

// Over says what is used beyond the quota, which happens after it was lowered.
func (q *Quota) Over(used *Usage) (all []string) {
	for i, limit := range q.Resources {
		if of := Resource(i); limit != 0 && used.Resources[i] > max(0, limit) {
			all = append(all, fmt.Sprintf("%s %s of %s", of.format(used.Resources[i]), of, of.format(max(0, limit))))
		}
	}
	if q.Replicas != 0 && used.Replicas > max(0, q.Replicas) {
		all = append(all, fmt.Sprintf("%s of %d", spec.Count(int(used.Replicas), "replica"), max(0, q.Replicas)))
	}
	return all
}

// namespace is the usage and quota of a namespace.
type namespace struct {
	name  string
	quota Quota
	used  Usage
}

func (v *View) space(name string) *namespace {
	s := v.namespaces[name]
	if s == nil {
		s = &namespace{name: name}
		v.namespaces[name] = s
	}
	return s
}

// SetQuota sets the quota of a namespace; a zero Quota means no limit.
func (v *View) SetQuota(name string, q Quota) {
	s := v.space(name)
	s.quota = q
	v.waits.noteQuota(s)
}

// Used is the usage of a namespace.
func (v *View) Used(name string) Usage { return v.space(name).used }

// room is how many replicas of the needs fit into the quota.
func (n *namespace) room(need *Resources) int { return n.quota.Room(&n.used, need) }

// explain says which part of the quota is used up. It is empty if there is room.
func (n *namespace) explain(need *Resources) string { return n.quota.Short(n.name, &n.used, need) }
