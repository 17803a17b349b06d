package object_test

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"testing"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

const leastPart = 5 << 20

// upload is an upload in parts that a test makes.
type upload struct {
	*cluster
	key, id string
}

func (c *cluster) begin(key string) upload {
	c.t.Helper()
	u, err := c.store.CreateUpload(c.t.Context(), photos, object.UploadRequest{Key: key, Headers: &objectv1.Headers{ContentType: "text/plain"}})
	if err != nil {
		c.t.Fatal(err)
	}
	return upload{c, key, object.UploadID(u)}
}

func (u upload) part(number int, data []byte) *objectv1.CompletedPart {
	u.t.Helper()
	p, err := u.store.PutPart(u.t.Context(), photos, object.Part{
		Key: u.key, Upload: u.id, Number: number, Body: bytes.NewReader(data), Size: int64(len(data)),
	})
	if err != nil {
		u.t.Fatal(err)
	}
	return &objectv1.CompletedPart{Number: p.GetNumber(), Etag: p.GetEtag()}
}

func (u upload) complete(parts ...*objectv1.CompletedPart) (object.Object, error) {
	return u.store.CompleteUpload(u.t.Context(), photos, object.CompleteRequest{Key: u.key, Upload: u.id, Parts: parts, Size: -1})
}

func TestPartsBecomeOneObjectInTheirOrder(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	u := c.begin("k")
	small, large, last := content(leastPart, 1), content(40<<20, 2), content(100, 3)
	three := u.part(3, last)
	u.part(2, content(leastPart, 4))
	one := u.part(1, small)
	two := u.part(2, large) // in place of the other one
	o, err := u.complete(one, two, three)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Join([][]byte{small, large, last}, nil)
	c.has("k", want)
	digest := md5.New()
	for _, data := range [][]byte{small, large, last} {
		sum := md5.Sum(data)
		digest.Write(sum[:])
	}
	if etag := fmt.Sprintf("%x-3", digest.Sum(nil)); o.Version.GetEtag() != etag || o.Version.GetSize() != int64(len(want)) {
		t.Errorf("the object has ETag %s and %d bytes, want %s and %d", o.Version.GetEtag(), o.Version.GetSize(), etag, len(want))
	}
	if o.Version.GetHeaders().GetContentType() != "text/plain" {
		t.Error("the headers of the upload are lost")
	}
	again, err := u.complete(one, two, three)
	if err != nil || !bytes.Equal(again.Version.GetId(), o.Version.GetId()) {
		t.Errorf("completing it again: %v, want the same version", err)
	}
}

