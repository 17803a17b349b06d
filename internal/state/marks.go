package state

import (
	"maps"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A mark is for those who rely on much that they do not change, as a rule about where others are relies on all nodes
// and on all replicas of a workload. The tables move it with every change that may matter, so its version tells
// whether there was one: checking that is one check instead of thousands.

// MarkLayout is moved with every change of a node, by workloads that get other labels while something of them is on a
// node, and by those that go of which something has ended. The marks of workloads have their uids and are moved when a
// replica leaves its place.
const MarkLayout = "layout"

// MarkVersion is the version that a mark has, 0 if it was never moved.
func (s *Snapshot) MarkVersion(uid string) uint64 {
	return s.Mark(uid).GetMetadata().GetVersion()
}

// mark moves the mark that a change is about.
func (w *work) mark(kind Kind, from, to Object, now *timestamppb.Timestamp) {
	switch kind {
	case KindNode:
		w.moveMark(MarkLayout, now)
	case KindWorkload:
		if from != nil {
			w.markWorkload(from, to, now)
		}
	case KindReplica:
		before, _ := from.(*v1.Replica)
		after, _ := to.(*v1.Replica)
		// Whoever places one knows that it comes.
		if takesPlace(before) && (!takesPlace(after) || before.GetSpec().GetNodeUid() != after.GetSpec().GetNodeUid()) {
			if of := before.GetSpec().GetWorkloadUid(); w.get(KindWorkload, of) != nil {
				w.moveMark(of, now)
			}
		}
	}
}

// markWorkload moves the layout's mark for a workload. One that goes takes its own along.
func (w *work) markWorkload(from, to Object, now *timestamppb.Timestamp) {
	uid := from.GetMetadata().GetUid()
	if to != nil {
		if !maps.Equal(from.GetMetadata().GetLabels(), to.GetMetadata().GetLabels()) && w.isSomewhere(uid) {
			w.moveMark(MarkLayout, now)
		}
		return
	}
	if own := w.get(KindMark, uid); own != nil {
		w.note(KindMark, own, nil)
		w.moveMark(MarkLayout, now)
	}
}

func (w *work) moveMark(uid string, now *timestamppb.Timestamp) {
	old := w.get(KindMark, uid)
	if old != nil && old.GetMetadata().GetVersion() == w.index {
		return
	}
	moved := &statev1.Mark{Metadata: &v1.Metadata{Uid: uid, Version: w.index, CreateTime: now, UpdateTime: now}}
	if old != nil {
		moved.Metadata.CreateTime = old.GetMetadata().GetCreateTime()
	}
	w.note(KindMark, old, moved)
}

// isSomewhere reports whether a replica of a workload takes a place.
func (w *work) isSomewhere(workloadUID string) (somewhere bool) {
	replicas := ordinals[KindReplica]
	w.rows[replicas].tree(replicas, indexWorkload).prefixed(string(appendID(nil, workloadUID)), func(o Object) bool {
		somewhere = takesPlace(o.(*v1.Replica))
		return !somewhere
	})
	return somewhere
}

// takesPlace reports whether a replica has a place and has not ended: only then has it an end, whoever reports it.
func takesPlace(r *v1.Replica) bool {
	return r.GetSpec().GetNodeUid() != "" && r.GetStatus().GetEndTime() == nil
}
