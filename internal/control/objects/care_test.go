package objects_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

var discard = slog.New(slog.DiscardHandler)

func TestScrubbedDamageIsReplaced(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		for i, hash := range w.places()["uid-b"] {
			if i%2 == 0 {
				w.disks.Corrupt("uid-b", hash)
			}
		}
		var damaged int64
		err := w.loops.Scrub(context.Background(), nil, 0, func(p objects.Progress) {
			if p.Finished {
				damaged += p.Damaged
			}
		})
		if err != nil || damaged == 0 {
			t.Fatalf("the scrub found %d damaged chunks: %v", damaged, err)
		}
		w.pass(time.Minute)
		w.all(many, 2)
		if !w.told(objects.DataDamaged) {
			t.Error("nobody was told of the damage")
		}
	})
}

func TestNodesAreScrubbedEveryWeek(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		w.fill(many)
		hash := w.places()["uid-b"][0]
		for _, uid := range []string{"uid-a", "uid-b"} {
			w.disks.Change(uid, func(n *object.Node) { n.Chunks, n.Scrubbed = many, time.Now() })
		}
		w.disks.Corrupt("uid-b", hash)
		w.pass(6 * 24 * time.Hour)
		if w.disks.Has("uid-b", hash) {
			t.Error("a chunk that nobody has read was replaced before a week had passed")
		}
		w.pass(2 * 24 * time.Hour)
		w.all(many, 2)
	})
}

func TestMissingCopiesAreNoticed(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		for _, hash := range w.places()["uid-c"] {
			w.disks.Lose("uid-c", hash)
		}
		w.pass(25 * time.Hour)
		w.all(many, 2)
		w.agrees("a", "b", "c")
	})
}

// A node has copies that the names do not list, because nobody could tell them.
func TestUnknownCopiesAreFound(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		w.fill(many)
		w.cut("a") // so that nobody can copy them
		lost := w.places()["uid-b"]
		var changes []*objectv1.Located
		w.view(func(v *names.View) error {
			nodes, err := v.Nodes()
			for i := range lost {
				changes = append(changes, &objectv1.Located{Hash: lost[i][:], Remove: []uint32{nodes["uid-b"]}})
			}
			return err
		})
		w.propose(&objectv1.Operation{What: &objectv1.Operation_Locate{Locate: &objectv1.Locate{Chunks: changes}}})
		if w.on("b") != 0 {
			t.Fatal("the names still list the copies")
		}
		w.pass(25 * time.Hour)
		if w.on("b") != many {
			t.Errorf("the names list %d of %d copies", w.on("b"), many)
		}
	})
}

func (w *world) propose(ops ...*objectv1.Operation) []*objectv1.Result {
	w.t.Helper()
	for _, op := range ops {
		op.Time = time.Now().UnixNano()
	}
	results, err := w.names.Propose(context.Background(), &objectv1.Entry{Operations: ops})
	if err != nil {
		w.t.Fatal(err)
	}
	return results.GetResults()
}

func TestGarbageGoesAfterTwoEpochs(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.put("stays", 5<<20, 99)
		for i := range many {
			w.delete("object-" + itoa(i))
		}
		if dead := w.totals().Dead; dead != many {
			t.Fatalf("%d chunks are dead", dead)
		}
		w.pass(objects.DefaultEpoch)
		if dead := w.totals().Dead; dead != many {
			t.Errorf("garbage goes after one epoch: %d are left", dead)
		}
		w.pass(2 * objects.DefaultEpoch)
		if dead := w.totals().Dead; dead != 0 {
			t.Errorf("%d dead chunks are left", dead)
		}
		w.all(2, 2)
		w.agrees("a", "b", "c")
		w.has("stays", 5<<20, 99)
	})
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}

// A node that is away while garbage is deleted must not bring it back.
func TestGarbageOfAbsentNodesGoesWhenTheyReturn(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		w.fill(many)
		w.cut("b")
		for i := range many {
			w.delete("object-" + itoa(i))
		}
		w.pass(time.Hour)
		if totals := w.totals(); totals.Dead != 0 || w.disks.Count("uid-a") != 0 {
			t.Errorf("%d dead chunks and %d copies are left", totals.Dead, w.disks.Count("uid-a"))
		}
		w.join("b")
		w.pass(time.Hour)
		w.agrees("a", "b")
	})
}

// slowBody is content that arrives in pieces, hours apart.
type slowBody struct {
	pieces [][]byte
	pause  time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.pieces[0])
	if b.pieces[0] = b.pieces[0][n:]; len(b.pieces[0]) == 0 {
		b.pieces = b.pieces[1:]
		time.Sleep(b.pause)
	}
	return n, nil
}

// An upload that takes hours keeps what it has written, also content that was deleted meanwhile.
func TestSlowUploadKeepsItsChunks(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		const piece = 4 << 20
		data := content(4*piece, 1)
		w.putFrom("same", bytes.NewReader(data[:piece]))
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.putFrom("slow", &slowBody{pause: 55 * time.Minute, pieces: [][]byte{
				data[:piece], data[piece : 2*piece], data[2*piece : 3*piece], data[3*piece:],
			}})
		}()
		w.pass(time.Minute)
		w.delete("same")
		<-done
		synctest.Wait()
		w.has("slow", 4*piece, 1)
		w.pass(3 * time.Hour)
		w.has("slow", 4*piece, 1)
		w.all(4, 2)
	})
}

func TestExpiredObjectsAndUploadsGo(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		bucket := photos
		bucket.Expiry = []object.ExpiryRule{{Prefix: "tmp/", After: 24 * time.Hour}}
		bucket.UploadTTL = 48 * time.Hour
		for _, key := range []string{"tmp/a", "keep"} {
			request := object.PutRequest{Key: key, Body: bytes.NewReader(content(9<<20, 7)), Size: 9 << 20}
			if _, err := w.store.Put(context.Background(), bucket, request); err != nil {
				t.Fatal(err)
			}
		}
		upload, err := w.store.CreateUpload(context.Background(), bucket, object.UploadRequest{Key: "big"})
		if err != nil {
			t.Fatal(err)
		}
		part := object.Part{Key: "big", Upload: hex.EncodeToString(upload.GetId()), Number: 1, Body: bytes.NewReader(content(40<<20, 8)), Size: 40 << 20}
		if _, err := w.store.PutPart(context.Background(), bucket, part); err != nil {
			t.Fatal(err)
		}
		w.pass(25 * time.Hour)
		if objects := w.totals().Objects; objects != 1 {
			t.Errorf("%d objects are left after a day", objects)
		}
		w.pass(25 * time.Hour)
		if totals := w.totals(); totals.Dead != 0 || totals.Chunks != 3 {
			t.Errorf("%+v is left of the upload", totals)
		}
		w.all(3, 2)
		w.agrees("a", "b")
	})
}
