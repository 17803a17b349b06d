// Package shim carries the program cloudless-shim inside the cloudless binary
// and puts it on disk, where containerd can run it.
//
// The program is built and compressed before cloudless is, once per architecture
// (see embedded), and that of the binary's own is in it; without it the package
// compiles, and [Extract] says what is missing.
//
// The package must not know what the shim does, nor which of the extracted
// versions are still running: removing old ones is the caller's business.
package shim

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
)

// Prefix is how the names of extracted shims begin; a digest follows.
const Prefix = "cloudless-shim-"

// ErrNotBuilt means that cloudless was compiled without its shim.
var ErrNotBuilt = errors.New("this cloudless was built without its shim: run make build")

// packedPath is where the shim of this binary's architecture is embedded.
var packedPath = path.Join("embedded", runtime.GOARCH, "cloudless-shim.gz")

// Extract makes sure that the shim lies in dir, which is created if need be,
// and returns its path. The name carries the shim's digest, so that versions
// stand side by side and a running one is never overwritten. What is already
// there is left as it is.
func Extract(dir string) (path string, err error) {
	return extract(embedded, dir)
}

func extract(files fs.FS, dir string) (string, error) {
	packed, err := fs.ReadFile(files, packedPath)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotBuilt
	}
	if err != nil {
		return "", fmt.Errorf("read the embedded shim: %w", err)
	}
	digest := sha256.Sum256(packed)
	path := filepath.Join(dir, Prefix+hex.EncodeToString(digest[:8]))
	switch _, err := os.Stat(path); {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("look for the shim: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the shim's directory: %w", err)
	}
	if err := unpack(packed, path); err != nil {
		return "", fmt.Errorf("extract the shim to %s: %w", path, err)
	}
	return path, nil
}

// unpack writes the program so that path either does not exist or is whole,
// also after a crash and with several callers at once.
func unpack(packed []byte, path string) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails once the file has its final name
	defer file.Close()
	if _, err := io.Copy(file, unzipped); err != nil {
		return err
	}
	if err := file.Chmod(0o755); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	// A program that is open for writing cannot be run.
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
