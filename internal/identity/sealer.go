package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// Sealer encrypts the secrets in the replicated state (AES-256-GCM), with a key-encryption key in a file outside of it:
// a copy of the state alone reveals nothing. It is safe for concurrent use.
type Sealer struct {
	path string
	aead tink.AEAD
}

// OpenOrCreateSealer reads the key-encryption key from a file, or makes one if there is none. A file that others
// on this machine can read is refused.
func OpenOrCreateSealer(path string) (*Sealer, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = createKeyEncryptionKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open key-encryption key: %w", err)
	}
	// Nothing here could encrypt the key-encryption key in turn: it is as safe as its file.
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data)))
	if err != nil {
		// The reader's error may quote the key that it read.
		return nil, fmt.Errorf("the key-encryption key in %s is damaged: restore the file from a backup", path)
	}
	primitive, err := aead.New(handle)
	if err != nil {
		return nil, fmt.Errorf("the key-encryption key in %s cannot be used: %w", path, err)
	}
	return &Sealer{path: path, aead: primitive}, nil
}

func createKeyEncryptionKey(path string) ([]byte, error) {
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&data)); err != nil {
		return nil, err
	}
	err = atomicfile.Create(path, data.Bytes())
	if errors.Is(err, fs.ErrExist) { // another process was faster: its key counts
		return readPrivate(path)
	}
	return data.Bytes(), err
}

// Seal encrypts a secret. The context, such as "cluster/ca-key", says what the secret is; it is not stored, and
// [Sealer.Unseal] needs the same one, so that one sealed secret cannot be put in the place of another.
func (s *Sealer) Seal(plaintext []byte, context string) ([]byte, error) {
	sealed, err := s.aead.Encrypt(plaintext, []byte(context))
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", context, err)
	}
	return sealed, nil
}

// Unseal decrypts what [Sealer.Seal] made under the same context.
func (s *Sealer) Unseal(sealed []byte, context string) ([]byte, error) {
	plaintext, err := s.aead.Decrypt(sealed, []byte(context))
	if err != nil {
		// The cipher cannot distinguish a wrong key from a wrong context or a changed byte.
		return nil, fmt.Errorf("unseal %s: it was not sealed as that by the key in %s: "+
			"if the file was lost or replaced, restore it from a backup or from another server", context, s.path)
	}
	return plaintext, nil
}
