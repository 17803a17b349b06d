package identity

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After the handover one server unseals what the other has sealed, and no other server can take the key.
func TestKeyIsHandedOver(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenOrCreateSealer(filepath.Join(dir, "first.json"))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := first.Seal([]byte("secret"), "test")
	if err != nil {
		t.Fatal(err)
	}
	joining, err := NewHandover()
	if err != nil {
		t.Fatal(err)
	}
	sent, err := first.HandOver(joining.PublicKey(), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "first.json"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sent, key[:16]) {
		t.Fatal("the key is sent as it is")
	}
	path := filepath.Join(dir, "second.json")
	for range 2 { // a second time does no harm
		if err := joining.Accept(sent, "c-1", path); err != nil {
			t.Fatal(err)
		}
	}
	second, err := OpenOrCreateSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := second.Unseal(sealed, "test"); err != nil || string(opened) != "secret" {
		t.Fatalf("got %q, %v", opened, err)
	}

	other, err := NewHandover()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Accept(sent, "c-1", filepath.Join(dir, "third.json")); err == nil {
		t.Error("another server can open it")
	}
	if err := joining.Accept(sent, "c-2", filepath.Join(dir, "third.json")); err == nil {
		t.Error("it opens as the key of another cluster")
	}
	if _, err := OpenOrCreateSealer(filepath.Join(dir, "other.json")); err != nil {
		t.Fatal(err)
	}
	if err := joining.Accept(sent, "c-1", filepath.Join(dir, "other.json")); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("another key was overwritten: %v", err)
	}
	if _, err := first.HandOver([]byte("garbage"), "c-1"); err == nil {
		t.Error("sealed to garbage")
	}
}
