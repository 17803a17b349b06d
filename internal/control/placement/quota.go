package placement

import (
	"cmp"
	"fmt"
	"strconv"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// quotaOf reads the quota of a namespace. A namespace without an object, or with an
// unreadable quota, is unlimited: quotas are validated when they are set.
func quotaOf(n *v1.Namespace) scheduler.Quota {
	quota, err := scheduler.QuotaFromProto(n.GetSpec().GetQuota())
	if err != nil {
		return scheduler.Quota{}
	}
	return quota
}

// addQuotas adds the quotas of all namespaces to the view.
func (c *Model) addQuotas(snap *state.Snapshot) {
	for n := range snap.Namespaces("") {
		c.View.SetQuota(n.GetMetadata().GetName(), quotaOf(n))
	}
}

// followNamespace updates the quota of a namespace. It reads the snapshot, because the
// state may have got there in any way.
func (c *Model) followNamespace(snap *state.Snapshot, change state.Change) {
	about := change.New
	if about == nil {
		about = change.Old
	}
	name := about.GetMetadata().GetName()
	c.View.SetQuota(name, quotaOf(snap.NamespaceByName(name)))
	before, _ := change.Old.(*v1.Namespace)
	if !sameDefaults(before, snap.NamespaceByName(name)) {
		c.reread(snap, name)
	}
}

// Counts reports whether a replica counts against its quota, by the same rules as the view.
// Replicas for which room is being made count, too.
func Counts(snap *state.Snapshot, r *v1.Replica) bool {
	n := snap.Node(cmp.Or(r.GetSpec().GetNodeUid(), Promised(snap, r)))
	return n != nil && n.GetStatus().GetState() != spec.NodeOffline && !spec.Ended(r.GetStatus().GetPhase())
}

// Usage sums up a namespace's usage. It equals that of a view of the whole cluster, at the
// cost of one namespace.
func (c *Model) Usage(snap *state.Snapshot, namespace string) (used scheduler.Usage, pending int64) {
	for r := range snap.Replicas(namespace, "") {
		if r.GetSpec().GetNodeUid() == "" && !spec.Ended(r.GetStatus().GetPhase()) {
			pending++
		}
		if !Counts(snap, r) {
			continue
		}
		if revision, err := c.Revision(snap, r.GetSpec().GetRevisionUid()); err == nil {
			used.Take(&revision.Needs.Resources)
		}
	}
	return used, pending
}

// Used is the usage of a namespace, and how far it exceeds the given quota.
func (Queries) Used(snap *state.Snapshot, n *v1.Namespace) *v1.NamespaceStatus {
	namespace, quota := n.GetMetadata().GetName(), quotaOf(n)
	used, pending := emptyModel(snap).Usage(snap, namespace)
	status := &v1.NamespaceStatus{
		Cpu:       spec.FormatCPU(used.Resources[scheduler.CPU]),
		Memory:    spec.FormatBytes(used.Resources[scheduler.Memory]),
		Disk:      spec.FormatBytes(used.Resources[scheduler.Disk]),
		Bandwidth: spec.FormatBandwidth(used.Resources[scheduler.Bandwidth]),
		Gpu:       used.Resources[scheduler.GPU],
		Replicas:  used.Replicas,
		Pending:   pending,
		Over:      quota.Over(&used),
	}
	for range snap.Workloads(namespace, "") {
		status.Workloads++
	}
	return status
}

// ShortOfQuota says which part of the namespace's quota is too small for one more pending
// replica of a workload, or else for the successor of its oldest outdated one. It is empty
// if the quota suffices.
func (Queries) ShortOfQuota(snap *state.Snapshot, workloadUID string) string {
	w := snap.Workload(workloadUID)
	namespace := w.GetMetadata().GetNamespace()
	quota := quotaOf(snap.NamespaceByName(namespace))
	if quota == (scheduler.Quota{}) {
		return ""
	}
	c := emptyModel(snap)
	revision, err := c.Revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return ""
	}
	used, _ := c.Usage(snap, namespace)
	pending, outdated := missing(snap, w)
	switch {
	case pending > 0:
	case outdated == nil:
		return ""
	case Counts(snap, outdated) && mayMakeRoom(snap, w):
		if old, err := c.Revision(snap, outdated.GetSpec().GetRevisionUid()); err == nil {
			used.Give(&old.Needs.Resources)
		}
	}
	return quota.Short(namespace, &used, &revision.Needs.Resources)
}

// ExceedsQuota says why not even one replica of a workload fits into the quota of its namespace,
// however little others use. It is empty if one does.
func (Queries) ExceedsQuota(snap *state.Snapshot, workloadUID string) string {
	w := snap.Workload(workloadUID)
	quota := quotaOf(snap.NamespaceByName(w.GetMetadata().GetNamespace()))
	revision, err := emptyModel(snap).Revision(snap, w.GetStatus().GetRevisionUid())
	if quota == (scheduler.Quota{}) || err != nil {
		return ""
	}
	return quota.Lacks(&scheduler.Usage{}, &revision.Needs.Resources)
}

// quotaHelp names the command that would raise the quota far enough for all pending
// replicas, if the quota is the problem. It ignores the replicas in without.
func (x *explainer) quotaHelp(short string, without []string) []string {
	if short == "" {
		return nil
	}
	namespace, need := x.workload.GetMetadata().GetNamespace(), &x.revision.Needs.Resources
	quota, used := quotaOf(x.snap.NamespaceByName(namespace)), x.cluster.View.Used(namespace)
	for _, uid := range without {
		r := x.snap.Replica(uid)
		if old, err := x.cluster.Revision(x.snap, r.GetSpec().GetRevisionUid()); err == nil && Counts(x.snap, r) {
			used.Give(&old.Needs.Resources)
		}
	}
	more := int64(max(1, len(x.outlook.Placements)+x.outlook.unplaced))
	command := "cloudless namespace set " + namespace
	for _, flag := range []struct {
		name   string
		of     scheduler.Resource
		format func(int64) string
	}{
		{"cpu", scheduler.CPU, spec.FormatCPU},
		{"memory", scheduler.Memory, spec.FormatBytes},
		{"disk", scheduler.Disk, spec.FormatBytes},
		{"bandwidth", scheduler.Bandwidth, spec.FormatBandwidth},
		{"gpu", scheduler.GPU, func(n int64) string { return strconv.FormatInt(n, 10) }},
	} {
		limit, wanted := quota.Resources[flag.of], used.Resources[flag.of]+more*need[flag.of]
		if limit != 0 && need[flag.of] > 0 && wanted > max(0, limit) {
			command += fmt.Sprintf(" --%s %s", flag.name, flag.format(wanted))
		}
	}
	if quota.Replicas != 0 && used.Replicas+more > max(0, quota.Replicas) {
		command += fmt.Sprintf(" --replicas %d", used.Replicas+more)
	}
	return []string{fmt.Sprintf("a higher quota of namespace %s: %s", namespace, command)}
}
