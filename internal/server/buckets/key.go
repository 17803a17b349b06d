package buckets

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/state"
)

// What the id of an access key consists of. It is a name of the cluster, so it has no upper case.
const (
	idPrefix = "cl"
	idRandom = 18
	idDigits = "abcdefghijklmnopqrstuvwxyz234567"
	// secretLength is that of S3's own secrets: some clients check it.
	secretLength = 40
)

// NewKeyID returns the id of a new access key.
func NewKeyID() string {
	random := make([]byte, idRandom)
	_, _ = rand.Read(random) // it never fails
	for i, b := range random {
		random[i] = idDigits[int(b)%len(idDigits)]
	}
	return idPrefix + string(random)
}

// IsKeyID reports whether a text could be the id of an access key.
func IsKeyID(id string) bool {
	random, ok := strings.CutPrefix(id, idPrefix)
	return ok && len(random) == idRandom && strings.Trim(random, idDigits) == ""
}

// Sealer seals by the servers' key-encryption key.
type Sealer interface {
	Seal(plaintext []byte, context string) ([]byte, error)
}

// NewSecret makes the secret of a key: as its user gets it, once, and as it is stored.
func NewSecret(sealer Sealer, key *v1.AccessKey) (text string, stored *statev1.AccessKeySecret, err error) {
	plain, uid := secret.Random(secretLength), key.GetMetadata().GetUid()
	defer clear(plain)
	sealed, err := sealer.Seal(plain, state.AccessKeyContext(uid))
	if err != nil {
		return "", nil, err
	}
	return string(plain), &statev1.AccessKeySecret{Metadata: &v1.Metadata{Uid: uid}, Sealed: sealed}, nil
}

// idLength is how many random bytes the id of a bucket's key has.
const idLength = 8

// NewBucketKey makes the key that encrypts what is in a bucket, as it is stored.
func NewBucketKey(sealer Sealer, bucketUID string) (*statev1.BucketKey, error) {
	plain, random := make([]byte, object.KeySize), make([]byte, idLength)
	defer clear(plain)
	_, _ = rand.Read(plain) // it never fails
	_, _ = rand.Read(random)
	id := hex.EncodeToString(random)
	sealed, err := sealer.Seal(plain, state.BucketKeyContext(bucketUID, id))
	if err != nil {
		return nil, err
	}
	return &statev1.BucketKey{Metadata: &v1.Metadata{Uid: bucketUID}, Id: id, Sealed: sealed}, nil
}
