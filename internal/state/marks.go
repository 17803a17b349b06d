package state

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// A transaction may rely on thousands of objects that it does not change. For example, an affinity rule relies on all
// nodes and on all replicas of a workload. A mark replaces thousands of version checks by one: every change that may
// matter advances its version.

// MarkLayout is the uid of the mark that advances when a node changes, when the labels of a workload with placed
// replicas change, and when a workload is deleted that had a mark of its own. The mark of a workload has the workload's
// uid. It advances when a replica ends, moves or is deleted.
const MarkLayout = "layout"

// MarkRoutes is the uid of the mark that advances when a route gets a host, a port or a certificate, and MarkPublished that of
// the mark that advances when a workload publishes a port. A route relies on all routes and on all published ports, and a
// published port relies on all routes. There is no MarkPublished before the first route: an older release, which knows no
// routes, does not move it.
const (
	MarkRoutes    = "routes"
	MarkPublished = "published"
)

// MarkVersion returns the version of a mark, 0 if it has never advanced.
func (s *Snapshot) MarkVersion(uid string) uint64 {
	return s.Mark(uid).GetMetadata().GetVersion()
}

// advanceMarks advances the marks that a change affects.
func (b *builder) advanceMarks(kind Kind, from, to Object, now *timestamppb.Timestamp) {
	switch kind {
	case KindNode:
		b.advanceMark(MarkLayout, now)
	case KindRoute:
		before, _ := from.(*v1.Route)
		if after, _ := to.(*v1.Route); after != nil && !sameClaim(before, after) {
			b.advanceMark(MarkRoutes, now)
		}
	case KindWorkload:
		before, _ := from.(*v1.Workload)
		if after, _ := to.(*v1.Workload); b.get(KindMark, MarkRoutes) != nil && publishesAnew(before, after) {
			b.advanceMark(MarkPublished, now)
		}
		if from != nil {
			b.advanceMarksForWorkload(from, to, now)
		}
	case KindReplica:
		before, _ := from.(*v1.Replica)
		after, _ := to.(*v1.Replica)
		// A new placement advances nothing: the placer knows about it.
		if isPlaced(before) && (!isPlaced(after) || before.GetSpec().GetNodeUid() != after.GetSpec().GetNodeUid()) {
			if workload := before.GetSpec().GetWorkloadUid(); b.get(KindWorkload, workload) != nil {
				b.advanceMark(workload, now)
			}
		}
	}
}

// advanceMarksForWorkload advances the layout's mark for a changed workload. A deleted workload loses its own mark.
func (b *builder) advanceMarksForWorkload(from, to Object, now *timestamppb.Timestamp) {
	uid := from.GetMetadata().GetUid()
	if to != nil {
		if !maps.Equal(from.GetMetadata().GetLabels(), to.GetMetadata().GetLabels()) && b.hasPlacedReplica(uid) {
			b.advanceMark(MarkLayout, now)
		}
		return
	}
	if own := b.get(KindMark, uid); own != nil {
		b.record(KindMark, own, nil)
		b.advanceMark(MarkLayout, now)
	}
}

func (b *builder) advanceMark(uid string, now *timestamppb.Timestamp) {
	old := b.get(KindMark, uid)
	if old != nil && old.GetMetadata().GetVersion() == b.index {
		return
	}
	advanced := &statev1.Mark{Metadata: &v1.Metadata{Uid: uid, Version: b.index, CreateTime: now, UpdateTime: now}}
	if old != nil {
		advanced.Metadata.CreateTime = old.GetMetadata().GetCreateTime()
	}
	b.record(KindMark, old, advanced)
}

// hasPlacedReplica reports whether any replica of a workload is placed.
func (b *builder) hasPlacedReplica(workloadUID string) (placed bool) {
	replicas := ordinals[KindReplica]
	b.rows[replicas].tree(replicas, indexWorkload).withPrefix(string(appendID(nil, workloadUID)), func(o Object) bool {
		placed = isPlaced(o.(*v1.Replica))
		return !placed
	})
	return placed
}

// sameClaim reports whether a route claims what it claimed before.
func sameClaim(before, after *v1.Route) bool {
	s, o := before.GetSpec(), after.GetSpec()
	return before != nil && s.GetHost() == o.GetHost() && s.GetPath() == o.GetPath() && s.GetTcp() == o.GetTcp() && s.GetUdp() == o.GetUdp() &&
		s.GetTls().GetMode() == o.GetTls().GetMode() && s.GetTls().GetCertificate() == o.GetTls().GetCertificate()
}

// publishesAnew reports whether a workload publishes ports that it did not publish before.
func publishesAnew(before, after *v1.Workload) bool {
	publishes := func(p *v1.Port) bool { return p.GetPublish() != 0 }
	return slices.ContainsFunc(after.GetSpec().GetPorts(), publishes) &&
		!slices.EqualFunc(before.GetSpec().GetPorts(), after.GetSpec().GetPorts(), func(a, b *v1.Port) bool {
			return a.GetPublish() == b.GetPublish() && a.GetProtocol() == b.GetProtocol() && a.GetPublishMode() == b.GetPublishMode()
		})
}

// isPlaced reports whether a replica has a node and has not ended.
func isPlaced(r *v1.Replica) bool {
	return r.GetSpec().GetNodeUid() != "" && r.GetStatus().GetEndTime() == nil
}
