package names

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

var (
	someKeys = []string{
		"a", "a/", "a/b", "a/b/c", "a/c", "a\x00", "a\x00/b", "ab", "b/\x01", "b/\x00\x01", "b/é", "c//d", "\x00", "\U0010ffff", "a/b\x00",
	}
	someBuckets    = []string{"photos", "photo", "p\x00"}
	someNamespaces = map[string]string{"photos": "shop", "photo": "shop", "p\x00": "lab"}
	someNodes      = []string{"node-a", "node-b", "node-c", "node-d"}
)

// generator draws operations that often have an effect on the state of a model.
type generator struct {
	*rapid.T
	m       *model
	created uint64
	now     int64
}

func (g *generator) pick(label string, from []string) string {
	return rapid.SampledFrom(from).Draw(g.T, label)
}

func (g *generator) number(label string, below int) int {
	return rapid.IntRange(0, below-1).Draw(g.T, label)
}

func (g *generator) rarely(label string) bool { return g.number(label, 8) == 0 }

// id is a new id of 16 bytes.
func (g *generator) id() []byte {
	g.created++
	return binary.BigEndian.AppendUint64([]byte("created "), g.created)
}

func (g *generator) key() string { return g.pick("key", someKeys) }

func (g *generator) target() *objectv1.Target {
	bucket := g.pick("bucket", someBuckets)
	target := &objectv1.Target{
		Bucket: bucket, Namespace: someNamespaces[bucket], Copies: uint32(1 + g.number("copies", 3)),
		Versioning: g.pick("versioning", []string{"", versioningEnabled, versioningEnabled, versioningSuspended}),
	}
	if g.rarely("quota") {
		target.Quota = int64(1 + g.number("bytes", 200))
	}
	if g.rarely("namespace quota") {
		target.NamespaceQuota = int64(1 + g.number("bytes of the namespace", 200))
	}
	return target
}

// existing is a target and a key that has versions, if there is one.
func (g *generator) existing() (*objectv1.Target, string, []*objectv1.Version) {
	target := g.target()
	b := g.m.buckets[target.GetBucket()]
	if b == nil || len(b.keys) == 0 || g.rarely("any key") {
		return target, g.key(), nil
	}
	key := g.pick("existing key", slices.Sorted(maps.Keys(b.keys)))
	return target, key, b.keys[key]
}

// version is the id of one of some versions, or of none.
func (g *generator) version(versions []*objectv1.Version) []byte {
	ids := []string{"null", string(g.id())}
	for _, v := range versions {
		ids = append(ids, string(v.GetId()), string(v.GetId()))
	}
	return []byte(g.pick("version", ids))
}

func (g *generator) condition() *objectv1.Condition {
	if !g.rarely("condition") {
		return nil
	}
	return &objectv1.Condition{
		IfMatch:     g.pick("if match", []string{"", "", "*", "1", "2"}),
		IfNoneMatch: g.pick("if none match", []string{"", "", "*", "1", "2"}),
	}
}

func (g *generator) time() int64 {
	g.now += int64(g.number("passed", 5))
	return g.now
}

// expireTime is sometimes over already.
func (g *generator) expireTime() int64 { return max(1, g.now-2+int64(g.number("expires", 10))) }

func (g *generator) epoch() uint64 {
	return uint64(max(0, int64(g.m.epoch)-int64(g.pick("age", []string{"0", "0", "0", "1", "1", "2"})[0]-'0')))
}

// content are blocks, and the chunks that nodes have just stored for them.
func (g *generator) content(most int) (blocks []*objectv1.Block, chunks []*objectv1.StoredChunk) {
	for range g.number("blocks", most+1) {
		n := 1 + g.number("block", 10)
		hash := Hash{byte(n), 31: byte(n)}
		blocks = append(blocks, &objectv1.Block{Hash: hash[:], Size: uint32(n)})
		if g.rarely("not stored") {
			continue
		}
		chunk := &objectv1.StoredChunk{Hash: hash[:], Size: uint32(n) + 100}
		for number := range uint32(6) { // some are not registered
			if g.number("stored", 3) == 0 {
				chunk.Nodes = append(chunk.GetNodes(), number)
			}
		}
		if !slices.ContainsFunc(chunks, func(c *objectv1.StoredChunk) bool { return Hash(c.GetHash()) == hash }) {
			chunks = append(chunks, chunk)
		}
	}
	return blocks, chunks
}

func (g *generator) etag() string { return g.pick("etag", []string{"1", "2", "3"}) }

func (g *generator) tags() map[string]string {
	return rapid.MapOfN(rapid.SampledFrom(someKeys), rapid.Just("v"), 0, 3).Draw(g.T, "tags")
}

