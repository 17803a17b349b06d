package server

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/identity"
	objects "github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/buckets"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// fetch reads an object of bucket photos by way of a directory.
func (c *cluster) fetch(d *buckets.Directory, store *objects.Store, key string) (string, error) {
	c.t.Helper()
	b, err := d.Bucket(c.ctx, "default", "photos")
	must(c.t, err)
	_, r, err := store.Open(c.ctx, b, key, "")
	if err != nil {
		return "", err
	}
	defer r.Close()
	body := r.ReadRange(c.ctx, 0, -1)
	defer body.Close()
	data, err := io.ReadAll(body)
	return string(data), err
}

// encrypts says whether what is put from now on is encrypted, and returns the id of the key that the bucket has.
func (c *cluster) encrypts(yes bool) string {
	c.t.Helper()
	answer, err := c.as(core.RoleOperator).buckets().ApplyBucket(c.ctx, &v1.ApplyBucketRequest{Bucket: bucketNamed("photos", &v1.BucketSpec{Encrypted: yes})})
	must(c.t, err)
	if answer.GetBucket().GetSpec().GetEncrypted() != yes {
		c.t.Errorf("the bucket is %v", answer.GetBucket())
	}
	return c.Store.Snapshot().BucketKey(answer.GetBucket().GetMetadata().GetUid()).GetId()
}

func (c *cluster) sealedBy(store *objects.Store, key string) string {
	c.t.Helper()
	b, err := c.Directory().Bucket(c.ctx, "default", "photos")
	must(c.t, err)
	o, err := store.Head(c.ctx, b, key, "")
	must(c.t, err)
	return o.Version.GetEncryption().GetKey()
}

// A bucket has one key, which is made when it is needed first and stays as long as something may need it.
func TestEncryptionOfABucketIsForWhatIsPutFromThenOn(t *testing.T) {
	c, store := withObjects(t)
	if id := c.encrypts(false); id != "" {
		t.Errorf("a bucket that is not encrypted has key %s", id)
	}
	must(t, c.put(store, "photos", "early", "meow 1"))
	id := c.encrypts(true)
	must(t, c.put(store, "photos", "sealed", "meow 2"))
	if same := c.encrypts(false); same != id || id == "" {
		t.Errorf("the key is %q, and %q after encryption was turned off", id, same)
	}
	must(t, c.put(store, "photos", "late", "meow 3"))
	if same := c.encrypts(true); same != id {
		t.Errorf("the key is %q, and %q after encryption was turned on again", id, same)
	}
	for key, want := range map[string]string{"early": "", "sealed": id, "late": ""} {
		if got := c.sealedBy(store, key); got != want {
			t.Errorf("%s is encrypted by %q, want %q", key, got, want)
		}
	}
	for key, want := range map[string]string{"early": "meow 1", "sealed": "meow 2", "late": "meow 3"} {
		if got, err := c.fetch(c.Directory(), store, key); got != want || err != nil {
			t.Errorf("%s is %q, %v", key, got, err)
		}
	}

	gone, err := c.Directory().Bucket(c.ctx, "default", "photos")
	must(t, err)
	_, err = c.as(core.RoleOperator).buckets().DeleteBucket(c.ctx, &v1.DeleteBucketRequest{Name: "photos", Force: true})
	must(t, err)
	if n := len(slices.Collect(c.Store.Snapshot().BucketKeys())); n != 0 {
		t.Errorf("%d keys of deleted buckets are left", n)
	}
	if _, err := gone.Keys(c.ctx, id); !errors.Is(err, objects.ErrKeyLost) {
		t.Errorf("the key of a deleted bucket: %v", err)
	}
	if again := c.encrypts(true); again == "" || again == id {
		t.Errorf("a new bucket of the same name has key %q", again)
	}
}

