package workloadkeys_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

const cluster = "home"

// keyring is a state with the keys of a cluster, and a clock.
type keyring struct {
	t      *testing.T
	store  *state.Store
	sealer *identity.Sealer
	now    time.Time
}

func newKeyring(t *testing.T) *keyring {
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	if err != nil {
		t.Fatal(err)
	}
	return &keyring{t: t, store: state.New(), sealer: sealer, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (k *keyring) apply(b *state.Batch) {
	k.t.Helper()
	if _, err := k.store.Apply(k.store.Snapshot().Index()+1, b.Transaction(k.now)); err != nil {
		k.t.Fatal(err)
	}
}

// settle ticks until nothing is due, and returns when something will be.
func (k *keyring) settle() (due time.Time) {
	k.t.Helper()
	for range 10 {
		b, due, err := workloadkeys.Tick(k.now, k.store.Snapshot(), func() (*statev1.WorkloadKey, error) { return workloadkeys.New(cluster, k.sealer) })
		if err != nil {
			k.t.Fatal(err)
		}
		if b.Len() == 0 {
			return due
		}
		k.apply(b)
	}
	k.t.Fatal("the keys change for ever")
	return due
}

func (k *keyring) active() string {
	return workloadkeys.Active(k.store.Snapshot()).GetMetadata().GetUid()
}

// published is the ids of the keys that everyone can verify tokens with.
func (k *keyring) published() map[string]bool {
	k.t.Helper()
	data, err := workloadkeys.Set(k.store.Snapshot())
	if err != nil {
		k.t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(data, &set); err != nil {
		k.t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, key := range set.Keys {
		if !key.IsPublic() || key.Algorithm != "ES256" {
			k.t.Errorf("a published key is private or not for ES256: %s", key.Algorithm)
		}
		ids[key.KeyID] = true
	}
	return ids
}

// A key is published long before it signs, and verifies longer than any token that it signed is valid.
func TestKeyIsPublishedBeforeItSignsAndVerifiesAfterwards(t *testing.T) {
	k := newKeyring(t)
	k.settle()
	first, since, began := k.active(), map[string]time.Time{}, k.now
	retired := map[string]time.Time{}
	for signing := first; k.now.Sub(began) < 100*24*time.Hour; {
		published := k.published()
		for id := range published {
			if since[id].IsZero() {
				since[id] = k.now
			}
		}
		if now := k.active(); now != signing {
			if known := k.now.Sub(since[now]); known < 23*time.Hour {
				t.Errorf("key %s signed %s after it was published", now, known)
			}
			retired[signing], signing = k.now, now
		}
		for id, at := range retired {
			if !published[id] && k.now.Sub(at) < 25*time.Hour {
				t.Errorf("key %s verified only %s after it had signed", id, k.now.Sub(at))
			}
			if published[id] && k.now.Sub(at) > 49*time.Hour {
				t.Errorf("key %s still verifies %s after it had signed", id, k.now.Sub(at))
			}
		}
		k.now = k.now.Add(time.Hour)
		k.settle()
	}
	if len(retired) != 3 {
		t.Errorf("in 100 days %d keys retired, want 3", len(retired))
	}
}

// A removed server knows the key that signs. It is replaced soon, but not before verifiers know its successor.
func TestKeyOfRemovedServerRetiresSoon(t *testing.T) {
	k := newKeyring(t)
	k.settle()
	before := k.active()
	var b state.Batch
	workloadkeys.Replace(k.now, k.store.Snapshot(), &b)
	k.apply(&b)
	k.settle()
	if len(k.published()) != 2 || k.active() != before {
		t.Fatalf("%d keys are published and the old one signs: %t; want its successor beside it", len(k.published()), k.active() == before)
	}
	k.now = k.now.Add(workloadkeys.Hurry)
	k.settle()
	if k.active() == before {
		t.Error("the key that the removed server knows still signs")
	}
}

// The private half can be opened only as what it was sealed as.
func TestKeyIsSealedToItsUse(t *testing.T) {
	k := newKeyring(t)
	k.settle()
	key := workloadkeys.Active(k.store.Snapshot())
	if _, err := workloadkeys.Open(cluster, k.sealer, key); err != nil {
		t.Error(err)
	}
	if _, err := workloadkeys.Open("other", k.sealer, key); err == nil {
		t.Error("the key of one cluster was opened as that of another")
	}
}
