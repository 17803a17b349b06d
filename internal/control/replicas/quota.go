package replicas

import (
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// quotaChanged reports whether a change of a namespace may let something fit.
func quotaChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Namespace)
	after, _ := change.New.(*v1.Namespace)
	return !proto.Equal(before.GetSpec().GetQuota(), after.GetSpec().GetQuota()) ||
		!proto.Equal(before.GetSpec().GetDefaultRequests(), after.GetSpec().GetDefaultRequests())
}

// capacityChanged reports whether a change of the cluster's configuration may change what
// nodes can promise.
func capacityChanged(change state.Change) bool {
	before, _ := change.Old.(*v1.Cluster)
	after, _ := change.New.(*v1.Cluster)
	specOf := func(c *v1.Cluster) *v1.ClusterSpec {
		s := &v1.ClusterSpec{Overcommit: c.GetSpec().GetOvercommit(), Reserved: c.GetSpec().GetReserved()}
		for _, class := range c.GetSpec().GetNodeClasses() {
			s.NodeClasses = append(s.NodeClasses, &v1.NodeClass{
				Labels: class.GetLabels(), Overcommit: class.GetOvercommit(), Reserved: class.GetReserved(),
			})
		}
		return s
	}
	return !proto.Equal(specOf(before), specOf(after))
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
