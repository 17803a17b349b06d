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

// MarkLayout is moved with every change of a node, and by workloads that go or have other labels. The marks of
// workloads have their uids and are moved when a replica leaves its place.
const MarkLayout = "layout"

// MarkVersion is the version that a mark has, 0 if it was never moved.
func (s *Snapshot) MarkVersion(uid string) uint64 {
	return byUID[*statev1.Mark](s, KindMark, uid).GetMetadata().GetVersion()
}

// mark moves the mark that a change is about. A workload that goes takes its own along: that it has gone has moved the
// layout's.
func (w *work) mark(kind Kind, from, to Object, now *timestamppb.Timestamp) {
	marked := tables[ordinals[kind]].marked
	if marked == nil {
		return
	}
	uid := marked(from, to)
	if uid == MarkLayout || uid != "" && w.get(KindWorkload, uid) != nil {
		w.moveMark(uid, now)
	}
	if kind == KindWorkload && to == nil {
		if old := w.get(KindMark, from.GetMetadata().GetUid()); old != nil {
			w.note(KindMark, old, nil)
		}
	}
}

func (w *work) moveMark(uid string, now *timestamppb.Timestamp) {
	old := w.get(KindMark, uid)
	moved := &statev1.Mark{Metadata: &v1.Metadata{Uid: uid, Version: w.index, CreateTime: now, UpdateTime: now}}
	if old != nil {
		moved.Metadata.CreateTime = old.GetMetadata().GetCreateTime()
	}
	w.note(KindMark, old, moved)
}

func markedByWorkload(from, to Object) string {
	if from == nil || to != nil && maps.Equal(from.GetMetadata().GetLabels(), to.GetMetadata().GetLabels()) {
		return ""
	}
	return MarkLayout
}

// markedByReplica does not care for those that come: whoever places them knows.
func markedByReplica(from, to Object) string {
	before, _ := from.(*v1.Replica)
	after, _ := to.(*v1.Replica)
	if takesPlace(before) && (!takesPlace(after) || before.GetSpec().GetNodeUid() != after.GetSpec().GetNodeUid()) {
		return before.GetSpec().GetWorkloadUid()
	}
	return ""
}

// takesPlace reports whether a replica has a place and has not ended.
func takesPlace(r *v1.Replica) bool {
	return r.GetSpec().GetNodeUid() != "" && r.GetStatus().GetEndTime() == nil
}
