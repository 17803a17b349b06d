package identity_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cloudless/cloudless/internal/identity"
)

// A stored key requests the same certificate again; another key does not.
func TestKeyIsReused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.pem")
	fingerprint := func(path string) string {
		t.Helper()
		key, err := identity.OpenOrCreateKey(path)
		if err != nil {
			t.Fatal(err)
		}
		csr, err := identity.NewCSR(key)
		if err != nil {
			t.Fatal(err)
		}
		print, err := identity.RequestFingerprint(csr)
		if err != nil {
			t.Fatal(err)
		}
		return print
	}
	first := fingerprint(path)
	if again := fingerprint(path); again != first {
		t.Errorf("the kept key is %s, was %s", again, first)
	}
	if other := fingerprint(filepath.Join(t.TempDir(), "key.pem")); other == first {
		t.Error("two keys have the same fingerprint")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is in %v, %v", info.Mode(), err)
	}
	if _, err := identity.RequestFingerprint([]byte("not a request")); err == nil {
		t.Error("what is no request has a fingerprint")
	}
	if err := os.WriteFile(path, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.OpenOrCreateKey(path); err == nil {
		t.Error("a damaged key was accepted")
	}
}
