package replicas

import (
	"cmp"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

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
func (c *cluster) addQuotas(snap *state.Snapshot) {
	for n := range snap.Namespaces("") {
		c.view.SetQuota(n.GetMetadata().GetName(), quotaOf(n))
	}
}

// followNamespace updates the quota of a namespace. It reads the snapshot, because the
// state may have got there in any way.
func (c *cluster) followNamespace(snap *state.Snapshot, change state.Change) {
	about := change.New
	if about == nil {
		about = change.Old
	}
	name := about.GetMetadata().GetName()
	c.view.SetQuota(name, quotaOf(snap.NamespaceByName(name)))
}

// quotaChanged reports whether a change of a namespace may let something fit.
func quotaChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Namespace)
	after, _ := change.New.(*v1.Namespace)
	return !proto.Equal(before.GetSpec().GetQuota(), after.GetSpec().GetQuota())
}

// capacityChanged reports whether a change of the cluster's configuration may change what
// nodes can promise.
func capacityChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Cluster)
	after, _ := change.New.(*v1.Cluster)
	said := func(c *v1.Cluster) *v1.ClusterSpec {
		s := &v1.ClusterSpec{Overcommit: c.GetSpec().GetOvercommit(), Reserved: c.GetSpec().GetReserved()}
		for _, class := range c.GetSpec().GetNodeClasses() {
			s.NodeClasses = append(s.NodeClasses, &v1.NodeClass{
				Labels: class.GetLabels(), Overcommit: class.GetOvercommit(), Reserved: class.GetReserved(),
			})
		}
		return s
	}
	return !proto.Equal(said(before), said(after))
}

// holdQuota makes the commit of this tick's placements depend on an unchanged quota.
func (t *tick) holdQuota(namespace string) {
	if t.held[namespace] {
		return
	}
	t.held[namespace] = true
	if n := t.snap.NamespaceByName(namespace); n.GetSpec().GetQuota() != nil {
		// If the quota is lowered meanwhile, the tick is repeated.
		t.batch.Check(state.KindNamespace, n.GetMetadata().GetUid(), n.GetMetadata().GetVersion())
	}
}

// counts reports whether a replica counts against its quota, by the same rules as the view.
// Replicas for which room is being made count, too.
func counts(snap *state.Snapshot, r *v1.Replica) bool {
	n := snap.Node(cmp.Or(r.GetSpec().GetNodeUid(), promised(snap, r)))
	return n != nil && n.GetStatus().GetState() != spec.NodeOffline && !spec.Ended(r.GetStatus().GetPhase())
}

// usage sums up a namespace's usage. It equals that of a view of the whole cluster, at the
// cost of one namespace.
func (c *cluster) usage(snap *state.Snapshot, namespace string) (used scheduler.Usage, pending int64) {
	for r := range snap.Replicas(namespace, "") {
		if r.GetSpec().GetNodeUid() == "" && !spec.Ended(r.GetStatus().GetPhase()) {
			pending++
		}
		if !counts(snap, r) {
			continue
		}
		if revision, err := c.revision(snap, r.GetSpec().GetRevisionUid()); err == nil {
			used.Take(&revision.Needs.Resources)
		}
	}
	return used, pending
}

// Used is the usage of a namespace, and how far it exceeds the given quota.
func (Placement) Used(snap *state.Snapshot, n *v1.Namespace) *v1.NamespaceStatus {
	namespace, quota := n.GetMetadata().GetName(), quotaOf(n)
	used, pending := emptyCluster(snap).usage(snap, namespace)
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
func (Placement) ShortOfQuota(snap *state.Snapshot, workloadUID string) string {
	w := snap.Workload(workloadUID)
	namespace := w.GetMetadata().GetNamespace()
	quota := quotaOf(snap.NamespaceByName(namespace))
	if quota == (scheduler.Quota{}) {
		return ""
	}
	c := emptyCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return ""
	}
	used, _ := c.usage(snap, namespace)
	pending, outdated := missing(snap, w)
	switch {
	case pending > 0:
	case outdated == nil:
		return ""
	case counts(snap, outdated):
		if old, err := c.revision(snap, outdated.GetSpec().GetRevisionUid()); err == nil {
			used.Give(&old.Needs.Resources)
		}
	}
	return quota.Short(namespace, &used, &revision.Needs.Resources)
}

// quotaHelp names the command that would raise the quota far enough for all pending
// replicas, if the quota is the problem. It ignores the replicas in without.
func (x *explainer) quotaHelp(short string, without []string) []string {
	if short == "" {
		return nil
	}
	namespace, need := x.workload.GetMetadata().GetNamespace(), &x.revision.Needs.Resources
	quota, used := quotaOf(x.snap.NamespaceByName(namespace)), x.cluster.view.Used(namespace)
	for _, uid := range without {
		r := x.snap.Replica(uid)
		if old, err := x.cluster.revision(x.snap, r.GetSpec().GetRevisionUid()); err == nil && counts(x.snap, r) {
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