func TestWrongPartsAreRefused(t *testing.T) {
	c := newCluster(t, "a")
	u := c.begin("k")
	one, two := u.part(1, content(leastPart, 1)), u.part(2, content(100, 2))
	three := u.part(3, content(100, 3))
	for name, test := range map[string]struct {
		parts []*objectv1.CompletedPart
		want  error
	}{
		"none":       {nil, object.ErrBadPart},
		"order":      {[]*objectv1.CompletedPart{two, one}, object.ErrBadPart},
		"twice":      {[]*objectv1.CompletedPart{one, one}, object.ErrBadPart},
		"absent":     {[]*objectv1.CompletedPart{one, {Number: 9, Etag: two.GetEtag()}}, object.ErrBadPart},
		"wrong etag": {[]*objectv1.CompletedPart{one, {Number: 2, Etag: one.GetEtag()}}, object.ErrBadPart},
		"small":      {[]*objectv1.CompletedPart{one, two, three}, object.ErrSmallPart},
	} {
		if _, err := u.complete(test.parts...); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	request := object.CompleteRequest{Key: "k", Upload: u.id, Parts: []*objectv1.CompletedPart{one, two}, Size: 1}
	if _, err := c.store.CompleteUpload(t.Context(), photos, request); !errors.Is(err, object.ErrIncomplete) {
		t.Errorf("wrong size: %v", err)
	}
	if _, err := u.complete(one, two); err != nil {
		t.Errorf("after refusals: %v", err)
	}
}

func TestPartOfAnUploadThatIsGoneIsRefused(t *testing.T) {
	c := newCluster(t, "a")
	u := c.begin("k")
	for name, p := range map[string]object.Part{
		"other key": {Key: "k2", Upload: u.id, Number: 1},
		"other id":  {Key: "k", Upload: "00000000000000000000000000000001", Number: 1},
		"bad id":    {Key: "k", Upload: "x", Number: 1},
	} {
		if _, err := c.store.PutPart(t.Context(), photos, p); !errors.Is(err, object.ErrNoUpload) {
			t.Errorf("%s: %v, want ErrNoUpload", name, err)
		}
	}
	for _, number := range []int{0, -1, 10_001} {
		if _, err := c.store.PutPart(t.Context(), photos, object.Part{Key: "k", Upload: u.id, Number: number}); !errors.Is(err, object.ErrBadPart) {
			t.Errorf("part %d: %v, want ErrBadPart", number, err)
		}
	}
	aborting := io.MultiReader(bytes.NewReader(content(9<<20, 1)), readerFunc(func([]byte) (int, error) {
		if err := c.store.AbortUpload(t.Context(), photos, "k", u.id); err != nil {
			t.Error(err)
		}
		return 0, io.EOF
	}))
	if _, err := c.store.PutPart(t.Context(), photos, object.Part{Key: "k", Upload: u.id, Number: 1, Body: aborting, Size: 9 << 20}); !errors.Is(err, object.ErrNoUpload) {
		t.Errorf("a part of an upload that was aborted meanwhile: %v, want ErrNoUpload", err)
	}
	if err := c.store.AbortUpload(t.Context(), photos, "k", u.id); !errors.Is(err, object.ErrNoUpload) {
		t.Errorf("aborting again: %v, want ErrNoUpload", err)
	}
}

func TestUploadsAndPartsAreListedInPages(t *testing.T) {
	c := newCluster(t, "a")
	first, second, other := c.begin("k"), c.begin("k"), c.begin("l")
	list, more, err := c.store.Uploads(t.Context(), photos, "", "", "", 2)
	if err != nil || !more || len(list) != 2 || object.UploadID(list[0]) != first.id || object.UploadID(list[1]) != second.id {
		t.Errorf("the first page has %v, %v, %v; want both uploads of k in the order of their begin", list, more, err)
	}
	list, more, err = c.store.Uploads(t.Context(), photos, "", "k", second.id, 2)
	if err != nil || more || len(list) != 1 || object.UploadID(list[0]) != other.id {
		t.Errorf("the second page has %v, %v, %v", list, more, err)
	}
	for number := 1; number <= 3; number++ {
		first.part(number, []byte{byte(number)})
	}
	u, parts, more, err := c.store.Parts(t.Context(), photos, "k", first.id, 1, 1)
	if err != nil || !more || len(parts) != 1 || parts[0].GetNumber() != 2 || object.UploadID(u) != first.id {
		t.Errorf("the page of parts after 1 has %v, %v, %v", parts, more, err)
	}
}

func TestPartsCanBeCopied(t *testing.T) {
	c := newCluster(t, "a", "b")
	data := content(20<<20, 1)
	source := c.put("source", data)
	u := c.begin("k")
	from := object.Source{Bucket: photos, Key: "source"}
	whole, err := c.store.CopyPart(t.Context(), photos, object.Part{Key: "k", Upload: u.id, Number: 1}, from)
	if err != nil || whole.GetEtag() != source.Version.GetEtag() {
		t.Errorf("copying all of an object: ETag %s, %v; want that of the object", whole.GetEtag(), err)
	}
	from.Offset, from.Length = 3, 6<<20
	some, err := c.store.CopyPart(t.Context(), photos, object.Part{Key: "k", Upload: u.id, Number: 2}, from)
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.complete(&objectv1.CompletedPart{Number: 1, Etag: whole.GetEtag()}, &objectv1.CompletedPart{Number: 2, Etag: some.GetEtag()})
	if err != nil {
		t.Fatal(err)
	}
	c.has("k", append(bytes.Clone(data), data[3:3+6<<20]...))
}

func TestLostPartIsFoundOut(t *testing.T) {
	c := newCluster(t, "a")
	u := c.begin("k")
	c.put("before", []byte("x")) // so that the node has a number
	c.names.Before(func(*objectv1.Entry) (bool, error) { return true, errors.New("the connection broke") })
	part := u.part(1, content(100, 1))
	if _, err := u.complete(part); err != nil {
		t.Error(err)
	}
	c.has("k", content(100, 1))
}

func TestAnUploadGoesOnForItsAuthor(t *testing.T) {
	c := newCluster(t, "a")
	begin := func(key, author, resume string) string {
		u, err := c.store.CreateUpload(t.Context(), photos, object.UploadRequest{Key: key, Author: author, Resume: resume})
		if err != nil {
			t.Fatal(err)
		}
		return object.UploadID(u)
	}
	begin("cat.jpg.old", "ada", "file 1")
	first := begin("cat.jpg", "ada", "file 1")
	if again := begin("cat.jpg", "ada", "file 1"); again != first {
		t.Errorf("the upload of the same file is %s, want %s", again, first)
	}
	for _, other := range []string{begin("cat.jpg", "ada", "file 2"), begin("cat.jpg", "bob", "file 1"), begin("cat.jpg", "ada", "")} {
		if other == first {
			t.Errorf("an upload of other content or of another author has gone on with %s", first)
		}
	}
}
