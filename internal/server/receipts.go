package server

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

// receipt makes a creating call harmless to repeat: the first call leaves it
// in the state, in the same transaction as the object.
type receipt struct {
	name    string // empty when the call has no key
	request []byte
}

func newReceipt(ctx context.Context, method, key string, request proto.Message) (receipt, error) {
	if key == "" {
		return receipt{}, nil
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return receipt{}, fmt.Errorf("encode the request: %w", err)
	}
	// Keys of different callers and methods never meet.
	name := sha256.Sum256([]byte(caller(ctx).ID.String() + "\x00" + method + "\x00" + key))
	content := sha256.Sum256(data)
	return receipt{name: hex.EncodeToString(name[:]), request: content[:]}, nil
}

// find returns what an earlier call with this key left, nil if there was none.
func (r receipt) find(snap *state.Snapshot) (*statev1.Receipt, error) {
	if r.name == "" {
		return nil, nil
	}
	earlier := snap.ReceiptByName(r.name)
	if earlier != nil && !bytes.Equal(earlier.GetRequestHash(), r.request) {
		return nil, refuse(codes.InvalidArgument, "this idempotency key was used for a different request; use a new key for each request")
	}
	return earlier, nil
}

// resultOf is the annotation of a receipt that holds the word of the answer
// besides the object.
const resultOf = "result"

func (r receipt) keep(b *state.Batch, object, result string) {
	if r.name == "" {
		return
	}
	uid := state.NewUID()
	kept := &statev1.Receipt{Metadata: &v1.Metadata{Uid: uid, Name: r.name}, RequestHash: r.request, ObjectUid: object}
	if result != "" {
		kept.Metadata.Annotations = map[string]string{resultOf: result}
	}
	b.Create(kept)
}
