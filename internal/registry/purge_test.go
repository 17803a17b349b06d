package registry

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/reference"
)

func TestAbandonedUploadIsRemovedAfterAWeek(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		old := beginUpload(t, dir, "team/hello")
		go purgeUploads(ctx, dir, slog.New(slog.DiscardHandler))

		time.Sleep(uploadLife - time.Hour)
		young := beginUpload(t, dir, "team/hello")
		synctest.Wait()
		if !exists(t, old) {
			t.Error("the upload was removed before its week was over")
		}

		time.Sleep(purgeInterval + time.Hour)
		synctest.Wait()
		if exists(t, old) {
			t.Error("the upload is still there after a week and a day")
		}
		if !exists(t, young) {
			t.Error("an upload of yesterday was removed too")
		}
	})
}

func TestPurgeOfEmptyRegistry(t *testing.T) {
	if n, err := purgeOnce(t.Context(), t.TempDir(), time.Now()); n != 0 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
}

// beginUpload begins an upload with the storage library itself, which proves that the purge
// knows its layout, and returns the upload's folder.
func beginUpload(t *testing.T, dir, name string) string {
	t.Helper()
	ctx := newLogBridge(slog.New(slog.DiscardHandler)).context(t.Context())
	images, err := openCatalog(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	named, err := reference.WithName(name)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := images.Repository(ctx, named)
	if err != nil {
		t.Fatal(err)
	}
	upload, err := repo.Blobs(ctx).Create(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := upload.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := upload.Close(); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "docker/registry/v2/repositories", name, "_uploads", upload.ID())
	if !exists(t, folder) {
		t.Fatalf("the upload is not in %s", folder)
	}
	return folder
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}
