package names

import (
	"maps"
	"slices"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

func (m *model) createUpload(create *objectv1.CreateUpload) *objectv1.Result {
	b, upload := m.open(create.GetTarget()), create.GetUpload()
	if b == nil {
		return refused(RefusedNoBucket)
	}
	k := modelUpload{upload.GetKey(), string(upload.GetId())}
	if b.uploads[k] == nil {
		b.uploads[k] = &modelParts{upload: upload, parts: map[uint32]*objectv1.Part{}}
	}
	return &objectv1.Result{}
}

func (m *model) putPart(put *objectv1.PutPart) *objectv1.Result {
	b, part := m.open(put.GetTarget()), put.GetPart()
	if b == nil {
		return refused(RefusedNoBucket)
	}
	upload := b.uploads[modelUpload{put.GetKey(), string(put.GetUpload())}]
	if upload == nil {
		return refused(RefusedNoUpload)
	}
	old := upload.parts[part.GetNumber()]
	if part.GetSegment() != nil && string(old.GetSegment().GetList()) == string(part.GetSegment().GetList()) {
		return &objectv1.Result{}
	}
	before := maps.Clone(m.chunks)
	reason := ""
	switch {
	case !m.refer(put.GetTarget(), part.GetBlocks(), put.GetChunks(), put.GetEpoch()):
		reason = RefusedEpoch
	case !m.isStaged(segmentsOf(part)):
		reason = RefusedStale
	case !m.fits(put.GetTarget(), part.GetSize()-old.GetSize()):
		reason = RefusedQuota
	}
	if reason != "" {
		m.chunks = before
		return refused(reason)
	}
	m.adopt(segmentsOf(part))
	m.giveUp(segmentsOf(old))
	upload.parts[part.GetNumber()] = part
	return &objectv1.Result{}
}

func (m *model) complete(index uint64, complete *objectv1.CompleteUpload) *objectv1.Result {
	b, key, v := m.open(complete.GetTarget()), complete.GetKey(), complete.GetVersion()
	if b == nil {
		return refused(RefusedNoBucket)
	}
	if done := b.find(key, string(v.GetId())); done != nil {
		return &objectv1.Result{Version: done}
	}
	k := modelUpload{key, string(complete.GetUpload())}
	upload := b.uploads[k]
	if upload == nil {
		return refused(RefusedNoUpload)
	}
	last := uint32(0)
	for _, want := range complete.GetParts() {
		part := upload.parts[want.GetNumber()]
		if part == nil || part.GetEtag() != want.GetEtag() || want.GetNumber() <= last {
			return refused(RefusedBadPart)
		}
		last = want.GetNumber()
	}
	if last == 0 {
		return refused(RefusedBadPart)
	}
	for _, want := range complete.GetParts() {
		if part := upload.parts[want.GetNumber()]; part.GetNumber() != last && part.GetSize() < complete.GetLeast() {
			return refused(RefusedSmallPart)
		}
	}
	if reason := b.meets(key, complete.GetCondition()); reason != "" {
		return refused(reason)
	}
	for _, want := range complete.GetParts() {
		part := upload.parts[want.GetNumber()]
		v.Segments = append(v.GetSegments(), m.segment(upload, part))
		v.Size += part.GetSize()
		delete(upload.parts, want.GetNumber())
	}
	m.drop(upload)
	delete(b.uploads, k)
	return m.push(b, index, complete.GetTarget(), key, v)
}

// segment moves the blocks of a small part to a list.
func (m *model) segment(upload *modelParts, part *objectv1.Part) *objectv1.Segment {
	segment := &objectv1.Segment{Size: part.GetSize(), Part: part.GetNumber()}
	if part.GetSegment() != nil {
		segment.List, segment.Lists = part.GetSegment().GetList(), part.GetSegment().GetLists()
		return segment
	}
	segment.List, segment.Lists = m.newList(upload.upload.GetId(), part.GetNumber()), 1
	m.lists[modelList{string(segment.GetList()), 0}] = part.GetBlocks()
	return segment
}

func (m *model) drop(upload *modelParts) {
	for _, number := range slices.Sorted(maps.Keys(upload.parts)) {
		m.giveUp([]*objectv1.Segment{m.segment(upload, upload.parts[number])})
	}
}

func (m *model) abort(now int64, abort *objectv1.AbortUpload) *objectv1.Result {
	b := m.open(abort.GetTarget())
	if b == nil {
		return refused(RefusedNoBucket)
	}
	k := modelUpload{abort.GetKey(), string(abort.GetUpload())}
	upload := b.uploads[k]
	if upload == nil {
		return refused(RefusedNoUpload)
	}
	if expires := upload.upload.GetExpireTime(); abort.GetExpired() && (expires == 0 || expires > now) {
		return refused(RefusedStale)
	}
	m.drop(upload)
	delete(b.uploads, k)
	return &objectv1.Result{}
}
