package names

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// store is a store whose entries are numbered by the test.
type store struct {
	*testing.T
	*Names
	index, ids uint64
}

func newStore(t *testing.T) *store {
	t.Helper()
	n, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &store{T: t, Names: n}
	for _, uid := range []string{"node 1", "node 2", "node 3"} {
		s.do(&objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: uid}}})
	}
	return s
}

// do applies an operation and returns its result.
func (s *store) do(operation *objectv1.Operation) *objectv1.Result {
	s.Helper()
	s.index++
	results, err := s.Apply([]Entry{{Index: s.index, Data: encode(s, &objectv1.Entry{Operations: []*objectv1.Operation{operation}})}})
	if err != nil {
		s.Fatal(err)
	}
	return results[0].GetResults()[0]
}

// see runs f with the current state.
func (s *store) see(f func(v *View)) {
	s.Helper()
	v := s.View()
	defer v.Close()
	f(v)
}

func (s *store) id() []byte {
	s.ids++
	return binary.BigEndian.AppendUint64([]byte("version "), s.ids)
}

func bucketWith(versioning string) *objectv1.Target {
	return &objectv1.Target{Bucket: "photos", Namespace: "shop", Copies: 2, Versioning: versioning}
}

func hashOf(n byte) []byte { return bytes.Repeat([]byte{n}, hashSize) }

// put puts one chunk of one byte, which the nodes 1 and 2 have.
func (s *store) put(target *objectv1.Target, key, etag string, chunk byte) *objectv1.Result {
	s.Helper()
	return s.do(putOf(target, key, &objectv1.Version{
		Id: s.id(), Etag: etag, Size: 1, Blocks: []*objectv1.Block{{Hash: hashOf(chunk), Size: 1}},
	}, 1, 1, 2))
}

func putOf(target *objectv1.Target, key string, version *objectv1.Version, epoch uint64, nodes ...uint32) *objectv1.Operation {
	put := &objectv1.Put{Target: target, Key: key, Version: version, Epoch: epoch}
	for _, block := range version.GetBlocks() {
		put.Chunks = append(put.GetChunks(), &objectv1.StoredChunk{Hash: block.GetHash(), Size: block.GetSize(), Nodes: nodes})
	}
	return &objectv1.Operation{What: &objectv1.Operation_Put{Put: put}}
}

func (s *store) delete(target *objectv1.Target, key string, version []byte) *objectv1.Result {
	s.Helper()
	return s.do(&objectv1.Operation{What: &objectv1.Operation_Delete{Delete: &objectv1.Delete{
		Target: target, Key: key, Version: version, Marker: s.id(),
	}}})
}

func (s *store) advance(from uint64) {
	s.Helper()
	s.do(&objectv1.Operation{What: &objectv1.Operation_AdvanceEpoch{AdvanceEpoch: &objectv1.AdvanceEpoch{From: from}}})
}

// history is what versions of a key a listing has: their ETags, the newest first, and "-" for delete markers.
func (s *store) history(key string) (etags string) {
	s.Helper()
	s.see(func(v *View) {
		page, err := v.List("photos", ListRequest{Prefix: key, Versions: true, Limit: 100})
		if err != nil {
			s.Fatal(err)
		}
		for _, item := range page.Items {
			etag := item.Version.GetEtag()
			if item.Version.GetDeleteMarker() {
				etag = "-"
			}
			if item.Version.GetNull() {
				etag += "(null)"
			}
			etags = strings.TrimSpace(etags + " " + etag)
		}
	})
	return etags
}

func (s *store) expect(what string, got, want any) {
	s.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s is %v and not %v", what, got, want)
	}
}

func TestVersioningDecidesWhatStays(t *testing.T) {
	s := newStore(t)
	unversioned, enabled, suspended := bucketWith(""), bucketWith("enabled"), bucketWith("suspended")
	s.put(unversioned, "cat", "a", 1)
	s.put(unversioned, "cat", "b", 2)
	s.expect("an unversioned object after two puts", s.history("cat"), "b(null)")
	s.put(enabled, "cat", "c", 3)
	s.put(enabled, "cat", "d", 4)
	s.expect("the history with versioning", s.history("cat"), "d c b(null)")
	s.put(suspended, "cat", "e", 5)
	s.expect("the history after a put with suspended versioning", s.history("cat"), "e(null) d c")
	s.put(suspended, "cat", "f", 6)
	s.expect("the history after another one", s.history("cat"), "f(null) d c")
	s.delete(suspended, "cat", nil)
	s.expect("the history after a deletion with suspended versioning", s.history("cat"), "-(null) d c")
	s.delete(enabled, "cat", nil)
	s.expect("the history after a deletion with versioning", s.history("cat"), "- -(null) d c")
}

