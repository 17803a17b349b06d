package shim

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"
)

// packed is an embedded directory that holds program as the shim.
func packed(t *testing.T, program string) fstest.MapFS {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(program)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{packedPath: {Data: b.Bytes()}}
}

func TestExtractWritesAnExecutable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	path, err := extract(packed(t, "program"), dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "program" {
		t.Errorf("extracted %q, %v; want the program", got, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o755 {
		t.Errorf("mode %v, want 0755", info.Mode())
	}
}

func TestExtractKeepsAnExistingShim(t *testing.T) {
	dir := t.TempDir()
	first, err := extract(packed(t, "program"), dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	again, err := extract(packed(t, "program"), dir)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(again)
	if err != nil {
		t.Fatal(err)
	}
	if first != again || !os.SameFile(before, after) {
		t.Errorf("extracted %s, then %s: want the same file", first, again)
	}
}

func TestVersionsCoexist(t *testing.T) {
	dir := t.TempDir()
	one, err := extract(packed(t, "one"), dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := extract(packed(t, "two"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if one == two {
		t.Errorf("both versions became %s", one)
	}
	if got, _ := os.ReadFile(one); string(got) != "one" {
		t.Errorf("the older version is now %q", got)
	}
}

func TestExtractAtTheSameTimeLeavesOneFile(t *testing.T) {
	dir := t.TempDir()
	files := packed(t, "program")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := extract(files, dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("%d files are left, want only the shim: %v", len(entries), entries)
	}
}

func TestDamagedShimLeavesNothing(t *testing.T) {
	files := packed(t, "program")
	data := files[packedPath].Data
	files[packedPath].Data = data[:len(data)-6]
	dir := t.TempDir()
	if _, err := extract(files, dir); err == nil {
		t.Error("a damaged shim was extracted")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestExtractSaysThatTheShimIsMissing(t *testing.T) {
	if _, err := extract(fstest.MapFS{}, t.TempDir()); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("got %v, want %v", err, ErrNotBuilt)
	}
}

// The shims are build products, one per architecture: one that was built for another
// architecture than its folder says would fail at the first container.
func TestEveryBuiltShimIsForItsArchitecture(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	if _, err := embedded.Open(packedPath); err != nil {
		t.Fatalf("the shim of this architecture is not built: run make shim (%v)", err)
	}
	for architecture, want := range machines {
		data, err := os.ReadFile(filepath.Join("embedded", architecture, "cloudless-shim.gz"))
		if errors.Is(err, os.ErrNotExist) {
			continue // only make build-all builds the others
		}
		if err != nil {
			t.Fatal(err)
		}
		unzipped, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		var program bytes.Buffer
		if _, err := program.ReadFrom(unzipped); err != nil {
			t.Fatal(err)
		}
		parsed, err := elf.NewFile(bytes.NewReader(program.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Machine != want {
			t.Errorf("the shim in embedded/%s is for %v", architecture, parsed.Machine)
		}
	}
}
