package names

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// machine runs the store and the model side by side.
type machine struct {
	*generator
	names *Names
	files *vfs.MemFS
	log   []Entry
	// copy is a checkpoint, if there is one.
	copy   string
	copies int
}

func newMachine(t *rapid.T) *machine {
	m := &machine{generator: &generator{T: t, m: newModel()}, files: vfs.NewCrashableMem()}
	m.names = m.open("/names")
	for i := range 2 { // most chunks are on some node
		m.apply(&objectv1.Operation{What: &objectv1.Operation_RegisterNode{
			RegisterNode: &objectv1.RegisterNode{Uid: someNodes[i]},
		}})
	}
	return m
}

func (m *machine) open(dir string) *Names {
	n, err := Open(Options{Dir: dir, files: m.files, Cache: 1 << 20})
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// apply applies an entry to both, and compares the results.
func (m *machine) apply(operations ...*objectv1.Operation) {
	entry := Entry{Index: uint64(len(m.log)+1) * 3, Data: encode(m, &objectv1.Entry{Operations: operations})}
	m.log = append(m.log, entry)
	results, err := m.names.Apply([]Entry{entry})
	if err != nil {
		m.Fatal(err)
	}
	for i, operation := range operations {
		want, got := m.m.apply(entry.Index, uint32(i), operation), results[0].GetResults()[i]
		got.About, got.Used, got.Limit = "", 0, 0
		if !proto.Equal(want, got) {
			m.Fatalf("%v\nhad the result %v\nand not        %v", operation, got, want)
		}
	}
}

func encode(t interface{ Fatal(...any) }, entry *objectv1.Entry) []byte {
	data, err := proto.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// crash loses what was not written to the disk. Raft then replays what the store has not applied.
func (m *machine) crash(*rapid.T) {
	before := m.names
	seed := rapid.Uint64().Draw(m.T, "seed")
	m.files = m.files.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: m.number("survives", 101), RNG: rand.New(rand.NewPCG(seed, 0)),
	})
	if err := before.Close(); err != nil {
		m.Fatal(err)
	}
	m.copy = ""
	m.names = m.open("/names")
	m.replay()
}

// replay applies the whole log, in batches of any size.
func (m *machine) replay() {
	if applied := m.names.Applied(); applied > m.log[len(m.log)-1].Index {
		m.Fatalf("the index is %d, and the newest entry has %d", applied, m.log[len(m.log)-1].Index)
	}
	for rest := m.log; len(rest) > 0; {
		size := 1 + m.number("batch", len(rest))
		before := m.names.Applied()
		results, err := m.names.Apply(rest[:size])
		if err != nil {
			m.Fatal(err)
		}
		for i, result := range results {
			if skipped := rest[i].Index <= before; skipped != (result == nil) {
				m.Fatalf("entry %d was skipped: %v; %d was applied before", rest[i].Index, !skipped, before)
			}
		}
		rest = rest[size:]
	}
}

func (m *machine) reopen(*rapid.T) {
	if err := m.names.Close(); err != nil {
		m.Fatal(err)
	}
	m.names = m.open("/names")
	if want := m.log[len(m.log)-1].Index; m.names.Applied() != want {
		m.Fatalf("the index after a proper end is %d and not %d", m.names.Applied(), want)
	}
}

func (m *machine) checkpoint(*rapid.T) {
	m.copies++
	m.copy = fmt.Sprintf("/copy-%d", m.copies)
	index, err := m.names.Checkpoint(m.copy)
	if err != nil {
		m.Fatal(err)
	}
	if want := m.log[len(m.log)-1].Index; index != want {
		m.Fatalf("the copy has index %d and not %d", index, want)
	}
}

// restore gets the copy to this store or to a new one, as a server that lags behind does.
func (m *machine) restore(*rapid.T) {
	if m.copy == "" {
		m.Skip("there is no copy")
	}
	if m.number("to another server", 2) == 0 {
		if err := m.names.Close(); err != nil {
			m.Fatal(err)
		}
		if err := m.files.RemoveAll("/names"); err != nil {
			m.Fatal(err)
		}
		m.names = m.open("/names")
	}
	view := m.names.View()
	defer view.Close()
	before := dump(m, view)
	if err := m.names.Restore(m.copy); err != nil {
		m.Fatal(err)
	}
	m.copy = ""
	if !maps.EqualFunc(before, dump(m, view), bytes.Equal) {
		m.Fatal("a restore changed a view that was open")
	}
	m.replay()
}

