package core

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Receipt makes a call idempotent: the first call stores it in the state, in the same
// transaction as the object.
type Receipt struct {
	Name    string // empty if the call has no key
	request []byte
}

// NewReceipt returns the receipt of a call of a method with an idempotency key.
func NewReceipt(ctx context.Context, method, key string, request proto.Message) (Receipt, error) {
	if key == "" {
		return Receipt{}, nil
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return Receipt{}, fmt.Errorf("encode the request: %w", err)
	}
	// Keys of different callers and methods never collide.
	name := sha256.Sum256([]byte(Caller(ctx).ID.String() + "\x00" + method + "\x00" + key))
	content := sha256.Sum256(data)
	return Receipt{Name: hex.EncodeToString(name[:]), request: content[:]}, nil
}

// Find returns the receipt that an earlier call with this key stored; nil if there was
// none.
func (r Receipt) Find(snap *state.Snapshot) (*statev1.Receipt, error) {
	if r.Name == "" {
		return nil, nil
	}
	earlier := snap.ReceiptByName(r.Name)
	if earlier != nil && !bytes.Equal(earlier.GetRequestHash(), r.request) {
		return nil, ErrOtherRequest
	}
	return earlier, nil
}

// ErrOtherRequest refuses an idempotency key that an earlier, different request had.
var ErrOtherRequest = Refuse(codes.InvalidArgument, "this idempotency key was used for a different request; use a new key for each request")

// ResultOf is the annotation of a receipt that holds the result in the answer, besides the
// object.
const ResultOf = "result"

// Keep adds the receipt to the transaction that creates the object.
func (r Receipt) Keep(b *state.Batch, object, result string) {
	if r.Name == "" {
		return
	}
	uid := state.NewUID()
	kept := &statev1.Receipt{Metadata: &v1.Metadata{Uid: uid, Name: r.Name}, RequestHash: r.request, ObjectUid: object}
	if result != "" {
		kept.Metadata.Annotations = map[string]string{ResultOf: result}
	}
	b.Create(kept)
}
