package secret_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/state"
)

func newKEK(t testing.TB) *identity.Sealer {
	t.Helper()
	kek, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek"))
	if err != nil {
		t.Fatal(err)
	}
	return kek
}

func seal(t testing.TB, kek secret.Wrapper, version uint64, value string) *statev1.SecretValue {
	t.Helper()
	stored, err := secret.Seal(kek, "uid", version, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func TestValueIsEncryptedByAKeyOfItsOwn(t *testing.T) {
	kek := newKEK(t)
	one, two := seal(t, kek, 1, "hunter2"), seal(t, kek, 2, "hunter2")
	for _, stored := range []*statev1.SecretValue{one, two} {
		if bytes.Contains(stored.GetCiphertext(), []byte("hunter2")) || bytes.Contains(stored.GetSealedKey(), []byte("hunter2")) {
			t.Error("the value can be read")
		}
		if got, err := secret.Open(kek, stored); err != nil || string(got) != "hunter2" {
			t.Errorf("opened, it is %q, %v", got, err)
		}
	}
	if one.GetMetadata().GetUid() != "uid:1" || bytes.Equal(one.GetSealedKey(), two.GetSealedKey()) {
		t.Errorf("the values are %v and %v", one, two)
	}
}

// A data key can be wrapped again by another key-encryption key, without the value.
func TestDataKeyCanBeWrappedAgain(t *testing.T) {
	old, next := newKEK(t), newKEK(t)
	stored := seal(t, old, 3, "hunter2")
	key, err := old.Unseal(stored.GetSealedKey(), state.SecretKeyContext("uid", 3))
	if err != nil {
		t.Fatal(err)
	}
	again := proto.CloneOf(stored)
	if again.SealedKey, err = next.Seal(key, state.SecretKeyContext("uid", 3)); err != nil {
		t.Fatal(err)
	}
	if got, err := secret.Open(next, again); err != nil || string(got) != "hunter2" {
		t.Errorf("it is %q, %v", got, err)
	}
}

func TestValueCannotTakeThePlaceOfAnother(t *testing.T) {
	kek := newKEK(t)
	one, two := seal(t, kek, 1, "hunter2"), seal(t, kek, 2, "hunter3")
	for name, damage := range map[string]func(*statev1.SecretValue){
		"another version":              func(v *statev1.SecretValue) { v.Version = 2 },
		"another secret":               func(v *statev1.SecretValue) { v.SecretUid = "other" },
		"the key of another version":   func(v *statev1.SecretValue) { v.SealedKey = two.GetSealedKey() },
		"the value of another version": func(v *statev1.SecretValue) { v.Ciphertext = two.GetCiphertext() },
		"a changed byte":               func(v *statev1.SecretValue) { v.Ciphertext[len(v.GetCiphertext())-1] ^= 1 },
		"no key":                       func(v *statev1.SecretValue) { v.SealedKey = nil },
		"nothing":                      func(v *statev1.SecretValue) { proto.Reset(v) },
	} {
		changed := proto.CloneOf(one)
		damage(changed)
		if got, err := secret.Open(kek, changed); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A data key that is no keyset is refused without a word of what it is.
func TestDamagedDataKeyIsNotQuoted(t *testing.T) {
	kek := newKEK(t)
	stored := seal(t, kek, 1, "hunter2")
	var err error
	if stored.SealedKey, err = kek.Seal([]byte("sesame sesame"), state.SecretKeyContext("uid", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.Open(kek, stored); err == nil || strings.Contains(err.Error(), "sesame") || !strings.Contains(err.Error(), "its data key is damaged") {
		t.Errorf("the error is %v", err)
	}
}

func TestRandomValuesAreLettersAndDigits(t *testing.T) {
	seen, counts := map[string]bool{}, map[byte]int{}
	for range 200 {
		value := secret.Random(0)
		if len(value) != secret.DefaultLength || seen[string(value)] {
			t.Fatalf("a random value is %d long, or comes twice", len(value))
		}
		seen[string(value)] = true
		for _, b := range secret.Random(4096) {
			counts[b]++
		}
	}
	// 819,200 characters in 62 kinds: each comes 13,213 times, with a deviation of about 115.
	for b, n := range counts {
		if len(counts) != 62 || n < 12_000 || n > 14_500 || !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", rune(b)) {
			t.Fatalf("of %d kinds, %q comes %d times", len(counts), b, n)
		}
	}
}