func TestDeletingTheCurrentVersionBringsBackTheOneBefore(t *testing.T) {
	s := newStore(t)
	enabled := bucketWith("enabled")
	first := s.put(enabled, "cat", "a", 1).GetVersion()
	s.put(enabled, "cat", "b", 2)
	marker := s.delete(enabled, "cat", nil)
	s.expect("that the deletion replaced an object", marker.GetReplaced(), true)
	s.expect("the history", s.history("cat"), "- b a")
	s.delete(enabled, "cat", marker.GetVersion().GetId())
	s.expect("the history without the marker", s.history("cat"), "b a")
	s.delete(enabled, "cat", first.GetId())
	s.expect("the history without its oldest version", s.history("cat"), "b")
	s.see(func(v *View) {
		current, err := v.Current("photos", "cat")
		if err != nil || current.GetEtag() != "b" {
			t.Errorf("the current version is %v (%v)", current, err)
		}
	})
}

func TestDeletingWhatIsNotThere(t *testing.T) {
	s := newStore(t)
	gone := s.delete(bucketWith(""), "cat", nil)
	if gone.GetRefused() != "" || gone.GetReplaced() || gone.GetVersion() != nil {
		t.Errorf("deleting an absent object had the result %v", gone)
	}
	s.expect("the refusal to delete an absent version", s.delete(bucketWith(""), "cat", s.id()).GetRefused(), RefusedNoVersion)
	s.expect("the history", s.history("cat"), "")
	marker := s.delete(bucketWith("enabled"), "cat", nil)
	if !marker.GetVersion().GetDeleteMarker() || marker.GetReplaced() {
		t.Errorf("with versioning, deleting an absent object had the result %v", marker)
	}
}

func TestConditions(t *testing.T) {
	for _, test := range []struct{ exists, match, noneMatch, want string }{
		{"", "", "*", ""},
		{"", "a", "", RefusedNoKey},
		{"", "*", "", RefusedNoKey},
		{"a", "a", "", ""},
		{"a", "*", "", ""},
		{"a", "b", "", RefusedPrecondition},
		{"a", "", "*", RefusedPrecondition},
		{"a", "", "a", RefusedPrecondition},
		{"a", "", "b", ""},
		{"-", "", "*", ""},
		{"-", "*", "", RefusedNoKey},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			s := newStore(t)
			if test.exists == "-" {
				s.delete(bucketWith("enabled"), "cat", nil)
			} else if test.exists != "" {
				s.put(bucketWith("enabled"), "cat", test.exists, 1)
			}
			operation := putOf(bucketWith("enabled"), "cat", &objectv1.Version{Id: s.id()}, 1)
			operation.GetPut().Condition = &objectv1.Condition{IfMatch: test.match, IfNoneMatch: test.noneMatch}
			s.expect("the refusal", s.do(operation).GetRefused(), test.want)
		})
	}
}

func TestQuotaCountsTheDifferenceOfAReplacedObject(t *testing.T) {
	s := newStore(t)
	target := bucketWith("")
	target.Quota = 10
	put := func(key string, size int64) *objectv1.Result {
		return s.do(putOf(target, key, &objectv1.Version{Id: s.id(), Size: size}, 1))
	}
	s.expect("the refusal of the first object", put("cat", 8).GetRefused(), "")
	over := put("dog", 3)
	if over.GetRefused() != RefusedQuota || over.GetAbout() != "bucket" || over.GetUsed() != 8 || over.GetLimit() != 10 {
		t.Errorf("what exceeds the quota had the result %v", over)
	}
	s.expect("the refusal of a larger object in its place", put("cat", 10).GetRefused(), "")
	target.Quota = 5
	s.expect("the refusal of a smaller object in a bucket that is too full", put("cat", 9).GetRefused(), "")
	target.Quota, target.NamespaceQuota = 0, 9
	target.Bucket = "another bucket"
	s.expect("what exceeds the quota of the namespace is about", put("dog", 1).GetAbout(), "namespace")
}

