package rollout

import (
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Revise returns the next revision of a workload, and makes it the current one in the workload's status. The caller adds
// the image.
func Revise(w *v1.Workload, uid string) *v1.Revision {
	// A rollback may have returned to a lower number.
	w.Status.LastRevision = max(w.GetStatus().GetLastRevision(), w.GetStatus().GetRevision()) + 1
	w.Status.Revision, w.Status.RevisionUid = w.GetStatus().GetLastRevision(), uid
	return &v1.Revision{
		ApiVersion: w.GetApiVersion(),
		Kind:       "Revision",
		Metadata: &v1.Metadata{
			// The name is unique even when a workload's name is used again after a deletion.
			Uid: uid, Name: fmt.Sprintf("%s-%d", w.GetMetadata().GetUid(), w.GetStatus().GetRevision()), Namespace: w.GetMetadata().GetNamespace(),
		},
		Spec: &v1.RevisionSpec{
			WorkloadUid: w.GetMetadata().GetUid(),
			Number:      w.GetStatus().GetRevision(),
			Workload:    w.GetSpec(), // shared, since stored objects never change
		},
	}
}