// segments are staged lists, or others.
func (g *generator) segments(most int) (segments []*objectv1.Segment) {
	staged := slices.Sorted(maps.Keys(g.m.staged))
	if len(staged) == 0 || most == 0 {
		return nil
	}
	for range 1 + g.number("segments", most) {
		id := g.pick("list", staged)
		if g.rarely("unknown list") {
			id = string(g.id())
		}
		segment := &objectv1.Segment{List: []byte(id), Lists: uint32(max(1, len(g.m.numbers(id))))}
		for _, number := range g.m.numbers(id) {
			segment.Size += blockBytes(g.m.lists[modelList{id, number}])
		}
		segments = append(segments, segment)
	}
	return segments
}

func (g *generator) put() *objectv1.Operation {
	target, key, versions := g.existing()
	put := &objectv1.Put{Target: target, Key: key, Condition: g.condition(), Epoch: g.epoch()}
	v := &objectv1.Version{Id: g.id(), Etag: g.etag(), Time: g.now, Tags: g.tags()}
	if len(versions) > 0 && g.rarely("proposed twice") {
		v.Id = versions[0].GetId()
	}
	if g.number("expiring", 3) == 0 {
		v.ExpireTime = g.expireTime()
	}
	if v.Segments = g.segments(g.number("long", 2)); len(v.GetSegments()) > 0 {
		for _, segment := range v.GetSegments() {
			v.Size += segment.GetSize()
		}
	} else {
		v.Blocks, put.Chunks = g.content(4)
		v.Size = blockBytes(v.GetBlocks())
	}
	put.Version = v
	return &objectv1.Operation{What: &objectv1.Operation_Put{Put: put}}
}

func (g *generator) delete() *objectv1.Operation {
	target, key, versions := g.existing()
	del := &objectv1.Delete{Target: target, Key: key, Marker: g.id(), Condition: g.condition(), Expired: g.rarely("expired")}
	if g.number("of a version", 2) == 0 {
		del.Version = g.version(versions)
	}
	return &objectv1.Operation{What: &objectv1.Operation_Delete{Delete: del}}
}

func (g *generator) retag() *objectv1.Operation {
	target, key, versions := g.existing()
	retag := &objectv1.Retag{Target: target, Key: key, Tags: g.tags()}
	if g.number("of a version", 2) == 0 {
		retag.Version = g.version(versions)
	}
	return &objectv1.Operation{What: &objectv1.Operation_Retag{Retag: retag}}
}

func (g *generator) stage() *objectv1.Operation {
	lists := []string{string(g.id())}
	lists = append(lists, slices.Sorted(maps.Keys(g.m.staged))...)
	stage := &objectv1.StageBlocks{
		Target: g.target(), List: []byte(g.pick("list", lists)), Epoch: g.epoch(), ExpireTime: g.expireTime(),
	}
	stage.Number = uint32(len(g.m.numbers(string(stage.GetList()))))
	if g.rarely("another number") {
		stage.Number = uint32(g.number("number", 4))
	}
	for len(stage.GetBlocks()) == 0 {
		stage.Blocks, stage.Chunks = g.content(4)
	}
	return &objectv1.Operation{What: &objectv1.Operation_StageBlocks{StageBlocks: stage}}
}

func (g *generator) createUpload() *objectv1.Operation {
	upload := &objectv1.Upload{Id: g.id(), Key: g.key(), Time: g.now, Tags: g.tags()}
	if g.number("expiring", 2) == 0 {
		upload.ExpireTime = g.expireTime()
	}
	create := &objectv1.CreateUpload{Target: g.target(), Upload: upload}
	return &objectv1.Operation{What: &objectv1.Operation_CreateUpload{CreateUpload: create}}
}

// upload is one that exists, if there is one.
func (g *generator) upload() (*objectv1.Target, *modelParts) {
	target := g.target()
	parts := &modelParts{upload: &objectv1.Upload{Id: g.id(), Key: g.key()}}
	b := g.m.buckets[target.GetBucket()]
	if b == nil || len(b.uploads) == 0 || g.rarely("unknown upload") {
		return target, parts
	}
	all := slices.SortedFunc(maps.Keys(b.uploads), func(a, b modelUpload) int { return slices.Compare([]byte(a.id), []byte(b.id)) })
	return target, b.uploads[all[g.number("upload", len(all))]]
}

func (g *generator) putPart() *objectv1.Operation {
	target, upload := g.upload()
	put := &objectv1.PutPart{Target: target, Key: upload.upload.GetKey(), Upload: upload.upload.GetId(), Epoch: g.epoch()}
	part := &objectv1.Part{Number: uint32(1 + g.number("part", 4)), Etag: g.etag(), Time: g.now}
	if segments := g.segments(g.number("long", 2)); len(segments) > 0 {
		part.Segment, part.Size = segments[0], segments[0].GetSize()
	} else {
		part.Blocks, put.Chunks = g.content(4)
		part.Size = blockBytes(part.GetBlocks())
	}
	put.Part = part
	return &objectv1.Operation{What: &objectv1.Operation_PutPart{PutPart: put}}
}

