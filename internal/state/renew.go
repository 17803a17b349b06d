package state

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// RenewReplica returns a copy of a stored replica with a new status, for a [Batch.Update]. It shares everything else with
// the stored replica, which saves most of the cost of a clone.
func RenewReplica(stored *v1.Replica, status *v1.ReplicaStatus) *v1.Replica {
	m := stored.GetMetadata()
	return &v1.Replica{
		ApiVersion: stored.GetApiVersion(),
		Kind:       stored.GetKind(),
		// Not shared: applying the update sets its version and time.
		Metadata: &v1.Metadata{
			Uid:         m.GetUid(),
			Name:        m.GetName(),
			Namespace:   m.GetNamespace(),
			Labels:      m.GetLabels(),
			Annotations: m.GetAnnotations(),
			Version:     m.GetVersion(),
			CreateTime:  m.GetCreateTime(),
			UpdateTime:  m.GetUpdateTime(),
			DeleteTime:  m.GetDeleteTime(),
		},
		Spec:   stored.GetSpec(),
		Status: status,
	}
}
