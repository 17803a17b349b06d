package names

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// model says in the plainest way what the store must do: everything is in memory, and references are counted anew after
// every operation.
type model struct {
	epoch      uint64
	nodes      map[string]uint32
	next       uint32
	buckets    map[string]*modelBucket
	chunks     map[Hash]*objectv1.Chunk
	dead       map[Hash]*objectv1.DeadChunk
	lists      map[modelList][]*objectv1.Block
	staged     map[string]int64 // expire times
	unreleased map[modelList]bool
	// newList is the id of the list that the operation makes of a small part.
	newList func(upload []byte, part uint32) []byte
}

type modelList struct {
	id     string
	number uint32
}

type modelBucket struct {
	namespace string
	closed    bool
	// keys have their versions, the newest first.
	keys    map[string][]*objectv1.Version
	uploads map[modelUpload]*modelParts
}

type modelUpload struct{ key, id string }

type modelParts struct {
	upload *objectv1.Upload
	parts  map[uint32]*objectv1.Part
}

func newModel() *model {
	return &model{
		epoch: 1, next: 1, nodes: map[string]uint32{}, buckets: map[string]*modelBucket{},
		chunks: map[Hash]*objectv1.Chunk{}, dead: map[Hash]*objectv1.DeadChunk{},
		lists: map[modelList][]*objectv1.Block{}, staged: map[string]int64{}, unreleased: map[modelList]bool{},
	}
}

func refused(reason string) *objectv1.Result { return &objectv1.Result{Refused: reason} }

// apply returns the result without what it is about.
func (m *model) apply(index uint64, operation uint32, op *objectv1.Operation) *objectv1.Result {
	op = proto.CloneOf(op)
	m.newList = func(upload []byte, part uint32) []byte { return newList(upload, part, index, operation) }
	defer m.collect()
	switch what := op.GetWhat().(type) {
	case *objectv1.Operation_Put:
		return m.put(index, what.Put)
	case *objectv1.Operation_Delete:
		return m.delete(index, op.GetTime(), what.Delete)
	case *objectv1.Operation_Retag:
		return m.retag(what.Retag)
	case *objectv1.Operation_StageBlocks:
		return m.stage(what.StageBlocks)
	case *objectv1.Operation_CreateUpload:
		return m.createUpload(what.CreateUpload)
	case *objectv1.Operation_PutPart:
		return m.putPart(what.PutPart)
	case *objectv1.Operation_CompleteUpload:
		return m.complete(index, what.CompleteUpload)
	case *objectv1.Operation_AbortUpload:
		return m.abort(op.GetTime(), what.AbortUpload)
	case *objectv1.Operation_CloseBucket:
		b := m.bucket(what.CloseBucket.GetTarget())
		if len(b.keys) > 0 || len(b.uploads) > 0 {
			return refused(RefusedNotEmpty)
		}
		b.closed = true
	case *objectv1.Operation_RegisterNode:
		uid := what.RegisterNode.GetUid()
		if m.nodes[uid] == 0 {
			m.nodes[uid] = m.next
			m.next++
		}
		return &objectv1.Result{Node: m.nodes[uid]}
	case *objectv1.Operation_ForgetNode:
		number := m.nodes[what.ForgetNode.GetUid()]
		delete(m.nodes, what.ForgetNode.GetUid())
		for _, chunk := range m.chunks {
			chunk.Nodes = slices.DeleteFunc(chunk.GetNodes(), func(n uint32) bool { return n == number })
		}
		return &objectv1.Result{Node: number}
	case *objectv1.Operation_Locate:
		for _, located := range what.Locate.GetChunks() {
			if chunk := m.chunks[Hash(located.GetHash())]; chunk != nil {
				chunk.Nodes = m.known(append(chunk.GetNodes(), located.GetAdd()...))
				chunk.Nodes = slices.DeleteFunc(chunk.GetNodes(), func(n uint32) bool { return slices.Contains(located.GetRemove(), n) })
			}
		}
	case *objectv1.Operation_Release:
		m.release(op.GetTime(), what.Release)
	case *objectv1.Operation_Forget:
		for _, hash := range what.Forget.GetHashes() {
			if m.dead[Hash(hash)].GetEpoch() <= what.Forget.GetEpoch() {
				delete(m.dead, Hash(hash))
			}
		}
	case *objectv1.Operation_AdvanceEpoch:
		if what.AdvanceEpoch.GetFrom() != m.epoch {
			return refused(RefusedStale)
		}
		m.epoch++
	}
	return &objectv1.Result{}
}

