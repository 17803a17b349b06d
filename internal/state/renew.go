package state

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// RenewReplica returns a replica that differs from a stored one in its status alone, for a [Batch.Update]. All that is
// not changed is shared with the stored one, where a clone would copy it: of a replica that is most of it.
func RenewReplica(stored *v1.Replica, status *v1.ReplicaStatus) *v1.Replica {
	m := stored.GetMetadata()
	return &v1.Replica{
		ApiVersion: stored.GetApiVersion(),
		Kind:       stored.GetKind(),
		// The tables write a new version and time into it.
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