func TestQuotaCountsPartsOfUploads(t *testing.T) {
	s := newStore(t)
	target := bucketWith("")
	target.Quota = 10
	upload := s.createUpload(target, "cat", 0)
	s.expect("the refusal of a part", s.putPart(target, "cat", upload, 1, 8, "a").GetRefused(), "")
	s.expect("the refusal of a second part", s.putPart(target, "cat", upload, 2, 3, "a").GetRefused(), RefusedQuota)
	s.expect("the refusal of a part in place of the first", s.putPart(target, "cat", upload, 1, 10, "b").GetRefused(), "")
	s.expect("the refusal to complete it", s.complete(target, "cat", upload, s.id(), "b").GetRefused(), "")
	s.see(func(v *View) {
		usage, err := v.Usage("photos")
		if err != nil || usage.GetBytes() != 10 || usage.GetUploadBytes() != 0 || usage.GetUploads() != 0 {
			t.Errorf("afterwards the usage is %v (%v)", usage, err)
		}
	})
}

func (s *store) createUpload(target *objectv1.Target, key string, expires int64) []byte {
	s.Helper()
	upload := &objectv1.Upload{Id: s.id(), Key: key, ExpireTime: expires}
	s.do(&objectv1.Operation{What: &objectv1.Operation_CreateUpload{
		CreateUpload: &objectv1.CreateUpload{Target: target, Upload: upload},
	}})
	return upload.GetId()
}

// putPart puts a part with one block, whose hash is the part's number.
func (s *store) putPart(target *objectv1.Target, key string, upload []byte, number uint32, size int64, etag string) *objectv1.Result {
	s.Helper()
	hash := hashOf(byte(number))
	return s.do(&objectv1.Operation{What: &objectv1.Operation_PutPart{PutPart: &objectv1.PutPart{
		Target: target, Key: key, Upload: upload, Epoch: 1,
		Part: &objectv1.Part{
			Number: number, Size: size, Etag: etag, Blocks: []*objectv1.Block{{Hash: hash, Size: uint32(size)}},
		},
		Chunks: []*objectv1.StoredChunk{{Hash: hash, Size: uint32(size), Nodes: []uint32{1, 2}}},
	}}})
}

// complete completes an upload with parts that have etags, from 1 on.
func (s *store) complete(target *objectv1.Target, key string, upload, version []byte, etags ...string) *objectv1.Result {
	s.Helper()
	complete := &objectv1.CompleteUpload{
		Target: target, Key: key, Upload: upload, Version: &objectv1.Version{Id: version}, Least: 5,
	}
	for i, etag := range etags {
		complete.Parts = append(complete.GetParts(), &objectv1.CompletedPart{Number: uint32(i + 1), Etag: etag})
	}
	return s.do(&objectv1.Operation{What: &objectv1.Operation_CompleteUpload{CompleteUpload: complete}})
}

