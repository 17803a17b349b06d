package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// keysAge is how old the keys may be. Servers publish a key at least twice as long before they sign with it.
	keysAge = 5 * time.Minute
	// keysPause is the shortest time between two requests for keys, whatever the tokens name that replicas want to verify.
	keysPause = 5 * time.Second
)

// keys are the public keys by which tokens of the cluster are verified. They are fetched once a replica needs them.
type keys struct {
	domain spiffeid.TrustDomain
	client v1.IdentityServiceClient
	needed chan struct{} // closed when a replica needs them
	once   sync.Once
	asks   chan struct{} // asks run for newer ones

	mu      sync.Mutex
	set     []byte // a JSON Web Key Set as SPIFFE writes them; nil if there is none yet
	bundle  *jwtbundle.Bundle
	problem error
	changed chan struct{} // closed when set or problem change
	tried   chan struct{} // closed after each try
}

func newKeys(cluster string, client v1.IdentityServiceClient) *keys {
	domain, _ := spiffeid.TrustDomainFromString(cluster) // ids of clusters are such names
	return &keys{
		domain: domain, client: client, needed: make(chan struct{}), asks: make(chan struct{}, 1),
		changed: make(chan struct{}), tried: make(chan struct{}),
	}
}

// run keeps the keys up to date until ctx ends, once they are needed.
func (k *keys) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-k.needed:
	}
	for {
		err := k.fetch(ctx)
		pause := keysAge
		if err != nil {
			pause = keysPause
		}
		earliest, latest := time.After(keysPause), time.After(pause)
		select {
		case <-ctx.Done():
			return
		case <-earliest:
		}
		select {
		case <-ctx.Done():
			return
		case <-k.asks:
		case <-latest:
		}
	}
}

// fetch asks a server for the keys.
func (k *keys) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := k.client.GetWorkloadKeys(ctx, &v1.GetWorkloadKeysRequest{})
	var set []byte
	var bundle *jwtbundle.Bundle
	if err == nil {
		if set, err = spiffeSet(answer.GetJwks()); err == nil {
			bundle, err = jwtbundle.Parse(k.domain, set)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.tried)
	k.tried = make(chan struct{})
	if k.problem = err; err == nil && bytes.Equal(k.set, set) {
		return nil
	}
	if err == nil {
		k.set, k.bundle = set, bundle
	}
	close(k.changed)
	k.changed = make(chan struct{})
	return err
}

// spiffeSet marks the keys of a set as keys of JWT-SVIDs.
func spiffeSet(data []byte) ([]byte, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("the server's keys for tokens cannot be read: %w", err)
	}
	for i := range set.Keys {
		set.Keys[i].Use = "jwt-svid"
	}
	if set.Keys == nil {
		set.Keys = []jose.JSONWebKey{}
	}
	return json.Marshal(set)
}

// current is the set, a channel that is closed when it changes, and why there is none or no newer one.
func (k *keys) current() ([]byte, <-chan struct{}, error) {
	k.once.Do(func() { close(k.needed) })
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set, k.changed, k.problem
}

// verify checks a token for a recipient. If it is signed by an unknown key, there may be a newer one.
func (k *keys) verify(ctx context.Context, text, audience string) (*jwtsvid.SVID, error) {
	k.once.Do(func() { close(k.needed) })
	for second := false; ; second = true {
		k.mu.Lock()
		bundle, problem, tried := k.bundle, k.problem, k.tried
		k.mu.Unlock()
		if bundle != nil {
			found, err := jwtsvid.ParseAndValidate(text, bundle, []string{audience})
			if err == nil || second || !k.unknownKey(bundle, text) {
				return found, err
			}
		} else if second {
			return nil, errors.Join(errNoKeys, problem)
		}
		select {
		case k.asks <- struct{}{}:
		default:
		}
		timer := time.NewTimer(callTimeout)
		select {
		case <-tried:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

var errNoKeys = errors.New("the keys that verify tokens are not known yet, because no server was reached")

// unknownKey reports whether a token of this cluster names a key that the bundle does not have.
func (k *keys) unknownKey(bundle *jwtbundle.Bundle, text string) bool {
	parsed, err := jose.ParseSigned(text, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || len(parsed.Signatures) != 1 {
		return false
	}
	return !bundle.HasJWTAuthority(parsed.Signatures[0].Header.KeyID)
}
