package identity

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// A joining server gets the key-encryption key by HPKE (RFC 9180), inside the TLS connection of its enrollment: only
// that server can read it, wherever else the answer may pass.
func handoverSuite() (hpke.KEM, hpke.KDF, hpke.AEAD) {
	return hpke.DHKEM(ecdh.X25519()), hpke.HKDFSHA256(), hpke.AES256GCM()
}

func handoverInfo(cluster string) []byte { return []byte("cloudless/key-encryption-key/" + cluster) }

// Handover is the receiving end of a key-encryption key.
type Handover struct{ key hpke.PrivateKey }

// NewHandover makes a key for which the key-encryption key will be sealed.
func NewHandover() (*Handover, error) {
	kem, _, _ := handoverSuite()
	key, err := kem.GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("create handover key: %w", err)
	}
	return &Handover{key: key}, nil
}

// PublicKey is the key for which the other end seals.
func (h *Handover) PublicKey() []byte { return h.key.PublicKey().Bytes() }

// Accept opens what [Sealer.HandOver] made for this key and writes it to a file, as [OpenOrCreateSealer] reads it. A
// file that holds another key is left alone, and refused.
func (h *Handover) Accept(sealed []byte, cluster, path string) error {
	_, kdf, aead := handoverSuite()
	data, err := hpke.Open(h.key, kdf, aead, handoverInfo(cluster), sealed)
	if err != nil {
		return errors.New("the key-encryption key that the cluster sent was not meant for this server")
	}
	if _, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data))); err != nil {
		return errors.New("the key-encryption key that the cluster sent is damaged") // the error may quote it
	}
	err = atomicfile.Create(path, data)
	if errors.Is(err, fs.ErrExist) {
		have, readErr := os.ReadFile(path)
		if readErr == nil && bytes.Equal(have, data) {
			return nil
		}
		return fmt.Errorf("%s holds the key of another cluster: choose another --data-dir", path)
	}
	if err != nil {
		return fmt.Errorf("keep the key-encryption key: %w", err)
	}
	return nil
}

// HandOver seals the key-encryption key to the public key of a [Handover].
func (s *Sealer) HandOver(to []byte, cluster string) ([]byte, error) {
	kem, kdf, aead := handoverSuite()
	public, err := kem.NewPublicKey(to)
	if err != nil {
		return nil, fmt.Errorf("the key to seal to is none: %w", err)
	}
	data, err := readPrivate(s.path)
	if err != nil {
		return nil, fmt.Errorf("read the key-encryption key: %w", err)
	}
	sealed, err := hpke.Seal(public, kdf, aead, handoverInfo(cluster), data)
	if err != nil {
		return nil, fmt.Errorf("seal the key-encryption key: %w", err)
	}
	return sealed, nil
}