func TestCompletingAgainGivesTheSameAnswer(t *testing.T) {
	s := newStore(t)
	target, id := bucketWith(""), s.id()
	upload := s.createUpload(target, "cat", 0)
	s.putPart(target, "cat", upload, 1, 5, "a")
	s.putPart(target, "cat", upload, 2, 1, "b")
	first := s.complete(target, "cat", upload, id, "a", "b")
	again := s.complete(target, "cat", upload, id, "a", "b")
	if first.GetRefused() != "" || !proto.Equal(first.GetVersion(), again.GetVersion()) {
		t.Errorf("completing had the result %v, and then %v", first, again)
	}
	s.expect("the refusal to complete it as another version", s.complete(target, "cat", upload, s.id(), "a", "b").GetRefused(), RefusedNoUpload)
	s.see(func(v *View) {
		var offsets []int64
		for placed, err := range v.Blocks(again.GetVersion(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			offsets = append(offsets, placed.Offset)
		}
		s.expect("where the blocks are", offsets, []int64{0, 5})
	})
}

func TestCompletingRefusesPartsThatAreNotAsStored(t *testing.T) {
	s := newStore(t)
	target := bucketWith("")
	upload := s.createUpload(target, "cat", 0)
	s.putPart(target, "cat", upload, 1, 4, "a")
	s.putPart(target, "cat", upload, 2, 4, "b")
	for _, test := range []struct {
		etags []string
		want  string
	}{
		{nil, RefusedBadPart},
		{[]string{"a", "wrong"}, RefusedBadPart},
		{[]string{"a", "b", "c"}, RefusedBadPart},
		{[]string{"a", "b"}, RefusedSmallPart},
		{[]string{"a"}, ""}, // the last part may be small
	} {
		s.expect(fmt.Sprint("the refusal of ", test.etags), s.complete(target, "cat", upload, s.id(), test.etags...).GetRefused(), test.want)
	}
}

func TestChunksThatNothingRefersToDieAndComeBack(t *testing.T) {
	s := newStore(t)
	target, hash := bucketWith(""), Hash(hashOf(1))
	s.put(target, "cat", "a", 1)
	s.put(target, "dog", "a", 1)
	s.delete(target, "cat", nil)
	s.see(func(v *View) {
		chunk, err := v.Chunk(hash)
		s.expect("the chunk of the object that is left", fmt.Sprint(chunk.GetReferences(), chunk.GetNodes(), err), "1 [1 2] <nil>")
	})
	s.delete(target, "dog", nil)
	died := func() (dead []FoundDead) {
		s.see(func(v *View) {
			var err error
			if dead, err = v.Dead(v.Epoch(), Hash{}, 10); err != nil {
				t.Fatal(err)
			}
		})
		return dead
	}
	if dead := died(); len(dead) != 1 || dead[0].Hash != hash || dead[0].Dead.GetEpoch() != 1 {
		t.Fatalf("%v died", dead)
	}
	again := &objectv1.Version{Id: s.id(), Size: 1, Blocks: []*objectv1.Block{{Hash: hash[:], Size: 1}}}
	s.do(putOf(target, "cat", again, 1, 3))
	s.see(func(v *View) {
		chunk, err := v.Chunk(hash)
		s.expect("the nodes of a chunk that came back soon", fmt.Sprint(chunk.GetNodes(), err), "[1 2 3] <nil>")
	})
	s.expect("number of dead chunks", len(died()), 0)
	s.delete(target, "cat", nil)
	s.advance(1)
	s.advance(2)
	late := &objectv1.Version{Id: s.id(), Size: 1, Blocks: []*objectv1.Block{{Hash: hash[:], Size: 1}}}
	s.expect("the refusal of a chunk that may be deleted now", s.do(putOf(target, "cat", late, 3)).GetRefused(), RefusedEpoch)
	s.do(putOf(target, "cat", late, 3, 3))
	s.see(func(v *View) {
		chunk, err := v.Chunk(hash)
		s.expect("the nodes of a chunk that was written again", fmt.Sprint(chunk.GetNodes(), err), "[3] <nil>")
	})
}

func TestOldEpochIsRefused(t *testing.T) {
	s := newStore(t)
	put := func(epoch uint64) string {
		version := &objectv1.Version{Id: s.id(), Blocks: []*objectv1.Block{{Hash: hashOf(1)}}}
		return s.do(putOf(bucketWith(""), "cat", version, epoch, 1)).GetRefused()
	}
	s.advance(1)
	s.expect("the refusal of the epoch before", put(1), "")
	s.advance(2)
	s.advance(2) // says nothing new
	s.expect("the refusal of an older one", put(1), RefusedEpoch)
	s.expect("the refusal of the current one", put(3), "")
}

func TestForgottenNodeLosesItsChunksStepByStep(t *testing.T) {
	s := newStore(t)
	for i := range forgetStep + 1 {
		var hash Hash
		binary.BigEndian.PutUint32(hash[:], uint32(i)+1)
		version := &objectv1.Version{Id: s.id(), Blocks: []*objectv1.Block{{Hash: hash[:]}}}
		s.do(putOf(bucketWith(""), fmt.Sprint(i), version, 1, 1, 2))
	}
	forget := &objectv1.Operation{What: &objectv1.Operation_ForgetNode{ForgetNode: &objectv1.ForgetNode{Uid: "node 2"}}}
	s.expect("the refusal at first", s.do(forget).GetRefused(), RefusedNotEmpty)
	s.expect("the refusal then", s.do(forget).GetRefused(), "")
	register := &objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: "node 2"}}}
	s.expect("the number of the node when it comes back", s.do(register).GetNode(), 4)
	s.see(func(v *View) {
		totals, err := v.Totals()
		s.expect("how many chunks are short", fmt.Sprint(totals.Short, err), fmt.Sprint(forgetStep+1, " <nil>"))
	})
}

