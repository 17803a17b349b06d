package registry

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const secretSize = 32

// loadSecret returns the key that signs the state of an upload, which travels
// through the client. It is made once and kept, so that uploads outlive a
// restart.
func loadSecret(path string) (string, error) {
	stored, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createSecret(path)
	}
	if err != nil {
		return "", fmt.Errorf("read the upload secret: %w", err)
	}
	secret := strings.TrimSpace(string(stored))
	if raw, err := hex.DecodeString(secret); err != nil || len(raw) != secretSize {
		return "", fmt.Errorf("the upload secret %s is damaged: remove the file, and unfinished uploads will have to begin again", path)
	}
	return secret, nil
}

// createSecret writes beside the final name first, so that a crash leaves
// either no secret or a whole one.
func createSecret(path string) (_ string, err error) {
	raw := make([]byte, secretSize)
	rand.Read(raw) // never fails
	secret := hex.EncodeToString(raw)

	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return "", fmt.Errorf("create the upload secret: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("create the upload secret: %w", errors.Join(err, os.Remove(f.Name())))
		}
	}()
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return "", err
	}
	return secret, nil
}