// dump returns all rows.
func dump(t interface{ Fatal(...any) }, v *View) map[string][]byte {
	rows := map[string][]byte{}
	err := scan(v.snapshot, []byte{0}, []byte{byte(tableEnd)}, func(k, row []byte) (bool, error) {
		rows[string(k)] = bytes.Clone(row)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestStoreDoesWhatTheModelSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		defer func() {
			if err := m.names.Close(); err != nil {
				t.Error(err)
			}
		}()
		change := func(*rapid.T) {
			var operations []*objectv1.Operation
			for range 1 + m.number("operations", 3) {
				operations = append(operations, m.operation())
			}
			m.apply(operations...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": change, "change more": change, "change again": change, "change even more": change,
			"crash": m.crash, "reopen": m.reopen, "checkpoint": m.checkpoint, "restore": m.restore,
			"": m.compare,
		})
	})
}

func TestEveryServerHasTheSameRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		for range 60 {
			m.apply(m.operation(), m.operation())
		}
		first := m.names
		m.names = m.open("/other")
		m.replay()
		a, b := first.View(), m.names.View()
		defer a.Close()
		defer b.Close()
		if !maps.EqualFunc(dump(t, a), dump(t, b), bytes.Equal) {
			t.Error("the same entries in other batches made other rows")
		}
		for _, n := range []*Names{first, m.names} {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// compare compares everything that queries return with the model.
func (m *machine) compare(*rapid.T) {
	v := m.names.View()
	defer v.Close()
	m.compareRows(v)
	m.compareBuckets(v)
	m.compareChunks(v)
	m.compareExpired(v)
	for i := range 2 {
		m.compareListing(v, i == 1)
	}
}

func (m *machine) same(what string, got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		m.Fatalf("%s\nis      %v\nand not %v", what, got, want)
	}
}

func (m *machine) check(err error) {
	if err != nil {
		m.Fatal(err)
	}
}

// compareRows counts the rows, so that nothing is left over.
func (m *machine) compareRows(v *View) {
	want := map[table]int{
		tableMeta: 1, tableNode: len(m.m.nodes), tableList: len(m.m.lists), tableStaged: len(m.m.staged),
		tableUnreferenced: len(m.m.unreleased), tableChunk: len(m.m.chunks), tableDead: len(m.m.dead),
		tableExpiry: len(m.m.staged),
	}
	for _, b := range m.m.buckets {
		want[tableUpload] += len(b.uploads)
		for _, upload := range b.uploads {
			want[tablePart] += len(upload.parts)
			if upload.upload.GetExpireTime() != 0 {
				want[tableExpiry]++
			}
		}
		for _, versions := range b.keys {
			want[tableCurrent]++
			want[tableOlder] += len(versions) - 1
			for i, version := range versions {
				if version.GetExpireTime() != 0 {
					want[tableExpiry]++
				}
				if i > 0 {
					want[tablePosition] += len(ids(&stored{Version: version}))
				}
			}
		}
	}
	for _, chunk := range m.m.chunks {
		want[tableOn] += len(chunk.GetNodes())
		if len(chunk.GetNodes()) < int(chunk.GetCopies()) {
			want[tableShort]++
		}
	}
	got := map[table]int{}
	for k := range dump(m, v) {
		got[table(k[0])]++
	}
	for t := tableMeta; t < tableEnd; t++ {
		if t != tableBucket && t != tableNamespace {
			m.same(fmt.Sprintf("number of rows in table %d", t), got[t], want[t])
		}
	}
}

func (m *machine) compareBuckets(v *View) {
	totals := Totals{Chunks: int64(len(m.m.chunks)), Dead: int64(len(m.m.dead))}
	for uid, b := range m.m.buckets {
		want := &objectv1.BucketUsage{
			Closed: b.closed, Uploads: int64(len(b.uploads)), UploadBytes: b.uploaded(), Bytes: used(b) - b.uploaded(),
		}
		for key, versions := range b.keys {
			want.Versions += int64(len(versions))
			if isObject(versions[0]) {
				want.Objects++
			}
			m.compareVersions(v, uid, key, versions)
		}
		got, err := v.Usage(uid)
		m.check(err)
		got.Namespace = ""
		m.same("usage of "+uid, got, want)
		size, err := v.NamespaceUsage(b.namespace)
		m.check(err)
		m.same("usage of namespace "+b.namespace, size, used(m.m.inNamespace(b.namespace)...))
		totals.Objects += want.GetObjects()
		totals.Versions += want.GetVersions()
		totals.Bytes += used(b)
		m.compareUploads(v, uid, b)
	}
	for _, chunk := range m.m.chunks {
		totals.ChunkBytes += int64(chunk.GetSize())
		if len(chunk.GetNodes()) < int(chunk.GetCopies()) {
			totals.Short++
		}
	}
	got, err := v.Totals()
	m.check(err)
	m.same("totals", got, totals)
	m.same("epoch", v.Epoch(), m.m.epoch)
	m.same("index", v.Index(), m.log[len(m.log)-1].Index)
}

