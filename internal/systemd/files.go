package systemd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

func replaceFile(path string, mode fs.FileMode, data []byte) (back func() error, settle func(), err error) {
	return replace(path, mode, bytes.NewReader(data))
}

// replace writes a file atomically. back restores the previous file. settle deletes the backup and must always be called
// at the end.
func replace(path string, mode fs.FileMode, content io.Reader) (back func() error, settle func(), err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make %s: %w", dir, err)
	}
	fresh, err := writeAside(path, mode, content)
	if err != nil {
		return nil, nil, fmt.Errorf("write %s: %w", path, err)
	}
	before := fresh + "-before"
	back, settle = func() error { return os.Rename(before, path) }, func() { _ = os.Remove(before) }
	switch err := os.Link(path, before); {
	case errors.Is(err, fs.ErrNotExist):
		back, settle = func() error { return os.Remove(path) }, func() {}
	case err != nil:
		_ = os.Remove(fresh)
		return nil, nil, fmt.Errorf("back up %s: %w", path, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		_ = os.Remove(fresh)
		settle()
		return nil, nil, fmt.Errorf("replace %s: %w", path, err)
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		defer settle()
		return nil, nil, fmt.Errorf("replace %s: %w", path, errors.Join(err, back()))
	}
	return back, settle, nil
}

// writeAside writes content to a new file next to path and returns its name.
func writeAside(path string, mode fs.FileMode, content io.Reader) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), atomicfile.Prefix+"*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := io.Copy(f, content); err != nil {
		return "", err
	}
	if err := f.Chmod(mode); err != nil {
		return "", err
	}
	return f.Name(), f.Sync()
}