func TestClosedBucketTakesNothing(t *testing.T) {
	s := newStore(t)
	target := bucketWith("")
	closing := &objectv1.Operation{What: &objectv1.Operation_CloseBucket{CloseBucket: &objectv1.CloseBucket{Target: target}}}
	s.put(target, "cat", "a", 1)
	s.expect("the refusal to close it", s.do(closing).GetRefused(), RefusedNotEmpty)
	s.delete(target, "cat", nil)
	upload := s.createUpload(target, "cat", 0)
	s.expect("the refusal to close it with an upload", s.do(closing).GetRefused(), RefusedNotEmpty)
	s.do(&objectv1.Operation{What: &objectv1.Operation_AbortUpload{AbortUpload: &objectv1.AbortUpload{Target: target, Key: "cat", Upload: upload}}})
	s.expect("the refusal to close it empty", s.do(closing).GetRefused(), "")
	s.expect("the refusal of a put", s.put(target, "cat", "a", 1).GetRefused(), RefusedNoBucket)
}

func TestExpiredThingsAreRemovedByTheOperationsThatAreReturned(t *testing.T) {
	s := newStore(t)
	target := bucketWith("enabled")
	s.do(putOf(target, "cat", &objectv1.Version{Id: s.id(), ExpireTime: 5}, 1))
	s.do(putOf(target, "later", &objectv1.Version{Id: s.id(), ExpireTime: 6}, 1))
	upload := s.createUpload(target, "dog", 5)
	s.putPart(target, "dog", upload, 1, 5, "a")
	list := s.id()
	for number := range uint32(3) {
		s.do(&objectv1.Operation{What: &objectv1.Operation_StageBlocks{StageBlocks: &objectv1.StageBlocks{
			Target: target, List: list, Number: number, ExpireTime: 5, Epoch: 1,
			Blocks: []*objectv1.Block{{Hash: hashOf(9), Size: 1}},
			Chunks: []*objectv1.StoredChunk{{Hash: hashOf(9), Size: 1, Nodes: []uint32{1}}},
		}}})
	}
	expired := func(now int64) (operations []*objectv1.Operation) {
		s.see(func(v *View) {
			all, err := v.Expired(now, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range all {
				one.Operation.Time = now
				operations = append(operations, one.Operation)
			}
		})
		return operations
	}
	s.expect("what has expired too early", len(expired(4)), 0)
	s.expect("what has expired", len(expired(5)), 3)
	for _, operation := range expired(5) {
		s.expect("the refusal", s.do(operation).GetRefused(), "")
	}
	s.see(func(v *View) {
		lists, err := v.Unreferenced(100)
		if err != nil {
			t.Fatal(err)
		}
		s.expect("how many lists are left of the staged one and of the part", len(lists), 2+1)
		s.do(&objectv1.Operation{What: &objectv1.Operation_Release{Release: &objectv1.Release{Lists: lists}}})
	})
	s.see(func(v *View) {
		totals, err := v.Totals()
		if err != nil || totals.Chunks != 0 || totals.Dead != 2 || totals.Versions != 1 {
			t.Errorf("the totals afterwards are %+v (%v)", totals, err)
		}
	})
	s.expect("what has expired afterwards", len(expired(5)), 0)
}

func TestListingSeeksPastACommonPrefix(t *testing.T) {
	s := newStore(t)
	for i := range 2000 {
		s.do(putOf(bucketWith(""), fmt.Sprintf("folder/%04d", i), &objectv1.Version{Id: s.id()}, 1))
	}
	s.do(putOf(bucketWith(""), "zebra", &objectv1.Version{Id: s.id()}, 1))
	s.see(func(v *View) {
		p, err := v.newPage("photos", ListRequest{Delimiter: "/", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.fill(); err != nil {
			t.Fatal(err)
		}
		if items := p.listing.Items; len(items) != 2 || items[0].Key != "folder/" || items[1].Key != "zebra" {
			t.Errorf("the page has %v", items)
		}
		steps := p.current.Stats()
		if n := steps.ForwardStepCount[pebble.InternalIterCall] + steps.ForwardStepCount[pebble.InterfaceCall]; n > 10 {
			t.Errorf("the listing of 2 items took %d steps", n)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
}

func TestEntryThatIsNotUnderstoodStopsTheStore(t *testing.T) {
	put := putOf(bucketWith(""), "cat", &objectv1.Version{Id: []byte("version 00000001")}, 1)
	good := &objectv1.Entry{Operations: []*objectv1.Operation{put}}
	newer := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
	for name, data := range map[string][]byte{
		"damaged":                []byte("damaged"),
		"an unknown field":       append(encode(t, good), newer...),
		"an unknown operation":   encode(t, &objectv1.Entry{Operations: []*objectv1.Operation{{Time: 1}}}),
		"an unknown deep field":  encodeWith(t, good, func(e *objectv1.Entry) { e.GetOperations()[0].GetPut().GetVersion().ProtoReflect().SetUnknown(newer) }),
		"an unknown deep target": encodeWith(t, good, func(e *objectv1.Entry) { e.GetOperations()[0].GetPut().GetTarget().ProtoReflect().SetUnknown(newer) }),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			next := s.index + 1
			results, err := s.Apply([]Entry{{next, encode(t, good)}, {next + 1, data}, {next + 2, encode(t, good)}})
			if err == nil || len(results) != 1 || s.Applied() != next {
				t.Fatalf("there are %d results, and the index is %d: %v", len(results), s.Applied(), err)
			}
			if _, again := s.Apply([]Entry{{next + 2, encode(t, good)}}); !errors.Is(again, err) {
				t.Errorf("then another entry was applied: %v", again)
			}
		})
	}
}

func encodeWith(t *testing.T, entry *objectv1.Entry, change func(*objectv1.Entry)) []byte {
	t.Helper()
	entry = proto.CloneOf(entry)
	change(entry)
	return encode(t, entry)
}

func TestMalformedOperationIsRefusedAlone(t *testing.T) {
	s := newStore(t)
	good := &objectv1.Version{Id: s.id()}
	for about, operation := range map[string]*objectv1.Operation{
		"key":     putOf(bucketWith(""), strings.Repeat("k", 1025), good, 1),
		"version": putOf(bucketWith(""), "cat", &objectv1.Version{Id: []byte("short")}, 1),
		"hash":    putOf(bucketWith(""), "cat", &objectv1.Version{Id: s.id(), Blocks: []*objectv1.Block{{Hash: []byte("short")}}}, 1),
		"size":    putOf(bucketWith(""), "cat", &objectv1.Version{Id: s.id(), Size: -1}, 1),
		"bucket":  putOf(nil, "cat", good, 1),
	} {
		result := s.do(operation)
		if result.GetRefused() != RefusedMalformed || result.GetAbout() != about {
			t.Errorf("a wrong %s had the result %v", about, result)
		}
	}
	s.expect("the refusal of the next one", s.do(putOf(bucketWith(""), "cat", good, 1)).GetRefused(), "")
}

func TestSecondProcessIsRefused(t *testing.T) {
	s := newStore(t)
	_, err := Open(Options{Dir: s.folder.dir})
	if err == nil || !strings.Contains(err.Error(), s.folder.dir) {
		t.Errorf("a second one opened the same folder: %v", err)
	}
}

func TestClosedStoreSaysSo(t *testing.T) {
	n, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	early := n.View()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := early.Current("photos", "cat"); err != nil {
		t.Errorf("a view that was open does not work any more: %v", err)
	}
	early.Close()
	late := n.View()
	defer late.Close()
	_, viewed := late.Current("photos", "cat")
	_, applied := n.Apply(nil)
	_, copied := n.Checkpoint(filepath.Join(t.TempDir(), "copy"))
	for _, err := range []error{viewed, applied, copied, n.Restore(t.TempDir())} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("a closed store says %v", err)
		}
	}
}
