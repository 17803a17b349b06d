package programs

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
	return fstest.MapFS{Shim.packed(): {Data: b.Bytes()}}
}

func TestExtractWritesAnExecutable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	path, err := Shim.extract(packed(t, "program"), dir)
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
	first, err := Shim.extract(packed(t, "program"), dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Shim.extract(packed(t, "program"), dir)
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
	one, err := Shim.extract(packed(t, "one"), dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Shim.extract(packed(t, "two"), dir)
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
			if _, err := Shim.extract(files, dir); err != nil {
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
	data := files[Shim.packed()].Data
	files[Shim.packed()].Data = data[:len(data)-6]
	dir := t.TempDir()
	if _, err := Shim.extract(files, dir); err == nil {
		t.Error("a damaged shim was extracted")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestExtractSaysThatTheShimIsMissing(t *testing.T) {
	if _, err := Shim.extract(fstest.MapFS{}, t.TempDir()); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("got %v, want %v", err, ErrNotBuilt)
	}
}

// The programs are build products, one per architecture: one that was built for another architecture than its folder
// says would fail when it is needed.
func TestEveryBuiltProgramIsForItsArchitecture(t *testing.T) {
	for _, program := range []Program{Shim, Net, Ingress} {
		if _, err := embedded.Open(program.packed()); err != nil {
			t.Errorf("%s for this architecture is not built: run make programs (%v)", program, err)
		}
		for architecture, want := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
			data, err := os.ReadFile(filepath.Join("embedded", architecture, string(program)+".gz"))
			if errors.Is(err, os.ErrNotExist) {
				continue // only make build-all builds the others
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := machineOf(t, data); got != want {
				t.Errorf("%s in embedded/%s is for %v", program, architecture, got)
			}
		}
	}
}

// machineOf returns the architecture of a compressed program.
func machineOf(t *testing.T, packed []byte) elf.Machine {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
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
	return parsed.Machine
}