func TestKeyOfABucketIsNowhereInPlain(t *testing.T) {
	c, store := withObjects(t)
	op := c.as(core.RoleOperator)
	c.encrypts(true)
	must(t, c.put(store, "photos", "cat.jpg", "meow"))
	stored := slices.Collect(c.Store.Snapshot().BucketKeys())[0]
	key, err := c.sealer.Unseal(stored.GetSealed(), state.BucketKeyContext(stored.GetMetadata().GetUid(), stored.GetId()))
	must(t, err)

	got, err := op.buckets().GetBucket(c.ctx, &v1.GetBucketRequest{Name: "photos"})
	must(t, err)
	listed, err := op.buckets().ListBuckets(c.ctx, &v1.ListBucketsRequest{})
	must(t, err)
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	answers := prototext.Format(got) + prototext.Format(listed) + prototext.Format(events)
	var saved bytes.Buffer
	must(t, c.Store.Snapshot().Save(&saved))
	for _, text := range []string{string(key), hex.EncodeToString(key), base64.StdEncoding.EncodeToString(key)} {
		if strings.Contains(answers+c.log.String()+saved.String(), text) {
			t.Error("the key of the bucket can be read")
		}
	}
	if sealed := base64.StdEncoding.EncodeToString(stored.GetSealed()); strings.Contains(answers, sealed) || strings.Contains(answers, stored.GetId()) {
		t.Error("an answer has the sealed key of the bucket")
	}
}

// Nothing that was encrypted needs the old key-encryption key after a rotation.
func TestRekeyWrapsTheKeysOfBuckets(t *testing.T) {
	c, store := withObjects(t)
	c.encrypts(true)
	must(t, c.put(store, "photos", "cat.jpg", "meow"))
	next, key, err := identity.NextKey()
	must(t, err)
	must(t, c.sealer.AddKey(key))
	must(t, c.sealer.UseKey(next))
	resealer := &authority.Resealer{Sealer: c.sealer}
	for complete := false; !complete; {
		_, err := c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) (err error) {
			complete, err = resealer.Reseal(snap, b)
			return err
		})
		must(t, err)
	}
	must(t, c.sealer.DropKeys())
	for stored := range c.Store.Snapshot().BucketKeys() {
		if by := identity.SealedBy(stored.GetSealed()); by != next {
			t.Errorf("the key of the bucket is sealed by %s, want %s", by, next)
		}
	}
	fresh := buckets.New(buckets.Options{Core: c.Core, Auth: c.auth, Unseal: c.sealer.Unseal})
	if got, err := c.fetch(fresh, store, "cat.jpg"); got != "meow" || err != nil {
		t.Errorf("after a rotation it is %q, %v", got, err)
	}
}

func TestServerWithoutTheKeyEncryptionKeyIsNotAvailable(t *testing.T) {
	c, store := withObjects(t)
	c.encrypts(true)
	must(t, c.put(store, "photos", "cat.jpg", "meow"))
	behind := buckets.New(buckets.Options{Core: c.Core, Auth: c.auth, Unseal: func([]byte, string) ([]byte, error) {
		return nil, errors.New("no key")
	}})
	_, err := c.fetch(behind, store, "cat.jpg")
	wantCode(t, err, codes.Unavailable, "the key of bucket photos cannot be opened on this server")

	// A bucket that has lost its key stores nothing in plain.
	_, err = c.Propose(c.ctx, func(snap *state.Snapshot, b *state.Batch) error {
		for key := range snap.BucketKeys() {
			b.Delete(state.KindBucketKey, key.GetMetadata().GetUid())
		}
		return nil
	})
	must(t, err)
	if _, err := c.fetch(c.Directory(), store, "cat.jpg"); !errors.Is(err, objects.ErrKeyLost) {
		t.Errorf("reading without a key: %v", err)
	}
	if err := c.put(store, "photos", "new", "meow"); !errors.Is(err, objects.ErrKeyLost) {
		t.Errorf("putting without a key: %v", err)
	}
}
