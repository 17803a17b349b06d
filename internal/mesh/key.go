package mesh

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
)

// PrivateKey is a node's secret in the mesh. It prints as nothing.
type PrivateKey struct{ key *ecdh.PrivateKey }

// Key is a node's public key in the mesh. Its text is that of other WireGuard tools.
type Key [32]byte

// NewPrivateKey makes a key that no other node has.
func NewPrivateKey() (PrivateKey, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	return PrivateKey{key}, err
}

// ParsePrivateKey reads what Bytes returned.
func ParsePrivateKey(b []byte) (PrivateKey, error) {
	key, err := ecdh.X25519().NewPrivateKey(b)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("a key of the mesh: %w", err)
	}
	return PrivateKey{key}, nil
}

// Bytes is the secret itself.
func (k PrivateKey) Bytes() []byte { return k.key.Bytes() }

// Public is the key that others know.
func (k PrivateKey) Public() Key { return Key(k.key.PublicKey().Bytes()) }

// IsZero reports whether there is no key.
func (k PrivateKey) IsZero() bool { return k.key == nil }

func (PrivateKey) String() string { return "(private key)" }

// GoString keeps %#v from printing the secret.
func (PrivateKey) GoString() string { return "(private key)" }

// shared is the secret that two nodes have in common.
func (k PrivateKey) shared(with Key) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(with[:])
	if err != nil {
		return nil, err
	}
	return k.key.ECDH(public)
}

// ParseKey reads the text of a public key.
func ParseKey(text string) (k Key, err error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("%q is not a key of the mesh: it must be 32 bytes in base64", text)
	}
	if Key(b) == (Key{}) {
		return k, errors.New("the key of the mesh is empty")
	}
	return Key(b), nil
}

func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }
