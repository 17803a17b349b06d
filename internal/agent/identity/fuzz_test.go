package identity

import (
	"context"
	"testing"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// answering is a server whose keys are what a test says.
type answering struct {
	v1.IdentityServiceClient
	keys []byte
}

func (a answering) GetWorkloadKeys(context.Context, *v1.GetWorkloadKeysRequest, ...grpc.CallOption) (*v1.GetWorkloadKeysResponse, error) {
	return &v1.GetWorkloadKeysResponse{Jwks: a.keys}, nil
}

// Tokens to verify come from anywhere. None that the cluster has not signed is accepted.
func FuzzVerify(f *testing.F) {
	for _, seed := range []string{
		"eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJzcGlmZmU6Ly9ob21lL3dvcmtsb2FkL2RlZmF1bHQvd2ViIiwiYXVkIjpbImEiXSwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA",
		"eyJhbGciOiJub25lIn0.e30.", "a.b.c", "",
	} {
		f.Add(seed, "a")
	}
	k := newKeys("home", answering{})
	k.bundle = jwtbundle.New(k.domain)
	ended, cancel := context.WithCancel(context.Background())
	cancel() // so that nobody waits for newer keys
	f.Fuzz(func(t *testing.T, token, audience string) {
		if found, err := k.verify(ended, token, audience); err == nil {
			t.Fatalf("%q was accepted as a token of %v", token, found.ID)
		}
	})
}

// The keys come from a server, which may be of another version.
func FuzzKeys(f *testing.F) {
	f.Add([]byte(`{"keys":[{"use":"sig","kty":"EC","kid":"a","crv":"P-256","alg":"ES256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA"}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = newKeys("home", answering{keys: data}).fetch(context.Background())
	})
}
