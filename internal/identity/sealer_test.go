package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func openSealer(t *testing.T, path string) *Sealer {
	t.Helper()
	s, err := OpenOrCreateSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsSealedCanBeUnsealedAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	secret := []byte("the key of the CA")
	sealed, err := openSealer(t, path).Seal(secret, "ca-key")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, secret) {
		t.Fatal("the secret lies open")
	}
	got, err := openSealer(t, path).Unseal(sealed, "ca-key")
	if err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Unseal = %q, %v", got, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key-encryption key has mode %v, %v", info.Mode(), err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("left beside the key: %v, %v", files, err)
	}
}

func TestSealedSecretIsBoundToItsContext(t *testing.T) {
	s := openSealer(t, filepath.Join(t.TempDir(), "kek"))
	sealed, err := s.Seal([]byte("secret"), "ca-key")
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	other := openSealer(t, filepath.Join(t.TempDir(), "kek"))
	for name, try := range map[string]func() ([]byte, error){
		"another context": func() ([]byte, error) { return s.Unseal(sealed, "user/password") },
		"a changed byte":  func() ([]byte, error) { return s.Unseal(changed, "ca-key") },
		"another key":     func() ([]byte, error) { return other.Unseal(sealed, "ca-key") },
		"nothing":         func() ([]byte, error) { return s.Unseal(nil, "ca-key") },
	} {
		if plain, err := try(); err == nil {
			t.Errorf("%s: unsealed %q", name, plain)
		}
	}
}

func TestAKeyThatOthersCanReadIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	openSealer(t, path)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := OpenOrCreateSealer(path)
	if err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("opening a key of mode 0640: %v", err)
	}
}

func TestADamagedKeyIsNotReplacedAndNotQuoted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	if err := os.WriteFile(path, []byte("{sesame}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenOrCreateSealer(path)
	if err == nil || strings.Contains(err.Error(), "sesame") {
		t.Errorf("opening a damaged key: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "{sesame}" {
		t.Errorf("the file now holds %q, %v", data, err)
	}
}

func TestFirstStartsAtOnceAgreeOnOneKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek")
	sealers := make([]*Sealer, 8)
	var wg sync.WaitGroup
	for i := range sealers {
		wg.Go(func() {
			s, err := OpenOrCreateSealer(path)
			if err != nil {
				t.Error(err)
			}
			sealers[i] = s
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	sealed, err := sealers[0].Seal([]byte("secret"), "x")
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range sealers {
		if _, err := s.Unseal(sealed, "x"); err != nil {
			t.Errorf("sealer %d: %v", i, err)
		}
	}
}

// A rotation of the key-encryption key: nothing that was sealed is unreadable at any step, and the file on disk is
// always enough.
func TestKeyEncryptionKeyIsReplacedStepByStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kek.json")
	s, err := OpenOrCreateSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	const context = "test"
	first := s.KeyID()
	sealed, err := s.Seal([]byte("secret"), context)
	if err != nil {
		t.Fatal(err)
	}
	id, key, err := NextKey()
	if err != nil {
		t.Fatal(err)
	}
	opens := func(sealed []byte) bool {
		t.Helper()
		fresh, err := OpenSealer(path)
		if err != nil {
			t.Fatal(err)
		}
		if fresh.KeyID() != s.KeyID() {
			t.Errorf("the file seals by %s, the process by %s", fresh.KeyID(), s.KeyID())
		}
		plain, err := fresh.Unseal(sealed, context)
		if err != nil && !errors.Is(err, ErrUnknownKey) {
			t.Errorf("unseal: %v", err)
		}
		return string(plain) == "secret"
	}
	if err := s.UseKey(id); err == nil {
		t.Error("a key that is not there seals")
	}
	for range 2 { // a step that is repeated changes nothing
		if err := s.AddKey(key); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(s.KeyIDs(), []string{first, id}) || s.KeyID() != first || !opens(sealed) {
		t.Errorf("distribute: %v, %s seals", s.KeyIDs(), s.KeyID())
	}
	if err := s.UseKey(id); err != nil {
		t.Fatal(err)
	}
	if SealedBy(sealed) != first || !opens(sealed) {
		t.Error("seal: the old key must still open")
	}
	again, err := s.Reseal(sealed, context)
	if err != nil || SealedBy(again) != id {
		t.Fatalf("sealed again by %s, %v", SealedBy(again), err)
	}
	if err := s.DropKeys(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.KeyIDs(), []string{id}) || opens(sealed) || !opens(again) {
		t.Errorf("drop: %v", s.KeyIDs())
	}
}
