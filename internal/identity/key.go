package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// OpenOrCreateKey returns the key in a file of mode 0600 and makes it first if there is none. A requester of a
// certificate stores its key first, so that a retry after a lost answer requests the same certificate.
func OpenOrCreateKey(path string) (crypto.Signer, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	key, chain, err := decodeCredentials(data)
	if err == nil && len(chain) > 0 {
		err = errors.New("it holds certificates too")
	}
	if err != nil {
		return nil, fmt.Errorf("load key from %s: %w", path, err)
	}
	return key, nil
}

func createKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	if err := atomicfile.Replace(path, pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der})); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return key, nil
}
