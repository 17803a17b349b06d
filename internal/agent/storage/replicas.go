package storage

import (
	"fmt"
	"slices"

	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/spec"
)

// Replica is what counts about a replica that may write to its own layer. All sizes are in bytes.
type Replica struct {
	UID      string
	Priority int32
	// Used is what it has written, Request what it has asked for, and Limit what it may write; 0 for no limit.
	Used, Request, Limit int64
	// Alone is whether its workload wants no other replica.
	Alone bool
}

// DefaultLimit is what a replica may write if neither it nor the cluster says anything else.
const DefaultLimit = 10 << 30

// The disk is nearly full when less than this share is left, but at most so many bytes.
const (
	reserveShare = 20
	reserveMost  = 1 << 30
)

// nearlyFull reports whether what is left should be kept for the system.
func (d Disk) nearlyFull() bool {
	return d.Total > 0 && d.Free() < min(d.Total/reserveShare, reserveMost)
}

// tight reports whether the disk could be nearly full soon.
func (d Disk) tight() bool { return d.Total > 0 && d.Free() < 3*min(d.Total/reserveShare, reserveMost) }

// Victim returns the replica to evict, and why: one that has written more than it may, or, if the disk is nearly full, the
// one that is least entitled to what it has written.
func Victim(replicas []Replica, disk Disk) (uid, reason string) {
	if i := slices.IndexFunc(replicas, func(r Replica) bool { return r.Limit > 0 && r.Used > r.Limit }); i >= 0 {
		r := replicas[i]
		return r.UID, fmt.Sprintf("Evicted: it has written %s to its own layer, and its limit is %s. Write to a volume, or set resources.limits.disk.",
			spec.HumanBytes(r.Used), spec.HumanBytes(r.Limit))
	}
	if !disk.nearlyFull() {
		return "", ""
	}
	candidates := make([]pressure.Replica, len(replicas))
	for i, r := range replicas {
		candidates[i] = pressure.Replica{UID: r.UID, Priority: r.Priority, Used: r.Used, Request: r.Request, Alone: r.Alone}
	}
	victim, ok := pressure.Victim(candidates)
	if !ok {
		return "", ""
	}
	asked := "no request"
	if victim.Request > 0 {
		asked = "a request of " + spec.HumanBytes(victim.Request)
	}
	return victim.UID, fmt.Sprintf("Evicted: the disk of the machine was nearly full (%s left), and it had written %s to its own layer with %s.",
		spec.HumanBytes(disk.Free()), spec.HumanBytes(victim.Used), asked)
}