// known are nodes that are registered, in order and once each.
func (m *model) known(nodes []uint32) []uint32 {
	registered := slices.Collect(maps.Values(m.nodes))
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n uint32) bool { return !slices.Contains(registered, n) })
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (m *model) bucket(target *objectv1.Target) *modelBucket {
	b := m.buckets[target.GetBucket()]
	if b == nil {
		b = &modelBucket{
			namespace: target.GetNamespace(), keys: map[string][]*objectv1.Version{}, uploads: map[modelUpload]*modelParts{},
		}
		m.buckets[target.GetBucket()] = b
	}
	return b
}

// open returns a bucket, or nil if it was closed.
func (m *model) open(target *objectv1.Target) *modelBucket {
	if b := m.bucket(target); !b.closed {
		return b
	}
	return nil
}

func (b *modelBucket) current(key string) *objectv1.Version {
	if versions := b.keys[key]; len(versions) > 0 {
		return versions[0]
	}
	return nil
}

func (b *modelBucket) find(key, id string) *objectv1.Version {
	for _, v := range b.keys[key] {
		if string(v.GetId()) == id || id == nullID && v.GetNull() {
			return v
		}
	}
	return nil
}

func isObject(v *objectv1.Version) bool { return v != nil && !v.GetDeleteMarker() }

func (b *modelBucket) meets(key string, condition *objectv1.Condition) string {
	current := b.current(key)
	switch match := condition.GetIfMatch(); {
	case match == "":
	case !isObject(current):
		return RefusedNoKey
	case match != "*" && match != current.GetEtag():
		return RefusedPrecondition
	}
	if none := condition.GetIfNoneMatch(); none != "" && isObject(current) && (none == "*" || none == current.GetEtag()) {
		return RefusedPrecondition
	}
	return ""
}

// refer refers to blocks if it may, and reports whether it did.
func (m *model) refer(target *objectv1.Target, blocks []*objectv1.Block, chunks []*objectv1.StoredChunk, epoch uint64) bool {
	if len(blocks) == 0 {
		return true
	}
	if epoch+1 < m.epoch {
		return false
	}
	rows := map[Hash]*objectv1.Chunk{}
	for _, block := range blocks {
		hash := Hash(block.GetHash())
		row := &objectv1.Chunk{Copies: target.GetCopies()}
		if live := m.chunks[hash]; live != nil {
			row = proto.CloneOf(live)
			row.Copies = max(row.GetCopies(), target.GetCopies())
		} else if dead := m.dead[hash]; dead != nil && dead.GetEpoch()+1 >= m.epoch {
			row.Size, row.Nodes = dead.GetSize(), dead.GetNodes()
		}
		for _, chunk := range chunks {
			if Hash(chunk.GetHash()) == hash {
				row.Nodes = append(row.GetNodes(), chunk.GetNodes()...)
				row.Size = max(row.GetSize(), chunk.GetSize())
			}
		}
		row.Nodes = m.known(row.GetNodes())
		if m.chunks[hash] == nil && len(row.GetNodes()) == 0 {
			return false
		}
		rows[hash] = row
	}
	maps.Copy(m.chunks, rows)
	return true
}

func (m *model) isStaged(segments []*objectv1.Segment) bool {
	seen := map[string]bool{}
	for _, segment := range segments {
		id := string(segment.GetList())
		numbers := m.numbers(id)
		if m.staged[id] == 0 || seen[id] || len(numbers) != int(segment.GetLists()) || slices.Max(numbers)+1 != segment.GetLists() {
			return false
		}
		seen[id] = true
	}
	return true
}

