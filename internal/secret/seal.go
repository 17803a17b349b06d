package secret

import (
	"bytes"
	"crypto/rand"
	"fmt"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// MaxSize is how long a value may be, in bytes. The rule in secret.proto says the same.
const MaxSize = 1 << 20

// Wrapper wraps data keys by the key-encryption key, under [state.SecretKeyContext]. Whoever wraps one by another key needs
// the same context.
type Wrapper interface {
	Seal(plaintext []byte, context string) ([]byte, error)
}

// Unwrapper undoes what a Wrapper did.
type Unwrapper interface {
	Unseal(sealed []byte, context string) ([]byte, error)
}

// ValueUID is the uid of the stored value of a version.
func ValueUID(secretUID string, version uint64) string {
	return fmt.Sprintf("%s:%d", secretUID, version)
}

// valueContext binds an encrypted value to its secret and version.
func valueContext(secretUID string, version uint64) []byte {
	return []byte("cloudless/secret-value/" + ValueUID(secretUID, version))
}

// Seal encrypts a value by a new data key.
func Seal(kek Wrapper, secretUID string, version uint64, value []byte) (*statev1.SecretValue, error) {
	fail := func(err error) (*statev1.SecretValue, error) {
		return nil, fmt.Errorf("encrypt version %d of a secret: %w", version, err)
	}
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return fail(err)
	}
	cipher, err := aead.New(handle)
	if err != nil {
		return fail(err)
	}
	ciphertext, err := cipher.Encrypt(value, valueContext(secretUID, version))
	if err != nil {
		return fail(err)
	}
	var key bytes.Buffer
	defer func() { clear(key.Bytes()) }()
	if err := insecurecleartextkeyset.Write(handle, keyset.NewBinaryWriter(&key)); err != nil {
		return fail(err)
	}
	sealed, err := kek.Seal(key.Bytes(), state.SecretKeyContext(secretUID, version))
	if err != nil {
		return fail(err)
	}
	return &statev1.SecretValue{
		Metadata:  &v1.Metadata{Uid: ValueUID(secretUID, version)},
		SecretUid: secretUID, Version: version, SealedKey: sealed, Ciphertext: ciphertext,
	}, nil
}

// Open decrypts a stored value. The caller clears the result as soon as it has no more use for it.
func Open(kek Unwrapper, stored *statev1.SecretValue) ([]byte, error) {
	uid, version := stored.GetSecretUid(), stored.GetVersion()
	key, err := kek.Unseal(stored.GetSealedKey(), state.SecretKeyContext(uid, version))
	if err != nil {
		return nil, fmt.Errorf("open version %d of a secret: %w", version, err)
	}
	defer clear(key)
	cipher, err := readKey(key)
	if err != nil {
		return nil, fmt.Errorf("open version %d of a secret: its data key is damaged: set the secret again, or restore a backup", version)
	}
	value, err := cipher.Decrypt(stored.GetCiphertext(), valueContext(uid, version))
	if err != nil {
		return nil, fmt.Errorf("open version %d of a secret: its value is damaged: set the secret again, or restore a backup", version)
	}
	return value, nil
}

// readKey reads a data key. The errors of the library may quote what it reads, so no caller passes them on.
func readKey(key []byte) (tink.AEAD, error) {
	handle, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(key)))
	if err != nil {
		return nil, err
	}
	return aead.New(handle)
}

// DefaultLength is how many characters a random value has if its author does not say.
const DefaultLength = 32

// alphabet has no character that a shell, a URL or a configuration file would treat specially.
const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// Random returns a value of so many random letters and digits.
func Random(length int) []byte {
	if length <= 0 {
		length = DefaultLength
	}
	value := make([]byte, 0, length)
	// A byte above the largest multiple of the alphabet's length would make some characters likelier.
	const fair = 256 / len(alphabet) * len(alphabet)
	for buffer := make([]byte, 64); len(value) < length; {
		_, _ = rand.Read(buffer) // it never fails
		for _, b := range buffer {
			if int(b) < fair && len(value) < length {
				value = append(value, alphabet[int(b)%len(alphabet)])
			}
		}
		clear(buffer)
	}
	return value
}
