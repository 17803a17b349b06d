package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/google/uuid"
)

const (
	uploadLife    = 7 * 24 * time.Hour
	purgeInterval = 24 * time.Hour
)

// purgeUploads removes abandoned uploads, now and every day, until the context ends. The
// storage library has a function for it, but that one writes to the process-wide logger.
func purgeUploads(ctx context.Context, dir string, log *slog.Logger) {
	ticker := time.NewTicker(purgeInterval)
	defer ticker.Stop()
	for {
		removed, err := purgeOnce(ctx, dir, time.Now().Add(-uploadLife))
		if err != nil && ctx.Err() == nil {
			log.Warn("could not remove all abandoned image uploads, will try again", "error", err, "in", purgeInterval)
		}
		if removed > 0 {
			log.Info("removed abandoned image uploads", "number", removed)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// purgeOnce removes the uploads that began before the given time and returns their number.
// An upload is a folder repositories/<name>/_uploads/<id> with a file that says when it
// began.
func purgeOnce(ctx context.Context, dir string, before time.Time) (int, error) {
	var removed int
	var failed []error
	root := filepath.Join(dir, "docker", "registry", "v2", "repositories")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // nothing was pushed yet, or it has just finished
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !entry.IsDir():
			return nil
		case filepath.Base(filepath.Dir(path)) == "_uploads":
			gone, err := removeIfOld(path, before)
			if err != nil {
				failed = append(failed, err)
			}
			if gone {
				removed++
			}
			return fs.SkipDir
		case strings.HasPrefix(entry.Name(), "_") && entry.Name() != "_uploads":
			return fs.SkipDir // manifests and layers
		}
		return nil
	})
	return removed, errors.Join(append(failed, err)...)
}

func removeIfOld(upload string, before time.Time) (bool, error) {
	content, err := os.ReadFile(filepath.Join(upload, "startedat"))
	if errors.Is(err, fs.ErrNotExist) {
		// Just beginning or just finished; or what a broken request wrote after the upload
		// was cancelled.
		if info, err := os.Stat(upload); err != nil || !info.ModTime().Before(before) {
			return false, nil
		}
	} else if err != nil {
		return false, fmt.Errorf("read when an upload began: %w", err)
	}
	// An upload with an unreadable start is useless: resuming it needs that, too.
	began, err := time.Parse(time.RFC3339, string(content))
	if err == nil && !began.Before(before) {
		return false, nil
	}
	if err := os.RemoveAll(upload); err != nil {
		return false, fmt.Errorf("remove an abandoned upload: %w", err)
	}
	return true, nil
}

// tidyUpload removes the folder of an upload that was finished or cancelled: the library
// writes into it once more when it closes the upload.
func (r *Registry) tidyUpload(repository, id string) {
	if _, err := reference.WithName(repository); err != nil || uuid.Validate(id) != nil {
		return // it becomes a path
	}
	upload := filepath.Join(r.repositoriesDir(), filepath.FromSlash(repository), "_uploads", id)
	if _, err := os.Stat(filepath.Join(upload, "startedat")); errors.Is(err, fs.ErrNotExist) {
		_ = os.RemoveAll(upload) // purgeUploads removes the rest in time
	}
}
