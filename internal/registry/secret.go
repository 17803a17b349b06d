package registry

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

const secretSize = 32

// loadSecret returns the key that signs the state of an upload, which travels through the
// client. It is created once and stored, so that uploads survive a restart.
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

// createSecret creates a secret atomically.
func createSecret(path string) (string, error) {
	raw := make([]byte, secretSize)
	rand.Read(raw) // never fails
	secret := hex.EncodeToString(raw)
	if err := atomicfile.Replace(path, []byte(secret+"\n")); err != nil {
		return "", fmt.Errorf("create the upload secret: %w", err)
	}
	return secret, nil
}
