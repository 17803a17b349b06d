package identity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// Sealer encrypts the secrets in the replicated state (AES-256-GCM), with a key-encryption key in a file outside of it:
// a copy of the state alone reveals nothing. While the key is replaced, the file holds two: one of them seals, and each
// opens what it has sealed. It is safe for concurrent use.
type Sealer struct {
	path string
	mu   sync.Mutex // held while the file is replaced
	now  atomic.Pointer[sealingKeys]
}

// sealingKeys are the keys in the file. They do not change.
type sealingKeys struct {
	keyset *tinkpb.Keyset
	aead   tink.AEAD
}

// ErrUnknownKey says that something was sealed by a key-encryption key that this server does not have.
var ErrUnknownKey = errors.New("it was not sealed by a key that this server has")

// OpenSealer reads the key-encryption key from a file. A file that others on this machine can read is refused.
func OpenSealer(path string) (*Sealer, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("open key-encryption key: %w", err)
	}
	// Nothing here could encrypt the key-encryption key in turn: it is as safe as its file.
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data)))
	if err != nil {
		// The reader's error may quote the key that it read.
		return nil, fmt.Errorf("the key-encryption key in %s is damaged: restore the file from a backup", path)
	}
	keys, err := newSealingKeys(handle)
	if err != nil {
		return nil, fmt.Errorf("the key-encryption key in %s cannot be used: %w", path, err)
	}
	s := &Sealer{path: path}
	s.now.Store(keys)
	return s, nil
}

// OpenOrCreateSealer reads the key-encryption key from a file, or makes one if there is none.
func OpenOrCreateSealer(path string) (*Sealer, error) {
	s, err := OpenSealer(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	data, err := newKeyset()
	if err != nil {
		return nil, fmt.Errorf("create key-encryption key: %w", err)
	}
	if err := atomicfile.Create(path, data); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster: its key counts
		return nil, fmt.Errorf("create key-encryption key: %w", err)
	}
	return OpenSealer(path)
}

func newKeyset() ([]byte, error) {
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, err
	}
	return marshalKeyset(handle)
}

func marshalKeyset(handle *keyset.Handle) ([]byte, error) {
	var data bytes.Buffer
	err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&data))
	return data.Bytes(), err
}

func newSealingKeys(handle *keyset.Handle) (*sealingKeys, error) {
	primitive, err := aead.New(handle)
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewBinaryWriter(&data)); err != nil {
		return nil, err
	}
	all := &tinkpb.Keyset{}
	if err := proto.Unmarshal(data.Bytes(), all); err != nil {
		return nil, errors.New("the key-encryption keys cannot be read") // the error could quote them
	}
	return &sealingKeys{keyset: all, aead: primitive}, nil
}

// keyName is the id of a key as users see it.
func keyName(id uint32) string { return fmt.Sprintf("%08x", id) }

// KeyID is the id of the key that seals.
func (s *Sealer) KeyID() string { return keyName(s.now.Load().keyset.GetPrimaryKeyId()) }

// KeyIDs are the ids of all keys in the file.
func (s *Sealer) KeyIDs() []string {
	var all []string
	for _, key := range s.now.Load().keyset.GetKey() {
		all = append(all, keyName(key.GetKeyId()))
	}
	return all
}

// SealedBy is the id of the key that has sealed something; empty if nothing was sealed.
func SealedBy(sealed []byte) string {
	const prefix = 5 // of Tink: a version and the id
	if len(sealed) < prefix {
		return ""
	}
	return keyName(binary.BigEndian.Uint32(sealed[1:prefix]))
}

// NextKey makes a key for [Sealer.AddKey]. It must be sealed before it is sent anywhere.
func NextKey() (id string, key []byte, err error) {
	key, err = newKeyset()
	if err != nil {
		return "", nil, fmt.Errorf("create key-encryption key: %w", err)
	}
	read, err := readKeyset(key)
	if err != nil {
		return "", nil, err
	}
	return keyName(read.GetPrimaryKeyId()), key, nil
}

func readKeyset(data []byte) (*tinkpb.Keyset, error) {
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data)))
	if err != nil {
		return nil, errors.New("the key-encryption key is damaged") // the error may quote it
	}
	keys, err := newSealingKeys(handle)
	if err != nil {
		return nil, err
	}
	return keys.keyset, nil
}

