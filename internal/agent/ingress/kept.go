package ingress

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/atomicfile"
)

// fileName is the file with the set, below the folder of the cloud in /run.
const fileName = "ingress-set"

// onTmpfs reports whether a folder is in memory only. A variable, so that tests can say so of their folders.
var onTmpfs = func(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
}

// keep writes the set for an agent that starts without servers. A set that is empty leaves no file.
func keep(dir string, s *v1.IngressDown) error {
	if len(s.GetRoutes()) == 0 {
		return forget(dir)
	}
	if !onTmpfs(dir) {
		return nil // keys must not be on a disk
	}
	data, err := proto.Marshal(s)
	if err == nil {
		err = atomicfile.Replace(filepath.Join(dir, fileName), data)
	}
	if err != nil {
		return fmt.Errorf("keep what is known of routes: %w", err)
	}
	return nil
}

// load returns the set that an earlier agent has kept; nil if there is none.
func load(dir string) (*v1.IngressDown, error) {
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	kept := &v1.IngressDown{}
	if err == nil {
		err = proto.Unmarshal(data, kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is known of routes: %w", err)
	}
	kept.Full = true
	return kept, nil
}

func forget(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget what is known of routes: %w", err)
	}
	return nil
}
