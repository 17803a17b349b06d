package server

import (
	"testing"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// A workload is stored with the digest that its tag has at the commit. If the tag has moved
// since it was resolved, nothing is written and it is resolved again. If the image was
// deleted meanwhile, the workload is refused.
func TestMovedTagIsResolvedAgain(t *testing.T) {
	c := newCluster(t)
	first := c.push("web:1")
	second := first
	named, err := c.images.Name(c.ctx, "web:1", core.Receipt{})
	must(t, err)
	var seen []string
	_, err = c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
		image, err := c.images.Pin(c.ctx, snap, named)
		if err != nil {
			return err
		}
		if seen = append(seen, image.Image); len(seen) == 1 {
			second = c.push("web:1")
		}
		image.RelyOn(b)
		b.Create(&statev1.Tag{Metadata: &v1.Metadata{Uid: state.TagUID("written", "")}})
		return nil
	})
	must(t, err)
	if len(seen) != 2 || seen[0] != named.Name.Pinned(first) || seen[1] != named.Name.Pinned(second) {
		t.Errorf("from %s to %s it was taken for %v", first, second, seen)
	}

	_, err = c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
		image, err := c.images.Pin(c.ctx, snap, named)
		if err != nil {
			return err
		}
		_, deleteErr := c.images.DeleteTags(c.ctx, "web", "1", false, false)
		must(t, deleteErr)
		image.RelyOn(b)
		b.Create(&statev1.Tag{Metadata: &v1.Metadata{Uid: state.TagUID("never", "")}})
		return nil
	})
	if want := "image web:1 was deleted; restore it with: cloudless image restore web:1"; err == nil || err.Error() != want {
		t.Errorf("of a deleted image: %v", err)
	}
	if c.Store.Snapshot().Tag("never", "") != nil {
		t.Error("it was written all the same")
	}
}
