package consensus

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The stream of a folder has the size that was announced, and becomes the same files again.
func TestFilesArriveAsTheyWere(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "files")
	files := map[string][]byte{"empty": {}, "small": []byte("x"), "large": bytes.Repeat([]byte("0123456789"), 300_000), "in/a/folder": []byte("y")}
	for name, content := range files {
		path := filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := pack(from)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := io.ReadAll(p)
	if err != nil || int64(len(stream)) != p.size {
		t.Fatalf("%d bytes instead of %d: %v", len(stream), p.size, err)
	}
	if err := unpack(bytes.NewReader(stream), to); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s has %d bytes: %v", name, len(got), err)
		}
	}
	for _, end := range []int{0, 1, 5, len(stream) / 2, len(stream) - 1} {
		if err := unpack(bytes.NewReader(stream[:end]), filepath.Join(t.TempDir(), "files")); err == nil {
			t.Errorf("the first %d bytes are taken for all", end)
		}
	}
}

// Another server cannot write outside of the folder.
func TestFilesStayInTheirFolder(t *testing.T) {
	for _, name := range []string{"../evil", "/evil", "a/../../evil"} {
		stream := binary.BigEndian.AppendUint16(nil, uint16(len(name)))
		stream = append(append(stream, name...), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		dir := t.TempDir()
		if err := unpack(bytes.NewReader(stream), filepath.Join(dir, "files")); err == nil {
			t.Errorf("%q was written", name)
		}
	}
}