func (m *model) numbers(list string) []uint32 {
	var numbers []uint32
	for l := range m.lists {
		if l.id == list {
			numbers = append(numbers, l.number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func (m *model) adopt(segments []*objectv1.Segment) {
	for _, segment := range segments {
		delete(m.staged, string(segment.GetList()))
	}
}

// used are the bytes of buckets.
func used(buckets ...*modelBucket) (bytes int64) {
	for _, b := range buckets {
		for _, versions := range b.keys {
			for _, v := range versions {
				bytes += v.GetSize()
			}
		}
		bytes += b.uploaded()
	}
	return bytes
}

func (b *modelBucket) uploaded() (bytes int64) {
	for _, upload := range b.uploads {
		for _, part := range upload.parts {
			bytes += part.GetSize()
		}
	}
	return bytes
}

func (m *model) inNamespace(namespace string) []*modelBucket {
	return slices.DeleteFunc(slices.Collect(maps.Values(m.buckets)), func(b *modelBucket) bool { return b.namespace != namespace })
}

func (m *model) fits(target *objectv1.Target, more int64) bool {
	b := m.buckets[target.GetBucket()]
	return more <= 0 ||
		(target.GetQuota() == 0 || used(b)+more <= target.GetQuota()) &&
			(target.GetNamespaceQuota() == 0 || used(m.inNamespace(b.namespace)...)+more <= target.GetNamespaceQuota())
}

func (m *model) put(index uint64, put *objectv1.Put) *objectv1.Result {
	b, v := m.open(put.GetTarget()), put.GetVersion()
	if b == nil {
		return refused(RefusedNoBucket)
	}
	if done := b.find(put.GetKey(), string(v.GetId())); done != nil {
		return &objectv1.Result{Version: done}
	}
	if reason := b.meets(put.GetKey(), put.GetCondition()); reason != "" {
		return refused(reason)
	}
	before := maps.Clone(m.chunks)
	if !m.refer(put.GetTarget(), v.GetBlocks(), put.GetChunks(), put.GetEpoch()) {
		return refused(RefusedEpoch)
	}
	more := v.GetSize()
	if put.GetTarget().GetVersioning() != versioningEnabled {
		more -= b.find(put.GetKey(), nullID).GetSize()
	}
	reason := ""
	if !m.isStaged(v.GetSegments()) {
		reason = RefusedStale
	} else if !m.fits(put.GetTarget(), more) {
		reason = RefusedQuota
	}
	if reason != "" {
		m.chunks = before
		return refused(reason)
	}
	m.adopt(v.GetSegments())
	return m.push(b, index, put.GetTarget(), put.GetKey(), v)
}

func (m *model) push(b *modelBucket, index uint64, target *objectv1.Target, key string, v *objectv1.Version) *objectv1.Result {
	result := &objectv1.Result{Version: v, Replaced: isObject(b.current(key))}
	v.Index, v.Null, v.Charged = index, target.GetVersioning() != versioningEnabled, v.GetSize()
	if v.GetNull() {
		m.remove(b, key, b.find(key, nullID))
	}
	b.keys[key] = slices.Insert(b.keys[key], 0, v)
	return result
}

func (m *model) remove(b *modelBucket, key string, v *objectv1.Version) {
	if v == nil {
		return
	}
	m.giveUp(v.GetSegments())
	b.keys[key] = slices.DeleteFunc(b.keys[key], func(other *objectv1.Version) bool { return other == v })
	if len(b.keys[key]) == 0 {
		delete(b.keys, key)
	}
}

func (m *model) giveUp(segments []*objectv1.Segment) {
	for _, segment := range segments {
		for number := range segment.GetLists() {
			m.unreleased[modelList{string(segment.GetList()), number}] = true
		}
	}
}

func (m *model) delete(index uint64, now int64, del *objectv1.Delete) *objectv1.Result {
	b, key := m.open(del.GetTarget()), del.GetKey()
	if b == nil {
		return refused(RefusedNoBucket)
	}
	v := b.current(key)
	if len(del.GetVersion()) > 0 {
		if v = b.find(key, string(del.GetVersion())); v == nil {
			return refused(RefusedNoVersion)
		}
	} else if done := b.find(key, string(del.GetMarker())); done != nil {
		return &objectv1.Result{Version: done}
	}
	if reason := b.meets(key, del.GetCondition()); reason != "" {
		return refused(reason)
	}
	if del.GetExpired() && (v.GetExpireTime() == 0 || v.GetExpireTime() > now) {
		return refused(RefusedStale)
	}
	plain := del.GetTarget().GetVersioning() == "" && (v == nil || len(b.keys[key]) == 1 && v.GetNull())
	if len(del.GetVersion()) == 0 && !plain {
		marker := &objectv1.Version{Id: del.GetMarker(), DeleteMarker: true, Time: now}
		return m.push(b, index, del.GetTarget(), key, marker)
	}
	result := &objectv1.Result{Version: v, Replaced: isObject(v) && v == b.current(key)}
	m.remove(b, key, v)
	return result
}

func (m *model) retag(retag *objectv1.Retag) *objectv1.Result {
	b := m.open(retag.GetTarget())
	if b == nil {
		return refused(RefusedNoBucket)
	}
	v, missing := b.current(retag.GetKey()), RefusedNoKey
	if len(retag.GetVersion()) > 0 {
		v, missing = b.find(retag.GetKey(), string(retag.GetVersion())), RefusedNoVersion
	}
	if !isObject(v) {
		return refused(missing)
	}
	v.Tags = retag.GetTags()
	return &objectv1.Result{Version: v}
}

func (m *model) stage(stage *objectv1.StageBlocks) *objectv1.Result {
	if m.open(stage.GetTarget()) == nil {
		return refused(RefusedNoBucket)
	}
	id := string(stage.GetList())
	list := modelList{id, stage.GetNumber()}
	if m.staged[id] == 0 && len(m.numbers(id)) > 0 {
		return refused(RefusedStale)
	}
	if m.lists[list] != nil {
		return &objectv1.Result{}
	}
	if !m.refer(stage.GetTarget(), stage.GetBlocks(), stage.GetChunks(), stage.GetEpoch()) {
		return refused(RefusedEpoch)
	}
	m.lists[list] = stage.GetBlocks()
	m.staged[id] = max(m.staged[id], stage.GetExpireTime())
	return &objectv1.Result{}
}

func (m *model) release(now int64, release *objectv1.Release) {
	for _, r := range release.GetLists() {
		id := string(r.GetList())
		if expires := m.staged[id]; expires != 0 && expires <= now {
			delete(m.staged, id)
			for _, number := range m.numbers(id) {
				m.unreleased[modelList{id, number}] = true
			}
		}
		list := modelList{id, r.GetNumber()}
		if m.unreleased[list] {
			delete(m.unreleased, list)
			delete(m.lists, list)
		}
	}
}

// collect counts all references anew. Chunks that nothing refers to any more die.
func (m *model) collect() {
	references := map[Hash]uint64{}
	count := func(blocks []*objectv1.Block) {
		for _, block := range blocks {
			references[Hash(block.GetHash())]++
		}
	}
	for _, b := range m.buckets {
		for _, versions := range b.keys {
			for _, v := range versions {
				count(v.GetBlocks())
			}
		}
		for _, upload := range b.uploads {
			for _, part := range upload.parts {
				count(part.GetBlocks())
			}
		}
	}
	for _, blocks := range m.lists { // of versions, of parts, staged and unreferenced ones
		count(blocks)
	}
	for hash, chunk := range m.chunks {
		if chunk.References = references[hash]; chunk.GetReferences() > 0 {
			delete(m.dead, hash)
			continue
		}
		delete(m.chunks, hash)
		m.dead[hash] = &objectv1.DeadChunk{Size: chunk.GetSize(), Nodes: chunk.GetNodes(), Epoch: m.epoch}
	}
}

// list is the whole of a listing, without pages.
func (m *model) list(bucket string, request ListRequest) []Listed {
	var items []Listed
	if m.buckets[bucket] == nil {
		return nil
	}
	for _, key := range slices.SortedFunc(maps.Keys(m.buckets[bucket].keys), cmp.Compare[string]) {
		versions := m.buckets[bucket].keys[key]
		rest, ok := strings.CutPrefix(key, request.Prefix)
		if !ok || !request.Versions && versions[0].GetDeleteMarker() {
			continue
		}
		if head, _, found := strings.Cut(rest, request.Delimiter); found && request.Delimiter != "" {
			common := Listed{Key: request.Prefix + head + request.Delimiter}
			if len(items) == 0 || items[len(items)-1].Key != common.Key || items[len(items)-1].Version != nil {
				items = append(items, common)
			}
			continue
		}
		items = append(items, Listed{Key: key, Version: versions[0], Latest: true})
		for _, v := range versions[1:] {
			if request.Versions {
				items = append(items, Listed{Key: key, Version: v})
			}
		}
	}
	return items
}
