// Package programs carries the programs that run beside cloudless inside the cloudless binary, and writes them to
// disk, where they can be run.
//
// The programs are built and compressed before cloudless, once per architecture (see embedded); a binary contains those
// of its own. Without them the package compiles, and [Extract] says what is missing.
//
// The package must not know what the programs do, nor which of the extracted versions are still running: the caller
// removes old ones.
package programs

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

// Program is the name of a program.
type Program string

const (
	// Shim runs once per container.
	Shim Program = "cloudless-shim"
	// Net is the network process of a node.
	Net Program = "cloudless-net"
	// Ingress is the process of a node that answers for routes.
	Ingress Program = "cloudless-ingress"
)

// Prefix begins the names of the extracted versions of a program; a digest follows.
func (p Program) Prefix() string { return string(p) + "-" }

// packed is where the program for this binary's architecture is embedded.
func (p Program) packed() string { return path.Join("embedded", runtime.GOARCH, string(p)+".gz") }

// ErrNotBuilt means that cloudless was compiled without a program.
var ErrNotBuilt = errors.New("this cloudless was built without all of its programs: run make build")

// Extract writes the program to dir, which is created if needed, unless it is there, and returns its path. The name
// includes the program's digest, so that versions exist side by side and a running one is never overwritten.
func (p Program) Extract(dir string) (path string, err error) { return p.extract(embedded, dir) }

func (p Program) extract(files fs.FS, dir string) (string, error) {
	packed, err := fs.ReadFile(files, p.packed())
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotBuilt
	}
	if err != nil {
		return "", fmt.Errorf("read the embedded %s: %w", p, err)
	}
	digest := sha256.Sum256(packed)
	path := filepath.Join(dir, p.Prefix()+hex.EncodeToString(digest[:8]))
	switch _, err := os.Stat(path); {
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("look for %s: %w", p, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the directory of %s: %w", p, err)
	}
	if err := unpack(packed, path); err != nil {
		return "", fmt.Errorf("extract %s to %s: %w", p, path, err)
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
