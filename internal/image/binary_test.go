package image_test

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/cloudless/cloudless/internal/image"
)

func TestImageHoldsProgramAndAccounts(t *testing.T) {
	path := build(t)
	img, err := image.FromBinary(path, image.Options{Args: []string{"-v"}, Env: map[string]string{"B": "2", "A": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil { // digests and sizes of both forms, config and manifest
		t.Error(err)
	}

	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if p := config.Platform().String(); p != "linux/"+runtime.GOARCH {
		t.Errorf("platform %s", p)
	}
	c := config.Config
	if got := fmt.Sprint(c.Entrypoint, c.Cmd, c.Env, " ", c.WorkingDir); got != "[/hello] [-v] [A=1 B=2 PATH=/] /" {
		t.Errorf("starts as %s", got)
	}

	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for header, content := range entries(t, img) {
		names = append(names, fmt.Sprintf("%s %o", header.Name, header.Mode))
		if !header.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s carries the time %v", header.Name, header.ModTime)
		}
		switch header.Name {
		case "hello":
			if !bytes.Equal(content, program) {
				t.Error("the program in the image is not the program on disk")
			}
		case "etc/passwd":
			if !strings.Contains(string(content), "root:x:0:0:") || !strings.Contains(string(content), "nobody:x:65534:") {
				t.Errorf("passwd is %q", content)
			}
		}
	}
	if want := []string{"etc/ 755", "etc/passwd 644", "etc/group 644", "tmp/ 1777", "hello 755"}; !slices.Equal(names, want) {
		t.Errorf("the layer holds %q, want %q", names, want)
	}
}

func TestSameProgramGivesSameDigest(t *testing.T) {
	first := build(t)
	content, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(second, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(second, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	opts := image.Options{Env: map[string]string{"A": "1", "B": "2", "C": "3"}}
	if a, b := digestOf(t, first, opts), digestOf(t, second, opts); a != b {
		t.Errorf("digests differ: %s and %s", a, b)
	}
	if a, b := digestOf(t, first, opts), digestOf(t, first, image.Options{}); a == b {
		t.Error("other options give the same digest")
	}
}

func TestPlatformComesFromTheProgram(t *testing.T) {
	for machine, want := range map[elf.Machine]string{
		elf.EM_X86_64:  "linux/amd64",
		elf.EM_AARCH64: "linux/arm64",
		elf.EM_RISCV:   "linux/riscv64",
		elf.EM_PPC64:   "linux/ppc64le",
	} {
		img, err := image.FromBinary(patched(t, machineAt, uint16(machine)), image.Options{})
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Platform().String(); got != want {
			t.Errorf("platform of %s is %s, want %s", machine, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		title, path string
		says        []string
	}{
		{"absent", filepath.Join(folder, "absent"), []string{"does not exist", "build the program"}},
		{"folder", folder, []string{"is a folder", "name the program file"}},
		{"device", "/dev/null", []string{"not a regular file"}},
		{"empty", file(t, "prog", nil), []string{"is empty"}},
		{"text", file(t, "prog", []byte("hello\n")), []string{"not an ELF executable"}},
		{"script", file(t, "run.sh", []byte("#!/bin/sh\necho hi\n")), []string{"is a script", "interpreter"}},
		{"windows", file(t, "hello.exe", []byte("MZ\x90\x00\x03\x00")), []string{"Windows program", "GOOS=linux"}},
		{"macos", file(t, "hello", []byte("\xcf\xfa\xed\xfe\x0c\x00")), []string{"macOS program", "GOOS=linux"}},
		{"freebsd", patched(t, systemAt, uint16(elf.ELFOSABI_FREEBSD)), []string{"program for FREEBSD", "GOOS=linux"}},
		{"dynamic", "/bin/ls", []string{"dynamically linked", interpreter(t, "/bin/ls"), "CGO_ENABLED=0", "-static"}},
		{"architecture", patched(t, machineAt, uint16(elf.EM_SPARCV9)), []string{"architecture SPARCV9", "amd64, arm64"}},
		{"object", patched(t, typeAt, uint16(elf.ET_REL)), []string{"not an executable", "ET_REL"}},
		{"truncated", file(t, "prog", []byte("\x7fELF\x02\x01")), []string{"damaged ELF file", "build the program again"}},
		{"reserved", file(t, "tmp", read(t, build(t))), []string{"/tmp", "rename the file"}},
	} {
		t.Run(c.title, func(t *testing.T) {
			_, err := image.FromBinary(c.path, image.Options{})
			if err == nil {
				t.Fatal("was not refused")
			}
			for _, part := range append(c.says, c.path) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is not one sentence", err)
			}
		})
	}
}

func TestVariableNamesAreChecked(t *testing.T) {
	path := build(t)
	for _, name := range []string{"", "A=B", "A\x00"} {
		if _, err := image.FromBinary(path, image.Options{Env: map[string]string{name: "x"}}); err == nil {
			t.Errorf("a variable named %q was not refused", name)
		}
	}
}

func TestShrunkenProgramIsDetected(t *testing.T) {
	path := file(t, "hello", read(t, build(t)))
	img, err := image.FromBinary(path, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1000); err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "became shorter") {
		t.Errorf("reading gives %v", err)
	}
}

func TestLayerIsStreamed(t *testing.T) {
	const size = 16 << 20
	path := file(t, "big", read(t, build(t)))
	if err := os.Truncate(path, size); err != nil { // ELF ignores data after the last segment
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := image.FromBinary(path, image.Options{}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/2 {
		t.Errorf("an image of a program of %d bytes allocates %d", size, allocated)
	}
}

// built is a small static program for this machine, linked once for all tests.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-o", "hello", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "hello"))
})

// build returns the path of a copy of it.
func build(t *testing.T) string {
	t.Helper()
	content, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "hello", content)
}

func file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Where the ELF header says what a program is for.
const (
	systemAt  = 0x07
	typeAt    = 0x10
	machineAt = 0x12
)

// patched returns a program with two bytes of its ELF header changed.
func patched(t *testing.T, offset int, value uint16) string {
	t.Helper()
	path := build(t)
	content := read(t, path)
	binary.LittleEndian.PutUint16(content[offset:], value)
	return file(t, filepath.Base(path), content)
}

func interpreter(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".interp")
	if section == nil {
		t.Fatalf("%s has no interpreter", path)
	}
	content, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(content), "\x00")
}

func digestOf(t *testing.T, path string, opts image.Options) v1.Hash {
	t.Helper()
	img, err := image.FromBinary(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// entries yields what is in the image's only layer.
func entries(t *testing.T, img v1.Image) func(yield func(*tar.Header, []byte) bool) {
	t.Helper()
	return func(yield func(*tar.Header, []byte) bool) {
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for archive := tar.NewReader(r); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(header, content) {
				return
			}
		}
	}
}

func FuzzFromBinary(f *testing.F) {
	program, err := built()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(program[:4096]) // header and segments are at the start
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := file(t, "hello", content)
		img, err := image.FromBinary(path, image.Options{})
		if err != nil {
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not name the file", err)
			}
			return
		}
		if err := validate.Image(img); err != nil {
			t.Error(err)
		}
	})
}
