// Package atomicfile writes files atomically: after a crash or a power cut a file
// has its old content or its new content, never a part. Files are private to their
// owner (mode 0600).
//
// It does not know what the files contain.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Prefix begins the names of files that are being written. A crash may leave
// one behind in the folder of its target; it is safe to remove.
const Prefix = ".new-"

// Replace writes a file, replacing an existing one.
func Replace(path string, data []byte) error { return place(path, data, os.Rename) }

// Create writes a new file. It fails with fs.ErrExist if the path exists.
func Create(path string, data []byte) error { return place(path, data, os.Link) }

// place writes a temporary file, syncs it, and moves it to its path.
func place(path string, data []byte, move func(from, to string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), Prefix+"*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		// After a rename the name is gone already.
		if rmErr := os.Remove(f.Name()); !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := move(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes renames in a folder durable.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
