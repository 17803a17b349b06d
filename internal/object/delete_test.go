package object_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
)

func TestDeletedObjectIsGone(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", []byte("data"))
	if _, err := c.store.Delete(t.Context(), photos, "k", "", object.Condition{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.read(photos, "k", ""); !errors.Is(err, object.ErrNoKey) {
		t.Errorf("read returns %v, want ErrNoKey", err)
	}
	if _, err := c.store.Delete(t.Context(), photos, "k", "", object.Condition{}); !errors.Is(err, object.ErrNoKey) {
		t.Errorf("deleting it again: %v, want ErrNoKey", err)
	}
}

func TestVersionsAreKeptUnderMarkers(t *testing.T) {
	c := newCluster(t, "a")
	b := photos
	b.Versioning = "enabled"
	one, two := c.putInto(b, "k", []byte("one")), c.putInto(b, "k", []byte("two"))
	marker, err := c.store.Delete(t.Context(), b, "k", "", object.Condition{})
	if err != nil || !marker.Version.GetDeleteMarker() {
		t.Fatalf("delete makes %v, %v; want a marker", marker, err)
	}
	head, err := c.store.Head(t.Context(), b, "k", "")
	if !errors.Is(err, object.ErrDeleteMarker) || head.VersionID != marker.VersionID {
		t.Errorf("head finds %v, %v; want the marker", head, err)
	}
	for _, o := range []object.Object{one, two} {
		data, err := c.read(b, "k", o.VersionID)
		if err != nil || !bytes.Equal(data, map[bool][]byte{true: []byte("one"), false: []byte("two")}[o.VersionID == one.VersionID]) {
			t.Errorf("version %s has %q, %v", o.VersionID, data, err)
		}
	}
	listing, err := c.store.List(t.Context(), b, names.ListRequest{Versions: true, Limit: 10})
	if err != nil || len(listing.Items) != 3 {
		t.Errorf("the list of versions has %d items, %v; want 3", len(listing.Items), err)
	}
	if _, err := c.store.Delete(t.Context(), b, "k", marker.VersionID, object.Condition{}); err != nil {
		t.Fatal(err)
	}
	if data, err := c.read(b, "k", ""); err != nil || string(data) != "two" {
		t.Errorf("without the marker it has %q, %v", data, err)
	}
}

func TestManyObjectsAreDeletedAtOnce(t *testing.T) {
	c := newCluster(t, "a")
	c.put("a", []byte("1"))
	c.put("b", []byte("2"))
	removed, err := c.store.DeleteAll(t.Context(), photos, []object.Removal{
		{Key: "a"}, {Key: "absent"}, {Key: ""}, {Key: "b", VersionID: "bad"}, {Key: "b", Condition: object.Condition{IfMatch: "other"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, object.ErrNoKey, object.ErrBadKey, object.ErrNoVersion, object.ErrPrecondition} {
		if got := removed[i].Err; !errors.Is(got, want) {
			t.Errorf("removal %d: %v, want %v", i, got, want)
		}
	}
	c.has("b", []byte("2"))
}

func TestTagsAreReplaced(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", []byte("1"))
	for _, tags := range []map[string]string{{"a": "1", "b": "2"}, {"c": "3"}} {
		if err := c.store.SetTags(t.Context(), photos, "k", "", tags); err != nil {
			t.Fatal(err)
		}
		head, err := c.store.Head(t.Context(), photos, "k", "")
		if err != nil || len(head.Version.GetTags()) != len(tags) {
			t.Errorf("the tags are %v, %v; want %v", head.Version.GetTags(), err, tags)
		}
	}
	if err := c.store.SetTags(t.Context(), photos, "absent", "", nil); !errors.Is(err, object.ErrNoKey) {
		t.Errorf("tags of an absent object: %v, want ErrNoKey", err)
	}
}

func TestOnlyAnEmptyBucketIsClosed(t *testing.T) {
	c := newCluster(t, "a")
	c.put("k", []byte("123"))
	usage, err := c.store.Usage(t.Context(), photos)
	if err != nil || usage.GetObjects() != 1 || usage.GetBytes() != 3 {
		t.Errorf("usage is %v, %v", usage, err)
	}
	if err := c.store.CloseBucket(t.Context(), photos); !errors.Is(err, object.ErrNotEmpty) {
		t.Errorf("closing it: %v, want ErrNotEmpty", err)
	}
	if _, err := c.store.Delete(t.Context(), photos, "k", "", object.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := c.store.CloseBucket(t.Context(), photos); err != nil {
		t.Fatal(err)
	}
	_, err = c.store.Put(t.Context(), photos, object.PutRequest{Key: "k", Body: bytes.NewReader(nil)})
	if !errors.Is(err, object.ErrNoBucket) {
		t.Errorf("putting into a closed bucket: %v, want ErrNoBucket", err)
	}
}
