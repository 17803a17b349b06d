package login

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/cloudless/cloudless/internal/spec"
)

const issuer = "https://accounts.example.org"

// keys is what a provider answers, over a network that only the test has.
type keys struct {
	mu        sync.Mutex
	published jose.JSONWebKeySet
	fetches   int
}

func (k *keys) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var answer any = k.published
	if strings.HasSuffix(r.URL.Path, "/openid-configuration") {
		answer = map[string]any{"issuer": issuer, "jwks_uri": issuer + "/keys", "id_token_signing_alg_values_supported": []string{"EdDSA"}}
	} else {
		k.fetches++
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(body))), Request: r,
	}, nil
}

// signed is an ID token under a key.
func signed(t *testing.T, key ed25519.PrivateKey, name string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key, KeyID: name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := fmt.Sprintf(`{"iss":%q,"aud":"cloudless","sub":"ada","exp":%d}`, issuer, time.Now().Add(time.Hour).Unix())
	token, err := signer.Sign([]byte(claims))
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// publishes makes a key that the provider publishes instead of the one before.
func (k *keys) publishes(t *testing.T, name string) ed25519.PrivateKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.published = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: name, Algorithm: string(jose.EdDSA)}}}
	return private
}

// Strangers who name unknown keys all the time cause few fetches, and do not keep others out while the provider changes its
// key.
func TestStrangersDoNotKeepOthersOutWhileKeysChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		foreign := &keys{}
		key := foreign.publishes(t, "first")
		provider, err := newProviders(foreign).of(ctx, spec.Oidc{Issuer: issuer, ClientID: "cloudless"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		verifier := provider.Verifier(&oidc.Config{ClientID: "cloudless"})
		if _, err := verifier.Verify(ctx, signed(t, key, "first")); err != nil {
			t.Fatal(err)
		}
		_, own, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		const strangers = 20
		forged := signed(t, own, "stranger")
		for range strangers {
			go func() {
				for ctx.Err() == nil {
					if _, err := verifier.Verify(ctx, forged); err == nil {
						t.Error("the token of a stranger is accepted")
					}
				}
			}()
		}
		begun := time.Now()
		for n := range 10 {
			time.Sleep(7 * time.Second)
			if _, err := verifier.Verify(ctx, signed(t, key, keyName(n))); err != nil {
				t.Errorf("the known key is not accepted: %v", err)
			}
			synctest.Wait() // no fetch is half done
			next := foreign.publishes(t, keyName(n+1))
			if _, err := verifier.Verify(ctx, signed(t, next, keyName(n+1))); err != nil {
				t.Errorf("the new key is not accepted: %v", err)
			}
			key = next
		}
		cancel()
		time.Sleep(fetchPatience) // the last fetch ends, which no caller owns
		synctest.Wait()
		if most := fetchBurst + int(time.Since(begun)/fetchPause); foreign.fetches > most {
			t.Errorf("%d fetches in %s, and at most %d are allowed", foreign.fetches, time.Since(begun), most)
		}
	})
}

// keyName is the name of the key after so many changes.
func keyName(changes int) string {
	if changes == 0 {
		return "first"
	}
	return fmt.Sprintf("key-%d", changes)
}