func (m *machine) compareVersions(v *View, bucket, key string, versions []*objectv1.Version) {
	current, err := v.Current(bucket, key)
	m.check(err)
	m.same("current version of "+key, current, versions[0])
	for _, want := range versions {
		for _, id := range ids(&stored{Version: want}) {
			got, err := v.Version(bucket, key, []byte(id))
			m.check(err)
			m.same("version of "+key, got, want)
		}
		m.compareBlocks(v, want)
	}
}

// compareBlocks reads a version from any offset on.
func (m *machine) compareBlocks(v *View, version *objectv1.Version) {
	blocks := slices.Clone(version.GetBlocks())
	for _, segment := range version.GetSegments() {
		for number := range segment.GetLists() {
			blocks = append(blocks, m.m.lists[modelList{string(segment.GetList()), number}]...)
		}
	}
	from := int64(m.number("offset", int(version.GetSize())+2))
	var want, got []Placed
	at := int64(0)
	for _, block := range blocks {
		if at+int64(block.GetSize()) > from {
			want = append(want, Placed{Offset: at, Block: block})
		}
		at += int64(block.GetSize())
	}
	for placed, err := range v.Blocks(version, from) {
		m.check(err)
		got = append(got, placed)
	}
	m.same("number of blocks", len(got), len(want))
	for i := range got {
		m.same("block", got[i].Block, want[i].Block)
		m.same("offset of a block", got[i].Offset, want[i].Offset)
	}
}

func (m *machine) compareUploads(v *View, uid string, b *modelBucket) {
	prefix := m.pick("prefix of uploads", []string{"", "", "a", "a/", "b/\x00"})
	var want []*objectv1.Upload
	for k, upload := range b.uploads {
		if len(k.key) >= len(prefix) && k.key[:len(prefix)] == prefix {
			want = append(want, upload.upload)
		}
		m.compareParts(v, upload)
		got, err := v.Upload(uid, k.key, []byte(k.id))
		m.check(err)
		m.same("upload", got, upload.upload)
	}
	slices.SortFunc(want, func(a, b *objectv1.Upload) int {
		return slices.Compare([]byte(a.GetKey()+string(a.GetId())), []byte(b.GetKey()+string(b.GetId())))
	})
	slices.SortStableFunc(want, func(a, b *objectv1.Upload) int {
		return slices.Compare([]byte(a.GetKey()), []byte(b.GetKey()))
	})
	var got []*objectv1.Upload
	key, id := "", []byte(nil)
	for more := true; more; {
		var page []*objectv1.Upload
		var err error
		page, more, err = v.Uploads(uid, prefix, key, id, 1+m.number("limit of uploads", 3))
		m.check(err)
		got = append(got, page...)
		if len(page) > 0 {
			key, id = page[len(page)-1].GetKey(), page[len(page)-1].GetId()
		}
	}
	m.same("uploads of "+uid, got, want)
}

func (m *machine) compareParts(v *View, upload *modelParts) {
	var want, got []*objectv1.Part
	for _, number := range slices.Sorted(maps.Keys(upload.parts)) {
		want = append(want, upload.parts[number])
	}
	last := uint32(0)
	for more := true; more; {
		var page []*objectv1.Part
		var err error
		page, more, err = v.Parts(upload.upload.GetId(), last, 1+m.number("limit of parts", 3))
		m.check(err)
		got = append(got, page...)
		if len(page) > 0 {
			last = page[len(page)-1].GetNumber()
		}
	}
	m.same("parts", got, want)
}

