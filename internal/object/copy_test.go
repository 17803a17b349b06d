package object_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

func TestCopyMovesNoContent(t *testing.T) {
	for _, size := range []int{0, 100, 9 << 20, 40 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := newCluster(t, "a", "b")
			data := content(size, 1)
			source := c.put("k", data)
			_, before := c.disks.Calls("uid-a")
			copied, err := c.store.Copy(t.Context(), photos, object.PutRequest{Key: "k2"}, object.Source{Bucket: photos, Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			gets, puts := c.disks.Calls("uid-a")
			if gets != 0 || puts != before || copied.Version.GetEtag() != source.Version.GetEtag() {
				t.Errorf("copying got %d chunks and put %d; the ETag is %s", gets, puts-before, copied.Version.GetEtag())
			}
			if _, err := c.store.Delete(t.Context(), photos, "k", "", object.Condition{}); err != nil {
				t.Fatal(err)
			}
			c.has("k2", data)
		})
	}
}

func TestCopyOfARangeHasItsBytes(t *testing.T) {
	c := newCluster(t, "a")
	data := content(3*object.ChunkSize+7, 1)
	c.put("k", data)
	rapid.Check(t, func(t *rapid.T) {
		near := rapid.SampledFrom([]int{0, object.ChunkSize, 2 * object.ChunkSize}).Draw(t, "near")
		offset := max(near+rapid.IntRange(-3, 3).Draw(t, "offset"), 0)
		length := rapid.IntRange(1, len(data)-offset).Draw(t, "length")
		o, err := c.store.Copy(c.t.Context(), photos, object.PutRequest{Key: "range"}, object.Source{
			Bucket: photos, Key: "k", Offset: int64(offset), Length: int64(length),
		})
		if err != nil || o.Version.GetSize() != int64(length) || len(o.Version.GetEtag()) != 32 {
			t.Fatal(o, err)
		}
		if !bytes.Equal(c.get("range"), data[offset:offset+length]) {
			t.Fatal("the copy has other bytes")
		}
	})
}

func TestCopyKeepsOrReplacesWhatIsBesideTheContent(t *testing.T) {
	c := newCluster(t, "a")
	request := object.PutRequest{
		Key: "k", Body: bytes.NewReader([]byte("x")), Size: 1, Headers: &objectv1.Headers{ContentType: "image/jpeg"}, Tags: map[string]string{"a": "b"},
	}
	if _, err := c.store.Put(t.Context(), photos, request); err != nil {
		t.Fatal(err)
	}
	from := object.Source{Bucket: photos, Key: "k"}
	kept, err := c.store.Copy(t.Context(), photos, object.PutRequest{Key: "kept"}, from)
	if err != nil || kept.Version.GetHeaders().GetContentType() != "image/jpeg" || kept.Version.GetTags()["a"] != "b" {
		t.Error(kept, err)
	}
	replaced, err := c.store.Copy(t.Context(), photos, object.PutRequest{
		Key: "k", Headers: &objectv1.Headers{ContentType: "text/plain"}, Tags: map[string]string{},
	}, from)
	if err != nil || replaced.Version.GetHeaders().GetContentType() != "text/plain" || len(replaced.Version.GetTags()) != 0 {
		t.Error(replaced, err)
	}
	c.has("k", []byte("x"))
}

func TestCopyOfSomethingElseIsRefused(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", []byte("12345"))
	for name, test := range map[string]struct {
		from object.Source
		want error
	}{
		"absent":     {object.Source{Key: "other"}, object.ErrNoKey},
		"no version": {object.Source{Key: "k", VersionID: "00000000000000000000000000000001"}, object.ErrNoVersion},
		"bad id":     {object.Source{Key: "k", VersionID: "../k"}, object.ErrNoVersion},
		"etag":       {object.Source{Key: "k", ETag: "other"}, object.ErrPrecondition},
		"range":      {object.Source{Key: "k", Offset: 3, Length: 3}, object.ErrBadRange},
		"begin":      {object.Source{Key: "k", Offset: 6}, object.ErrBadRange},
	} {
		test.from.Bucket = photos
		if _, err := c.store.Copy(t.Context(), photos, object.PutRequest{Key: "k2"}, test.from); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestCopyOutlivesEpochsThatPass(t *testing.T) {
	c := newCluster(t, "a", "b")
	data := content(9<<20, 1)
	c.put("k", data)
	passed := false
	c.names.Before(func(e *objectv1.Entry) (bool, error) {
		if e.GetOperations()[0].GetPut() != nil && !passed {
			passed = true
			e.Operations[0].GetPut().Epoch = 0 // as if many epochs had passed since the source was looked up
		}
		return true, nil
	})
	if _, err := c.store.Copy(t.Context(), photos, object.PutRequest{Key: "k2"}, object.Source{Bucket: photos, Key: "k"}); err != nil {
		t.Fatal(err)
	}
	c.has("k2", data)
}