// AddKey adds a key of [NextKey] to the file, and is done when the file is on disk. The key opens, and does not seal
// before [Sealer.UseKey].
func (s *Sealer) AddKey(key []byte) error {
	added, err := readKeyset(key)
	if err != nil {
		return err
	}
	return s.replace(func(all *tinkpb.Keyset) {
		for _, one := range added.GetKey() {
			if !slices.ContainsFunc(all.Key, func(k *tinkpb.Keyset_Key) bool { return k.GetKeyId() == one.GetKeyId() }) {
				all.Key = append(all.Key, one)
			}
		}
	})
}

// UseKey makes one of the keys seal.
func (s *Sealer) UseKey(id string) error {
	if !slices.Contains(s.KeyIDs(), id) {
		return fmt.Errorf("the key-encryption key %s is not in %s: copy that file from another server of the cluster", id, s.path)
	}
	return s.replace(func(all *tinkpb.Keyset) {
		for _, key := range all.GetKey() {
			if keyName(key.GetKeyId()) == id {
				all.PrimaryKeyId = key.GetKeyId()
			}
		}
	})
}

// DropKeys removes all keys but the one that seals from the file.
func (s *Sealer) DropKeys() error {
	return s.replace(func(all *tinkpb.Keyset) {
		all.Key = slices.DeleteFunc(all.Key, func(k *tinkpb.Keyset_Key) bool { return k.GetKeyId() != all.GetPrimaryKeyId() })
	})
}

// replace changes the file, and then what this sealer uses.
func (s *Sealer) replace(change func(*tinkpb.Keyset)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.now.Load().keyset
	next := &tinkpb.Keyset{PrimaryKeyId: old.GetPrimaryKeyId(), Key: slices.Clone(old.GetKey())}
	change(next)
	if next.PrimaryKeyId == old.PrimaryKeyId && len(next.Key) == len(old.Key) {
		return nil
	}
	encoded, err := proto.Marshal(next)
	if err != nil {
		return errors.New("the key-encryption keys cannot be encoded") // the error could quote them
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(encoded)))
	if err != nil {
		return errors.New("the key-encryption keys cannot be used together")
	}
	keys, err := newSealingKeys(handle)
	if err != nil {
		return fmt.Errorf("change the key-encryption key: %w", err)
	}
	data, err := marshalKeyset(handle)
	if err != nil {
		return fmt.Errorf("change the key-encryption key: %w", err)
	}
	if err := atomicfile.Replace(s.path, data); err != nil {
		return fmt.Errorf("change the key-encryption key: %w", err)
	}
	s.now.Store(keys)
	return nil
}

// Seal encrypts a secret. The context, such as "cluster/ca-key", says what the secret is; it is not stored, and
// [Sealer.Unseal] needs the same one, so that one sealed secret cannot be put in the place of another.
func (s *Sealer) Seal(plaintext []byte, context string) ([]byte, error) {
	sealed, err := s.now.Load().aead.Encrypt(plaintext, []byte(context))
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", context, err)
	}
	return sealed, nil
}

// Unseal decrypts what [Sealer.Seal] made under the same context.
func (s *Sealer) Unseal(sealed []byte, context string) ([]byte, error) {
	plaintext, err := s.now.Load().aead.Decrypt(sealed, []byte(context))
	if err == nil {
		return plaintext, nil
	}
	// The cipher cannot distinguish a wrong key from a wrong context or a changed byte.
	err = fmt.Errorf("unseal %s: it was not sealed as that by the key in %s: "+
		"if the file was lost or replaced, restore it from a backup or from another server", context, s.path)
	if !slices.Contains(s.KeyIDs(), SealedBy(sealed)) {
		return nil, fmt.Errorf("%w (%w)", err, ErrUnknownKey)
	}
	return nil, err
}

// Reseal seals again, by the key that seals now, what another key has sealed under the same context.
func (s *Sealer) Reseal(sealed []byte, context string) ([]byte, error) {
	plaintext, err := s.Unseal(sealed, context)
	if err != nil {
		return nil, err
	}
	defer clear(plaintext)
	return s.Seal(plaintext, context)
}
