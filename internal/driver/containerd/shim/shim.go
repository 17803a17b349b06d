// Package shim carries the program cloudless-shim inside the cloudless binary and writes it
// to disk, where containerd can run it.
//
// The program is built and compressed before cloudless, once per architecture (see
// embedded); a binary contains that of its own. Without it the package compiles, and
// [Extract] says what is missing.
//
// The package must not know what the shim does, nor which of the extracted versions are
// still running: the caller removes old ones.
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

// Prefix begins the names of extracted shims; a digest follows.
const Prefix = "cloudless-shim-"

// ErrNotBuilt means that cloudless was compiled without its shim.
var ErrNotBuilt = errors.New("this cloudless was built without its shim: run make build")

// packedPath is where the shim of this binary's architecture is embedded.
var packedPath = path.Join("embedded", runtime.GOARCH, "cloudless-shim.gz")

// Extract writes the shim to dir, which is created if needed, unless it is there, and
// returns its path. The name includes the shim's digest, so that versions exist side by
// side and a running one is never overwritten.
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

// unpack writes the program atomically, also after a crash and with concurrent callers.
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