func (g *generator) complete() *objectv1.Operation {
	target, upload := g.upload()
	complete := &objectv1.CompleteUpload{
		Target: target, Key: upload.upload.GetKey(), Upload: upload.upload.GetId(), Condition: g.condition(),
		Version: &objectv1.Version{Id: g.id(), Etag: g.etag(), Time: g.now, ExpireTime: g.expireTime()},
	}
	if g.rarely("least") {
		complete.Least = 5
	}
	for _, number := range slices.Sorted(maps.Keys(upload.parts)) {
		if g.rarely("left out") {
			continue
		}
		part := &objectv1.CompletedPart{Number: number, Etag: upload.parts[number].GetEtag()}
		if g.number("wrong etag", 20) == 0 {
			part.Etag = "wrong"
		}
		complete.Parts = append(complete.GetParts(), part)
	}
	return &objectv1.Operation{What: &objectv1.Operation_CompleteUpload{CompleteUpload: complete}}
}

func (g *generator) abort() *objectv1.Operation {
	target, upload := g.upload()
	abort := &objectv1.AbortUpload{
		Target: target, Key: upload.upload.GetKey(), Upload: upload.upload.GetId(), Expired: g.number("expired", 2) == 0,
	}
	return &objectv1.Operation{What: &objectv1.Operation_AbortUpload{AbortUpload: abort}}
}

func (g *generator) closeBucket() *objectv1.Operation {
	target := g.target()
	if !g.rarely("a bucket in use") {
		target.Bucket, target.Namespace = fmt.Sprint("empty", g.number("empty", 2)), "shop"
	}
	return &objectv1.Operation{What: &objectv1.Operation_CloseBucket{CloseBucket: &objectv1.CloseBucket{Target: target}}}
}

func (g *generator) registerNode() *objectv1.Operation {
	register := &objectv1.RegisterNode{Uid: g.pick("node", someNodes)}
	return &objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: register}}
}

func (g *generator) forgetNode() *objectv1.Operation {
	forget := &objectv1.ForgetNode{Uid: g.pick("node", someNodes)}
	return &objectv1.Operation{What: &objectv1.Operation_ForgetNode{ForgetNode: forget}}
}

func (g *generator) locate() *objectv1.Operation {
	locate := &objectv1.Locate{}
	for range 1 + g.number("located", 4) {
		n := 1 + g.number("block", 10)
		located := &objectv1.Located{Hash: slices.Concat([]byte{byte(n)}, make([]byte, 30), []byte{byte(n)})}
		for number := range uint32(6) {
			switch g.number("node is", 4) {
			case 0:
				located.Add = append(located.GetAdd(), number)
			case 1:
				located.Remove = append(located.GetRemove(), number)
			}
		}
		locate.Chunks = append(locate.GetChunks(), located)
	}
	return &objectv1.Operation{What: &objectv1.Operation_Locate{Locate: locate}}
}

func (g *generator) release() *objectv1.Operation {
	release := &objectv1.Release{}
	for list := range g.m.unreleased {
		release.Lists = append(release.GetLists(), &objectv1.ReleasedList{List: []byte(list.id), Number: list.number})
	}
	for id := range g.m.staged {
		release.Lists = append(release.GetLists(), &objectv1.ReleasedList{List: []byte(id)})
	}
	slices.SortFunc(release.GetLists(), func(a, b *objectv1.ReleasedList) int {
		return slices.Compare(listKey(a.GetList(), a.GetNumber()), listKey(b.GetList(), b.GetNumber()))
	})
	if len(release.GetLists()) > 0 { // step by step
		release.Lists = release.GetLists()[g.number("released", len(release.GetLists())):]
	}
	return &objectv1.Operation{What: &objectv1.Operation_Release{Release: release}}
}

func (g *generator) forget() *objectv1.Operation {
	forget := &objectv1.Forget{Epoch: g.m.epoch - uint64(g.number("age", 2))}
	for n := range byte(11) {
		if g.number("forgotten", 3) == 0 {
			forget.Hashes = append(forget.GetHashes(), slices.Concat([]byte{n}, make([]byte, 30), []byte{n}))
		}
	}
	return &objectv1.Operation{What: &objectv1.Operation_Forget{Forget: forget}}
}

func (g *generator) advanceEpoch() *objectv1.Operation {
	advance := &objectv1.AdvanceEpoch{From: g.m.epoch - uint64(g.number("late", 2))}
	return &objectv1.Operation{What: &objectv1.Operation_AdvanceEpoch{AdvanceEpoch: advance}}
}

// operation is a random one. Those that make content are more frequent.
func (g *generator) operation() *objectv1.Operation {
	all := []func() *objectv1.Operation{
		g.put, g.put, g.put, g.put, g.delete, g.delete, g.retag, g.stage, g.stage, g.stage, g.createUpload, g.putPart,
		g.putPart, g.putPart, g.complete, g.abort, g.closeBucket, g.registerNode, g.registerNode, g.forgetNode, g.locate,
		g.release, g.forget, g.advanceEpoch,
	}
	operation := all[g.number("operation", len(all))]()
	operation.Time = g.time()
	return operation
}
