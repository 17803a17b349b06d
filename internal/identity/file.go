package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// readPrivate reads a file that holds a secret, and refuses one that others on this machine can read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: another one cannot be slipped in between
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: it must hold a secret of this cluster", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s holds a secret and has mode %04o, so that others can reach it: run chmod 600 %s, "+
			"and think of the secret as known to them", path, mode, path)
	}
	return io.ReadAll(f)
}

// writePrivate puts a secret at the path, all or nothing, in place of what is there.
func writePrivate(path string, data []byte) error {
	return placePrivate(path, data, os.Rename)
}

// createPrivate puts a secret at the path, all or nothing, unless something is there: then fs.ErrExist.
func createPrivate(path string, data []byte) error {
	return placePrivate(path, data, os.Link)
}

// placePrivate writes a file aside and moves it to its path when it is safe on the disk.
func placePrivate(path string, data []byte, place func(from, to string) error) (err error) {
	// CreateTemp makes files with mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
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
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
