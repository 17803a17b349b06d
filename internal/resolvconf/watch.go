package resolvconf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Watch calls changed when one of the files may have changed, until ctx ends. It calls it once at the beginning,
// after which no change is missed.
func Watch(ctx context.Context, paths []string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch name servers: %w", err)
	}
	defer func() { _ = w.Close() }()
	if err := watchFolders(w, paths); err != nil {
		return fmt.Errorf("watch name servers: %w", err)
	}
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			if !strings.HasSuffix(e.Name, "resolv.conf") {
				continue
			}
		case <-w.Errors:
		}
		_ = watchFolders(w, paths) // a link may lead elsewhere now
		changed()
	}
}

// watchFolders watches folders, because files are replaced.
func watchFolders(w *fsnotify.Watcher, paths []string) error {
	for _, path := range paths {
		for _, p := range []string{path, followed(path)} {
			if err := w.Add(filepath.Dir(p)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func followed(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}