func (m *machine) compareChunks(v *View) {
	on, short := map[uint32][]Hash{}, []Hash(nil)
	for _, hash := range sortedHashes(m.m.chunks) {
		chunk := m.m.chunks[hash]
		got, err := v.Chunk(hash)
		m.check(err)
		m.same("chunk", got, chunk)
		for _, node := range chunk.GetNodes() {
			on[node] = append(on[node], hash)
		}
		if len(chunk.GetNodes()) < int(chunk.GetCopies()) {
			short = append(short, hash)
		}
	}
	limit := 1 + m.number("limit of chunks", 4)
	for node := range uint32(8) {
		m.same("chunks on a node", m.pages(limit, func(after Hash) ([]Found, error) { return v.ChunksOn(node, after, limit) }), on[node])
	}
	m.same("short chunks", m.pages(limit, func(after Hash) ([]Found, error) { return v.Short(after, limit) }), short)
	epoch := m.m.epoch - uint64(m.number("epochs ago", int(min(3, m.m.epoch))))
	var dead []FoundDead
	for _, hash := range sortedHashes(m.m.dead) {
		if m.m.dead[hash].GetEpoch() <= epoch {
			dead = append(dead, FoundDead{Hash: hash, Dead: m.m.dead[hash]})
		}
	}
	got, err := v.Dead(epoch, Hash{}, 1000)
	m.check(err)
	m.same("dead chunks", got, dead)
	lists, err := v.Unreferenced(1000)
	m.check(err)
	m.same("number of unreferenced lists", len(lists), len(m.m.unreleased))
	for _, list := range lists {
		m.same("list is unreferenced", m.m.unreleased[modelList{string(list.GetList()), list.GetNumber()}], true)
	}
	nodes, err := v.Nodes()
	m.check(err)
	m.same("nodes", nodes, m.m.nodes)
}

func sortedHashes[V any](chunks map[Hash]V) []Hash {
	return slices.SortedFunc(maps.Keys(chunks), func(a, b Hash) int { return bytes.Compare(a[:], b[:]) })
}

// pages returns the hashes of all pages.
func (m *machine) pages(limit int, page func(after Hash) ([]Found, error)) []Hash {
	var all []Hash
	after := Hash{}
	for {
		found, err := page(after)
		m.check(err)
		for _, f := range found {
			m.same("chunk that was found", f.Chunk, m.m.chunks[f.Hash])
			all = append(all, f.Hash)
		}
		if len(found) < limit {
			return all
		}
		after = found[len(found)-1].Hash
	}
}

// compareExpired applies what Expired returns to a copy of the model: nothing whose time is over may be left.
func (m *machine) compareExpired(v *View) {
	over := func(time int64) bool { return time != 0 && time <= m.now }
	want := 0
	for _, expires := range m.m.staged {
		if over(expires) {
			want++
		}
	}
	for _, b := range m.m.buckets {
		for _, upload := range b.uploads {
			if over(upload.upload.GetExpireTime()) {
				want++
			}
		}
		for _, versions := range b.keys {
			for _, version := range versions {
				if over(version.GetExpireTime()) {
					want++
				}
			}
		}
	}
	got, err := v.Expired(m.now, 1000)
	m.check(err)
	m.same("number of expired things", len(got), want)
	for _, expired := range got {
		switch what := expired.Operation.GetWhat().(type) {
		case *objectv1.Operation_Delete:
			version := m.m.buckets[what.Delete.GetTarget().GetBucket()].find(what.Delete.GetKey(), string(what.Delete.GetVersion()))
			m.same("version is over", over(version.GetExpireTime()) && what.Delete.GetExpired(), true)
		case *objectv1.Operation_AbortUpload:
			abort := what.AbortUpload
			upload := m.m.buckets[abort.GetTarget().GetBucket()].uploads[modelUpload{abort.GetKey(), string(abort.GetUpload())}]
			m.same("upload is over", over(upload.upload.GetExpireTime()) && abort.GetExpired(), true)
		case *objectv1.Operation_Release:
			m.same("list is over", over(m.m.staged[string(what.Release.GetLists()[0].GetList())]), true)
		}
	}
}

// compareListing lists a bucket in pages of any size.
func (m *machine) compareListing(v *View, versions bool) {
	bucket := m.pick("listed bucket", someBuckets)
	request := ListRequest{
		Prefix:    m.pick("prefix", []string{"", "", "a", "a/", "a/b", "b/\x00", "a\x00"}),
		Delimiter: m.pick("delimiter", []string{"", "/", "/", "b", "//", "\x00"}),
		Versions:  versions,
	}
	want := m.m.list(bucket, request)
	var got []Listed
	for more := true; more; {
		request.Limit = 1 + m.number("limit of a page", 5)
		page, err := v.List(bucket, request)
		m.check(err)
		if len(page.Items) > request.Limit || page.More && len(page.Items) < request.Limit {
			m.Fatalf("a page of %d has %d items, and more: %v", request.Limit, len(page.Items), page.More)
		}
		got, more = append(got, page.Items...), page.More
		request.After, request.AfterVersion = page.Last, page.LastVersion
	}
	m.same(fmt.Sprintf("listing %+v", request), got, want)
}
