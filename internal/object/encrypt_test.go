package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// marker is what no node may see of an encrypted object.
const marker = "the-plaintext-of-a-secret-photo;"

// encrypted is a bucket with a key. Equal names make equal keys.
func encrypted(t testing.TB, name string) object.Bucket {
	t.Helper()
	key, err := object.NewKey("key-of-"+name, content(object.KeySize, uint64(len(name))))
	if err != nil {
		t.Fatal(err)
	}
	b := object.Bucket{UID: "uid-of-" + name, Name: name, Namespace: "shop", NamespaceUID: "namespace-1", Encryption: "key-of-" + name}
	b.Keys = func(_ context.Context, id string) (*object.Key, error) {
		if id != "key-of-"+name {
			return nil, object.ErrKeyLost
		}
		return key, nil
	}
	return b
}

// plain is the bucket after its encryption was turned off.
func plain(b object.Bucket) object.Bucket {
	b.Encryption = ""
	return b
}

// seen returns how many chunks of a node have the marker in them.
func (c *cluster) seen(node string) (chunks int) {
	c.t.Helper()
	page, _, err := c.disks.List(c.t.Context(), node, object.Hash{}, 10_000)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, held := range page {
		data, err := c.disks.Get(c.t.Context(), node, held.Hash, 0, 0, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		if bytes.Contains(data, []byte(marker)) {
			chunks++
		}
	}
	return chunks
}

// holds fails the test unless the object has this content, and is encrypted or not as said.
func (c *cluster) holds(b object.Bucket, key string, want []byte, keyID string) {
	c.t.Helper()
	got, err := c.read(b, key, "")
	if err != nil || !bytes.Equal(got, want) {
		c.t.Errorf("%s of %s has %d bytes, which are not the %d bytes that were put: %v", key, b.Name, len(got), len(want), err)
	}
	o, err := c.store.Head(c.t.Context(), b, key, "")
	if id := o.Version.GetEncryption().GetKey(); err != nil || id != keyID {
		c.t.Errorf("%s of %s is encrypted by %q, want %q: %v", key, b.Name, id, keyID, err)
	}
}

func marked(size int) []byte {
	return []byte(strings.Repeat(marker, size/len(marker)+1))[:size]
}

func TestEncryptionChangesNeitherSizeNorETag(t *testing.T) {
	c := newCluster(t, "a", "b")
	vault := encrypted(t, "vault")
	for _, size := range []int{0, 1, 100, 5000, object.ChunkSize, 40<<20 + 3} {
		key, data := fmt.Sprint(size), marked(size)
		o := c.putInto(vault, key, data)
		c.holds(vault, key, data, "key-of-vault")
		same := c.putInto(photos, "plain", data)
		if o.Version.GetEtag() != same.Version.GetEtag() || o.Version.GetSize() != int64(size) {
			t.Errorf("encrypted, %d bytes are %d with ETag %s, want %s", size, o.Version.GetSize(), o.Version.GetEtag(), same.Version.GetEtag())
		}
		c.holds(photos, "plain", data, "")
		if _, err := c.store.Delete(t.Context(), photos, "plain", "", object.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNodesSeeNothingOfEncryptedContent(t *testing.T) {
	c := newCluster(t, "a", "b")
	vault := encrypted(t, "vault")
	c.putInto(vault, "k", marked(40<<20))
	c.putInto(vault, "again", marked(5000))
	if n := c.seen("uid-a") + c.seen("uid-b"); n != 0 {
		t.Errorf("%d chunks on nodes have the plaintext", n)
	}
	c.putInto(plain(vault), "open", marked(5000))
	if n := c.seen("uid-a"); n != 1 {
		t.Errorf("%d chunks have the plaintext of an object that is not encrypted: this test would not notice any", n)
	}
	c.holds(vault, "k", marked(40<<20), "key-of-vault")
}

func TestRangesOfEncryptedObjectsBeginAnywhere(t *testing.T) {
	c := newCluster(t, "a")
	vault := encrypted(t, "vault")
	large, small := content(2*object.ChunkSize+77, 1), content(50_000, 2)
	c.putInto(vault, "large", large)
	c.putInto(vault, "small", small)
	rapid.Check(t, func(t *rapid.T) {
		key, data := "large", large
		if rapid.Bool().Draw(t, "small") {
			key, data = "small", small
		}
		near := rapid.SampledFrom([]int{0, 16, 64 << 10, object.ChunkSize, 2 * object.ChunkSize, len(data) / 2}).Draw(t, "near")
		offset := min(max(near+rapid.IntRange(-40, 40).Draw(t, "offset"), 0), len(data)-1)
		length := rapid.IntRange(1, min(len(data)-offset, object.ChunkSize+100)).Draw(t, "length")
		_, r, err := c.store.Open(c.t.Context(), vault, key, "")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		g := r.ReadRange(c.t.Context(), int64(offset), int64(length))
		defer g.Close()
		if got, err := io.ReadAll(g); err != nil || !bytes.Equal(got, data[offset:offset+length]) {
			t.Fatalf("%d bytes from %d on are others: %v", length, offset, err)
		}
	})
}

func TestCounterCarriesIntoItsUpperHalf(t *testing.T) {
	key, err := object.NewKey("k", content(object.KeySize, 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, nonce := range [][]byte{
		make([]byte, 16), bytes.Repeat([]byte{0xff}, 16), append(make([]byte, 8), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe),
	} {
		whole := key.Stream(nonce, 0, 200)
		for offset := range uint32(150) {
			if !bytes.Equal(key.Stream(nonce, offset, 50), whole[offset:offset+50]) {
				t.Fatalf("the stream of nonce %x differs from byte %d on", nonce, offset)
			}
		}
	}
}

func (c *cluster) beginIn(b object.Bucket, key, resume string) *objectv1.Upload {
	c.t.Helper()
	u, err := c.store.CreateUpload(c.t.Context(), b, object.UploadRequest{Key: key, Author: "me", Resume: resume})
	if err != nil {
		c.t.Fatal(err)
	}
	return u
}

// An upload that was begun with encryption stays encrypted, whatever becomes of the bucket before its end.
func TestPartsHaveTheKeyOfTheirUpload(t *testing.T) {
	c := newCluster(t, "a")
	vault := encrypted(t, "vault")
	c.putInto(photos, "source", marked(leastPart+7))
	before := c.seen("uid-a")
	u := c.beginIn(vault, "k", "")
	now := plain(vault)
	first := object.Part{Key: "k", Upload: object.UploadID(u), Number: 1, Body: bytes.NewReader(marked(leastPart + 9)), Size: leastPart + 9}
	one, err := c.store.PutPart(t.Context(), now, first)
	if err != nil {
		t.Fatal(err)
	}
	copied := object.Part{Key: "k", Upload: object.UploadID(u), Number: 2}
	two, err := c.store.CopyPart(t.Context(), now, copied, object.Source{Bucket: photos, Key: "source", Offset: 2, Length: leastPart})
	if err != nil {
		t.Fatal(err)
	}
	last := object.Part{Key: "k", Upload: object.UploadID(u), Number: 3, Body: bytes.NewReader(marked(30 << 20)), Size: -1}
	three, err := c.store.PutPart(t.Context(), vault, last)
	if err != nil {
		t.Fatal(err)
	}
	request := object.CompleteRequest{Key: "k", Upload: object.UploadID(u), Size: -1}
	for _, p := range []*objectv1.Part{one, two, three} {
		request.Parts = append(request.Parts, &objectv1.CompletedPart{Number: p.GetNumber(), Etag: p.GetEtag()})
	}
	if _, err := c.store.CompleteUpload(t.Context(), now, request); err != nil {
		t.Fatal(err)
	}
	want := bytes.Join([][]byte{marked(leastPart + 9), marked(leastPart + 7)[2 : leastPart+2], marked(30 << 20)}, nil)
	c.holds(now, "k", want, "key-of-vault")
	if n := c.seen("uid-a"); n != before {
		t.Errorf("%d chunks have the plaintext of parts", n-before)
	}
}

func TestUploadGoesOnOnlyWithTheSameKey(t *testing.T) {
	c := newCluster(t, "a")
	vault := encrypted(t, "vault")
	open := c.beginIn(plain(vault), "k", "content")
	sealed := c.beginIn(vault, "k", "content")
	if bytes.Equal(open.GetId(), sealed.GetId()) {
		t.Error("an upload that is not encrypted goes on after the bucket is")
	}
	if again := c.beginIn(vault, "k", "content"); !bytes.Equal(again.GetId(), sealed.GetId()) {
		t.Error("an upload with the key of the bucket does not go on")
	}
}

func TestCopiesAreEncryptedAsTheirBucketIs(t *testing.T) {
	c := newCluster(t, "a")
	vault, other := encrypted(t, "vault"), encrypted(t, "another")
	data := content(3*object.ChunkSize+7, 1)
	for _, b := range []object.Bucket{vault, other, photos} {
		c.putInto(b, "k", data)
	}
	source := map[string]object.Bucket{"vault": vault, "another": other, "photos": photos}
	target := map[string]object.Bucket{"vault": vault, "another": other, "photos": photos, "vault in plain": plain(vault)}
	for from, source := range source {
		for to, target := range target {
			t.Run(from+" to "+to, func(t *testing.T) {
				gets, _ := c.disks.Calls("uid-a")
				o, err := c.store.Copy(t.Context(), target, object.PutRequest{Key: "copy"}, object.Source{Bucket: source, Key: "k"})
				if err != nil || len(o.Version.GetEtag()) != 32 {
					t.Fatal(o, err)
				}
				if now, _ := c.disks.Calls("uid-a"); (now == gets) != (source.Encryption == target.Encryption) {
					t.Errorf("it has read %d chunks", now-gets)
				}
				c.holds(target, "copy", data, target.Encryption)
				part := object.Source{Bucket: source, Key: "k", Offset: 5, Length: object.ChunkSize + 1000}
				if _, err := c.store.Copy(t.Context(), target, object.PutRequest{Key: "part"}, part); err != nil {
					t.Fatal(err)
				}
				c.holds(target, "part", data[5:object.ChunkSize+1005], target.Encryption)
			})
		}
	}
}

func TestContentWithoutItsKeyIsNeverRead(t *testing.T) {
	c := newCluster(t, "a")
	vault := encrypted(t, "vault")
	data := marked(1000)
	c.putInto(vault, "k", data)
	u := c.beginIn(vault, "upload", "")
	without, other, wrong := vault, encrypted(t, "another"), vault
	without.Keys = nil
	other.UID = vault.UID
	key, err := object.NewKey("another id", content(object.KeySize, 9))
	if err != nil {
		t.Fatal(err)
	}
	wrong.Keys = func(context.Context, string) (*object.Key, error) { return key, nil }
	closed := vault
	unavailable := errors.New("the key cannot be opened now")
	closed.Keys = func(context.Context, string) (*object.Key, error) { return nil, unavailable }
	for name, test := range map[string]struct {
		bucket object.Bucket
		want   error
	}{"no key": {without, object.ErrKeyLost}, "another key": {other, object.ErrKeyLost}, "a key by another name": {wrong, object.ErrKeyLost}, "no key yet": {closed, unavailable}} {
		b := test.bucket
		if _, err := c.read(b, "k", ""); !errors.Is(err, test.want) {
			t.Errorf("%s: reading: %v", name, err)
		}
		if _, err := c.store.Copy(t.Context(), photos, object.PutRequest{Key: "k"}, object.Source{Bucket: b, Key: "k"}); !errors.Is(err, test.want) {
			t.Errorf("%s: copying: %v", name, err)
		}
		part := object.Part{Key: "upload", Upload: object.UploadID(u), Number: 1, Body: bytes.NewReader(data), Size: -1}
		if _, err := c.store.PutPart(t.Context(), b, part); !errors.Is(err, test.want) {
			t.Errorf("%s: putting a part: %v", name, err)
		}
		if _, err := c.store.Head(t.Context(), b, "k", ""); err != nil {
			t.Errorf("%s: what is beside the content cannot be read: %v", name, err)
		}
		if name == "another key" {
			continue
		}
		if _, err := c.store.Put(t.Context(), b, object.PutRequest{Key: "new", Body: bytes.NewReader(data), Size: -1}); !errors.Is(err, test.want) {
			t.Errorf("%s: putting: %v", name, err)
		}
	}
	if _, err := c.store.Delete(t.Context(), without, "k", "", object.Condition{}); err != nil {
		t.Errorf("it cannot even be deleted: %v", err)
	}
	if strings.Contains(fmt.Sprintf("%v %+v %s", key, vault, key), string(content(object.KeySize, 9))) {
		t.Error("a key that is printed shows its secret")
	}
}

// A node that returns other bytes is noticed by the digest of what is stored, before anything is decrypted.
func TestDamageOfEncryptedContentIsRepaired(t *testing.T) {
	c := newCluster(t, "a", "b")
	vault := encrypted(t, "vault")
	c.putInto(vault, "k", marked(5000))
	pieces, _, err := c.store.Locate(t.Context(), vault, "k", "", 0, 10)
	if err != nil || len(pieces) != 1 || !c.disks.Corrupt("uid-a", pieces[0].Hash) {
		t.Fatal(pieces, err)
	}
	c.holds(vault, "k", marked(5000), "key-of-vault")
}
