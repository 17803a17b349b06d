// Package workloadkeys manages the keys that sign the tokens of workloads (JWT-SVIDs): it makes them, seals them into the
// state, publishes each one before it signs, and removes it when the last token that it signed has expired. The leader's
// loop does so by [Tick], which is pure but for the making of a key.
//
// It does not know who gets a token, nor what is in it.
package workloadkeys

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// The states of a key, in the order in which it goes through them.
const (
	StateNext     = "next"
	StateActive   = "active"
	StatePrevious = "previous"
)

// UseOf binds a sealed key to its use. Whoever seals keys again under another key-encryption key needs it.
func UseOf(cluster, key string) string { return "cloudless/workload-key/" + cluster + "/" + key }

// New makes a key that signs nothing yet.
func New(cluster string, sealer *identity.Sealer) (*statev1.WorkloadKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create a key for tokens of workloads: %w", err)
	}
	id := state.NewUID()
	public, err := json.Marshal(jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: string(jose.ES256), Use: "sig"})
	if err != nil {
		return nil, fmt.Errorf("create a key for tokens of workloads: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("create a key for tokens of workloads: %w", err)
	}
	sealed, err := sealer.Seal(private, UseOf(cluster, id))
	if err != nil {
		return nil, err
	}
	return &statev1.WorkloadKey{Metadata: &v1.Metadata{Uid: id}, PublicKey: public, SealedKey: sealed, State: StateNext}, nil
}

// Open opens the private half of a key.
func Open(cluster string, sealer *identity.Sealer, key *statev1.WorkloadKey) (*ecdsa.PrivateKey, error) {
	data, err := sealer.Unseal(key.GetSealedKey(), UseOf(cluster, key.GetMetadata().GetUid()))
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(data)
	private, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok { // the parser's error could quote the key
		return nil, errors.New("a key for tokens of workloads is damaged: restore the cluster from a backup")
	}
	return private, nil
}

// Active is the key that signs, nil if there is none yet.
func Active(snap *state.Snapshot) *statev1.WorkloadKey {
	for key := range snap.WorkloadKeys() {
		if key.GetState() == StateActive {
			return key
		}
	}
	return nil
}

// Set is the public half of all keys, as a JSON Web Key Set.
func Set(snap *state.Snapshot) ([]byte, error) {
	set := struct {
		Keys []json.RawMessage `json:"keys"`
	}{Keys: []json.RawMessage{}}
	for key := range snap.WorkloadKeys() {
		set.Keys = append(set.Keys, key.GetPublicKey())
	}
	return json.Marshal(set)
}
