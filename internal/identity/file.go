package identity

import (
	"fmt"
	"io"
	"os"
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
