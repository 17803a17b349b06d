// Package login gives users API tokens: one for an ID token of the cluster's OpenID provider, and a new secret for a token
// that is renewable.
//
// It guarantees that a caller without an identity costs little. An ID token is compared with the configuration before
// anything is fetched, keys are fetched rarely and remembered, and failed attempts are limited for each network. What a user
// may do is none of its business: the token names the user and groups, and bindings say the rest.
package login

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Service is the LoginService.
type Service struct {
	v1.UnsafeLoginServiceServer
	*core.Core
	fingerprint func() identity.Fingerprint
	providers   *providers
	attempts    attempts
	checkAdmins func(*state.Snapshot, *state.Batch) error
}

// Options are the parts of a Service.
type Options struct {
	Core *core.Core
	// Fingerprint is that of the cluster's authority. New tokens carry it.
	Fingerprint func() identity.Fingerprint
	// Foreign carries requests to the OpenID provider; nil means a transport with the proxy settings of the environment.
	Foreign http.RoundTripper
	// CheckAdmins refuses a batch after which the cluster would have no admin.
	CheckAdmins func(*state.Snapshot, *state.Batch) error
}

// New makes the LoginService of a server.
func New(o Options) *Service {
	return &Service{Core: o.Core, fingerprint: o.Fingerprint, providers: newProviders(o.Foreign), checkAdmins: o.CheckAdmins}
}

const (
	// longestLife is the longest lifetime of the token of a user who has logged in. A longer login is renewed.
	longestLife = 24 * time.Hour
	// longestIDToken is how long an ID token may still be valid: it counts once because of its receipt, which must outlive it.
	longestIDToken = 24 * time.Hour
)

func (s *Service) GetLoginMethods(context.Context, *v1.GetLoginMethodsRequest) (*v1.GetLoginMethodsResponse, error) {
	o, offered := spec.OidcOf(s.Store.Snapshot().Cluster().GetSpec())
	if !offered {
		return &v1.GetLoginMethodsResponse{}, nil
	}
	return &v1.GetLoginMethodsResponse{OidcIssuer: o.Issuer, OidcClientId: o.ClientID, OidcScopes: o.Scopes, OidcCa: o.CA}, nil
}

// LoginOidc creates a token for the user whom an ID token names. An ID token counts once.
func (s *Service) LoginOidc(ctx context.Context, request *v1.LoginOidcRequest) (*v1.CreateTokenResponse, error) {
	from := auth.MachineOf(ctx)
	if err := s.attempts.begin(from); err != nil {
		return nil, err
	}
	o, offered := spec.OidcOf(s.Store.Snapshot().Cluster().GetSpec())
	if !offered {
		return nil, core.Refuse(codes.FailedPrecondition, "this cluster has no OpenID provider: log in with a token, or have an admin name one with: cloudless cluster config set oidc.issuer=https://… oidc.clientId=…")
	}
	if err := spec.Validate(request); err != nil {
		return nil, err
	}
	who, err := s.verify(ctx, o, request)
	if err != nil {
		s.attempts.failed(from)
		return nil, err
	}
	oneport.StrangerOf(ctx).Authenticated()
	return s.enter(ctx, o, who)
}

// enter creates the token of a verified user.
func (s *Service) enter(ctx context.Context, o spec.Oidc, who user) (*v1.CreateTokenResponse, error) {
	secret, now := identity.NewAPIToken(s.fingerprint()), s.Now()
	life := min(o.Session, longestLife)
	token := &v1.Token{
		ApiVersion: spec.APIVersion,
		Kind:       "Token",
		Metadata:   &v1.Metadata{Uid: state.NewUID(), Name: tokenName(who.name, secret.ID())},
		Spec: &v1.TokenSpec{
			User: who.name, Groups: who.groups, Purpose: "login by " + o.Issuer,
			ExpireTime: timestamppb.New(now.Add(life)), Renew: durationpb.New(life), RenewUntil: timestamppb.New(now.Add(o.Session)),
		},
		Status: &v1.TokenStatus{SecretId: secret.ID()},
	}
	used := core.Receipt{Name: who.proof}
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.ReceiptByName(used.Name) != nil {
			return core.Refuse(codes.Unauthenticated, "this ID token was used before, and it counts once: log in again with: cloudless login --oidc")
		}
		b.Create(token)
		b.Create(credential(token, secret))
		b.Create(state.NewEvent(state.NewUID(), s.Now(), token, state.SeverityInfo, "LoggedIn",
			fmt.Sprintf("by %s, until %s", o.Issuer, token.GetSpec().GetRenewUntil().AsTime().Format(time.RFC3339)), "user/"+who.name))
		used.Keep(b, token.GetMetadata().GetUid(), "")
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.CreateTokenResponse{Token: snap.Token(token.GetMetadata().GetUid()), Secret: secret.Reveal()}, nil
}

// credential is what the state stores of a token's secret.
func credential(token *v1.Token, secret identity.APIToken) *statev1.Credential {
	return &statev1.Credential{Metadata: &v1.Metadata{Uid: secret.ID()}, Hash: secret.Hash(), TokenUid: token.GetMetadata().GetUid()}
}

// proofOf is the name of the receipt of an ID token. It follows from what the provider has signed and not from the text of
// the token: the same token can be written in several ways, because the decoding of base64 ignores some bits and line ends.
func proofOf(issuer string, claims []byte) string {
	h := sha256.Sum256([]byte(v1.LoginService_LoginOidc_FullMethodName + "\x00" + issuer + "\x00" + string(claims)))
	return hex.EncodeToString(h[:])
}

// The name of a token is a DNS label: it begins with as much of the user's name as fits.
const (
	longestUserPart = 40
	idPart          = 10
)

// tokenName is the name of a user's token, such as ada-example-org-k3vqzrtk7p.
func tokenName(user, id string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, user)
	clean = strings.Trim(clean[:min(len(clean), longestUserPart)], "-")
	return cmp.Or(clean, "user") + "-" + id[:idPart]
}
