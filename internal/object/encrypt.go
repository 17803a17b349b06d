package object

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	// KeySize is how many bytes a key has.
	KeySize = 32
	// nonceSize is that of the counter. It is random, and a block counts up to 2^18: counters practically never meet.
	nonceSize = aes.BlockSize
)

// Key encrypts the content of a bucket by AES-256 in counter mode. Every block has a nonce of its own. The length stays
// the same and any part can be decrypted alone. The digest of a block is that of the encrypted bytes, so it protects them.
type Key struct {
	id    string
	block cipher.Block
}

// NewKey returns the key with these bytes, which the caller may clear. Objects name the key by its id.
func NewKey(id string, secret []byte) (*Key, error) {
	if id == "" || len(secret) != KeySize {
		return nil, fmt.Errorf("the key of a bucket has an id and %d bytes", KeySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, fmt.Errorf("the key of a bucket: %w", err)
	}
	return &Key{id: id, block: block}, nil
}

// String implements fmt.Stringer without the secret.
func (k *Key) String() string { return "key " + k.id }

// apply encrypts a part of a block in place, or decrypts it. The part begins at an offset of the block.
func (k *Key) apply(nonce []byte, offset uint32, data []byte) {
	stream := cipher.NewCTR(k.block, counterAt(nonce, uint64(offset/aes.BlockSize)))
	var skipped [aes.BlockSize]byte
	stream.XORKeyStream(skipped[:offset%aes.BlockSize], skipped[:offset%aes.BlockSize])
	stream.XORKeyStream(data, data)
}

// counterAt returns the nonce plus a number of steps, as a 128-bit counter.
func counterAt(nonce []byte, steps uint64) []byte {
	high, low := binary.BigEndian.Uint64(nonce), binary.BigEndian.Uint64(nonce[8:])
	if low+steps < low {
		high++
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, high), low+steps)
}

// encrypt encrypts a buffer in place, and returns the nonce; nil without a key.
func (k *Key) encrypt(buf *buffer) []byte {
	if k == nil {
		return nil
	}
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce) // it never fails
	k.apply(nonce, 0, buf.data)
	return nonce
}

// encryption is how blocks are encrypted by a key; nil without one.
func (k *Key) encryption() *objectv1.Encryption {
	if k == nil {
		return nil
	}
	return &objectv1.Encryption{Key: k.id}
}

// ErrKeyLost says that nobody can read content any more.
var ErrKeyLost = errors.New("it is encrypted by a key that does not exist any more")

// encryption is how new content of the bucket is encrypted; nil if it is not.
func (b Bucket) encryption() *objectv1.Encryption {
	if b.Encryption == "" {
		return nil
	}
	return &objectv1.Encryption{Key: b.Encryption}
}

// key returns the key of content; nil if the content is not encrypted.
func (b Bucket) key(ctx context.Context, e *objectv1.Encryption) (*Key, error) {
	if e.GetKey() == "" {
		return nil, nil
	}
	if b.Keys == nil {
		return nil, ErrKeyLost
	}
	key, err := b.Keys(ctx, e.GetKey())
	if err != nil {
		return nil, err
	}
	if key == nil || key.id != e.GetKey() {
		return nil, ErrKeyLost
	}
	return key, nil
}

// sealing is how a block is decrypted.
type sealing struct {
	key   *Key
	nonce []byte
}

// sealingOf refuses a block that cannot be decrypted.
func sealingOf(block *objectv1.Block, key *Key) (sealing, error) {
	switch nonce := block.GetNonce(); {
	case len(nonce) == 0:
		return sealing{}, nil
	case key == nil:
		return sealing{}, ErrKeyLost
	case len(nonce) != nonceSize:
		return sealing{}, fmt.Errorf("block %x has a nonce of %d bytes instead of %d", block.GetHash()[:8], len(nonce), nonceSize)
	default:
		return sealing{key, nonce}, nil
	}
}

// open decrypts a part of the block in place.
func (s sealing) open(offset uint32, data []byte) {
	if s.key != nil {
		s.key.apply(s.nonce, offset, data)
	}
}
