package names

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

// FuzzApply proves that no entry makes the store panic, or read what it has written as damaged.
func FuzzApply(f *testing.F) {
	id := []byte("0123456789abcdef")
	target := &objectv1.Target{Bucket: "photos", Copies: 2, Versioning: versioningEnabled}
	block := []*objectv1.Block{{Hash: hashOf(1), Size: 1}}
	chunk := []*objectv1.StoredChunk{{Hash: hashOf(1), Nodes: []uint32{1}}}
	for _, operation := range []*objectv1.Operation{
		{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: "a"}}},
		{What: &objectv1.Operation_Put{Put: &objectv1.Put{
			Target: target, Key: "cat", Epoch: 1, Chunks: chunk, Version: &objectv1.Version{Id: id, Blocks: block, ExpireTime: 1},
		}}},
		{What: &objectv1.Operation_Delete{Delete: &objectv1.Delete{Target: target, Key: "cat", Marker: id}}},
		{What: &objectv1.Operation_StageBlocks{StageBlocks: &objectv1.StageBlocks{
			Target: target, List: id, Blocks: block, Chunks: chunk, Epoch: 1, ExpireTime: 1,
		}}},
		{What: &objectv1.Operation_CreateUpload{CreateUpload: &objectv1.CreateUpload{
			Target: target, Upload: &objectv1.Upload{Id: id, Key: "cat"},
		}}},
		{What: &objectv1.Operation_PutPart{PutPart: &objectv1.PutPart{
			Target: target, Key: "cat", Upload: id, Part: &objectv1.Part{Number: 1, Segment: &objectv1.Segment{List: id, Lists: 1}},
		}}},
		{What: &objectv1.Operation_CompleteUpload{CompleteUpload: &objectv1.CompleteUpload{
			Target: target, Key: "cat", Upload: id, Version: &objectv1.Version{Id: id}, Parts: []*objectv1.CompletedPart{{Number: 1}},
		}}},
		{What: &objectv1.Operation_Release{Release: &objectv1.Release{Lists: []*objectv1.ReleasedList{{List: id}}}}, Time: 1},
		{What: &objectv1.Operation_Locate{Locate: &objectv1.Locate{Chunks: []*objectv1.Located{{Hash: hashOf(1), Add: []uint32{1}}}}}},
		{What: &objectv1.Operation_ForgetNode{ForgetNode: &objectv1.ForgetNode{Uid: "a"}}},
		{What: &objectv1.Operation_AdvanceEpoch{AdvanceEpoch: &objectv1.AdvanceEpoch{From: 1}}},
		{What: &objectv1.Operation_Forget{Forget: &objectv1.Forget{Hashes: [][]byte{hashOf(1)}}}},
		{What: &objectv1.Operation_CloseBucket{CloseBucket: &objectv1.CloseBucket{Target: target}}},
	} {
		f.Add(encode(f, &objectv1.Entry{Operations: []*objectv1.Operation{operation, operation}}), []byte(nil))
	}
	f.Add([]byte("damaged"), []byte{0xff})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		n, err := Open(Options{Dir: "/names", files: vfs.NewMem(), Cache: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}()
		register := &objectv1.Operation{What: &objectv1.Operation_RegisterNode{RegisterNode: &objectv1.RegisterNode{Uid: "node"}}}
		entries := []Entry{{1, encode(t, &objectv1.Entry{Operations: []*objectv1.Operation{register}})}, {2, first}, {3, second}, {4, first}}
		results, err := n.Apply(entries)
		if want := uint64(len(results)); n.Applied() != want || err == nil && want != 4 {
			t.Errorf("there are %d results, and the index is %d (%v)", want, n.Applied(), err)
		}
		for _, entry := range entries[1:n.Applied()] {
			if _, err := decodeEntry(entry.Data); err != nil {
				t.Errorf("entry %d was applied: %v", entry.Index, err)
			}
		}
		if _, broken := decodeEntry(first); broken == nil && n.Applied() == 1 {
			t.Errorf("an entry that is understood was not applied: %v", err)
		}
		v := n.View()
		defer v.Close()
		for _, versions := range []bool{false, true} {
			if _, err := v.List("photos", ListRequest{Versions: versions, Limit: 10}); err != nil {
				t.Error(err)
			}
		}
	})
}
