package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// program is a file that can be the only program of an image.
type program struct {
	path     string
	name     string // file name, and name in the image's root folder
	size     int64
	platform v1.Platform
}

// reserved are names in the root folder that the image itself or the container runtime uses.
var reserved = []string{"dev", "etc", "proc", "run", "sys", "tmp"}

// platforms are those that an ELF header can name and containers are known to run on.
var platforms = []struct {
	machine  elf.Machine
	class    elf.Class
	data     elf.Data
	platform v1.Platform
}{
	{elf.EM_X86_64, elf.ELFCLASS64, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "amd64"}},
	{elf.EM_AARCH64, elf.ELFCLASS64, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "arm64"}},
	// The header does not contain the version; every ARM board that containers run on today is at least a v7.
	{elf.EM_ARM, elf.ELFCLASS32, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}},
	{elf.EM_RISCV, elf.ELFCLASS64, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "riscv64"}},
	{elf.EM_PPC64, elf.ELFCLASS64, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "ppc64le"}},
	{elf.EM_S390, elf.ELFCLASS64, elf.ELFDATA2MSB, v1.Platform{OS: "linux", Architecture: "s390x"}},
	{elf.EM_386, elf.ELFCLASS32, elf.ELFDATA2LSB, v1.Platform{OS: "linux", Architecture: "386"}},
}

// inspect refuses, each time in one sentence with the way out, everything that is not a static Linux program for a
// known architecture.
func inspect(path string) (program, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return program{}, fmt.Errorf("%s does not exist: build the program first, or correct the path", path)
	case err != nil:
		return program{}, fmt.Errorf("look at the program: %w", err)
	case info.IsDir():
		return program{}, fmt.Errorf("%s is a folder: name the program file inside it", path)
	case !info.Mode().IsRegular():
		return program{}, fmt.Errorf("%s is not a regular file: name a program file", path)
	}
	name := filepath.Base(path)
	if slices.Contains(reserved, name) {
		return program{}, fmt.Errorf("%s cannot be put at /%s, because every container has a folder of that name: rename the file", path, name)
	}

	f, err := os.Open(path)
	if err != nil {
		return program{}, fmt.Errorf("open the program: %w", err)
	}
	defer f.Close()
	if err := checkMagic(path, f); err != nil {
		return program{}, err
	}
	platform, err := checkELF(path, f)
	if err != nil {
		return program{}, err
	}
	return program{path: path, name: name, size: info.Size(), platform: platform}, nil
}

// checkMagic says what a file that is not an ELF file is instead, as far as its first bytes tell.
func checkMagic(path string, r io.ReaderAt) error {
	var buf [4]byte
	n, err := r.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the program: %w", err)
	}
	magic := buf[:n]
	switch {
	case string(magic) == elf.ELFMAG:
		return nil
	case n == 0:
		return fmt.Errorf("%s is empty: build the program again", path)
	case bytes.HasPrefix(magic, []byte("#!")):
		return fmt.Errorf("%s is a script, whose interpreter the image would not have: "+
			"name a static Linux program, or an image that contains the interpreter", path)
	case bytes.HasPrefix(magic, []byte("MZ")):
		return fmt.Errorf("%s is a Windows program: build it for Linux (with Go: GOOS=linux CGO_ENABLED=0 go build)", path)
	case isMachO(magic):
		return fmt.Errorf("%s is a macOS program: build it for Linux (with Go: GOOS=linux CGO_ENABLED=0 go build)", path)
	default:
		return fmt.Errorf("%s is not an ELF executable: name a static Linux program", path)
	}
}

func isMachO(magic []byte) bool {
	switch string(magic) {
	case "\xfe\xed\xfa\xce", "\xfe\xed\xfa\xcf", "\xce\xfa\xed\xfe", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe":
		return true
	}
	return false
}

func checkELF(path string, r io.ReaderAt) (v1.Platform, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return v1.Platform{}, fmt.Errorf("%s is a damaged ELF file (%w): build the program again", path, err)
	}
	if f.OSABI != elf.ELFOSABI_NONE && f.OSABI != elf.ELFOSABI_LINUX {
		system := strings.TrimPrefix(f.OSABI.String(), "ELFOSABI_")
		return v1.Platform{}, fmt.Errorf("%s is a program for %s: build it for Linux (with Go: GOOS=linux CGO_ENABLED=0 go build)", path, system)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return v1.Platform{}, fmt.Errorf("%s is an ELF file but not an executable (%s): name the linked program", path, f.Type)
	}
	platform, err := platformOf(path, f)
	if err != nil {
		return v1.Platform{}, err
	}
	if err := checkStatic(path, f); err != nil {
		return v1.Platform{}, err
	}
	return platform, nil
}

func platformOf(path string, f *elf.File) (v1.Platform, error) {
	var known []string
	for _, p := range platforms {
		if p.machine == f.Machine && p.class == f.Class && p.data == f.Data {
			return p.platform, nil
		}
		known = append(known, p.platform.Architecture)
	}
	return v1.Platform{}, fmt.Errorf("%s is built for the architecture %s (%s, %s), which is not supported: build it for one of %s",
		path, strings.TrimPrefix(f.Machine.String(), "EM_"), f.Class, f.Data, strings.Join(known, ", "))
}

// checkStatic refuses programs that need files which the image does not have. A position independent static program has
// neither an interpreter nor libraries to load, but unlike a shared library it has an entry point.
func checkStatic(path string, f *elf.File) error {
	const wayOut = "link it statically (Go: CGO_ENABLED=0 go build; C: -static; Rust: a musl target), or name an image that contains them"
	interpreter, err := interpreterOf(f)
	if err != nil {
		return fmt.Errorf("%s is a damaged ELF file (%w): build the program again", path, err)
	}
	if interpreter != "" {
		return fmt.Errorf("%s is dynamically linked and needs %s and its libraries, which the image would not have: %s", path, interpreter, wayOut)
	}
	// A file without section headers lists no libraries; without an interpreter it is static then.
	if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
		return fmt.Errorf("%s needs the libraries %s, which the image would not have: %s", path, strings.Join(libraries, ", "), wayOut)
	}
	if f.Entry == 0 {
		return fmt.Errorf("%s is a library without an entry point: name a program", path)
	}
	return nil
}

func interpreterOf(f *elf.File) (string, error) {
	const longestPath = 4096
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(p.Open(), longestPath))
		if err != nil {
			return "", fmt.Errorf("read the interpreter's name: %w", err)
		}
		return string(bytes.TrimRight(b, "\x00")), nil
	}
	return "", nil
}
