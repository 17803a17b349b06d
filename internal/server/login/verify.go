package login

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// user is whom an ID token names.
type user struct {
	name   string
	groups []string
	// proof is the name of the receipt of the ID token.
	proof string
}

// The bounds of what an ID token may say.
const (
	longestName = 256
	mostGroups  = 512
	// clockSlack is by how much the clocks of provider and server may differ.
	clockSlack = time.Minute
)

// verify returns the user of an ID token. It compares the token with the configuration first, and asks the provider for
// keys only if the token says that it is from there.
func (s *Service) verify(ctx context.Context, o spec.Oidc, request *v1.LoginOidcRequest) (user, error) {
	said, err := unverified(request.GetIdToken())
	if err == nil {
		err = s.plausible(o, said)
	}
	if err != nil {
		return user{}, err
	}
	provider, err := s.providers.of(ctx, o, s.Now())
	if err != nil {
		return user{}, core.Refuse(codes.Unavailable, "the OpenID provider %s cannot be asked for its keys: %s; try again in a moment, or have an admin check oidc.issuer and oidc.ca of the configuration", o.Issuer, err)
	}
	// The algorithms are those that the provider announces; go-oidc accepts no others, and never "none".
	verifier := provider.Verifier(&oidc.Config{ClientID: o.ClientID, Now: s.Now})
	token, err := verifier.Verify(ctx, request.GetIdToken())
	if err != nil {
		return user{}, core.Refuse(codes.Unauthenticated, "the ID token is not valid: %s; log in again with: cloudless login --oidc", err)
	}
	if token.Nonce != request.GetNonce() {
		return user{}, core.Refuse(codes.Unauthenticated, "the ID token is not for this login, because its nonce is another one: log in again with: cloudless login --oidc")
	}
	// By the verified claims: those that were compared before may be others.
	if now := s.Now(); token.Expiry.After(now.Add(longestIDToken + clockSlack)) {
		return user{}, core.Refuse(codes.Unauthenticated, "the ID token is valid until %s, and one that is valid for more than %s from now (%s on server %s) is refused, because this cluster remembers for about that long that it counted: have the provider give ID tokens a shorter life, such as 10 minutes, and log in again",
			stamp(token.Expiry), longestIDToken, stamp(now), s.serverName())
	}
	var signed json.RawMessage
	var claims map[string]json.RawMessage
	if err := errors.Join(token.Claims(&signed), token.Claims(&claims)); err != nil {
		return user{}, core.Refuse(codes.Unauthenticated, "the claims of the ID token cannot be read: %s", err)
	}
	who, err := userOf(o, claims)
	who.proof = proofOf(token.Issuer, signed)
	return who, err
}

// unverifiedClaims are what an ID token says of itself.
type unverifiedClaims struct {
	Issuer   string      `json:"iss"`
	Audience audience    `json:"aud"`
	Expires  json.Number `json:"exp"`
	Issued   json.Number `json:"iat"`
}

// audience is one text or several.
type audience []string

func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

func unverified(idToken string) (unverifiedClaims, error) {
	var said unverifiedClaims
	parts := strings.Split(idToken, ".")
	const signed = 3 // header, claims, signature
	if len(parts) == signed {
		if claims, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(claims, &said) == nil {
			return said, nil
		}
	}
	return said, core.Refuse(codes.Unauthenticated, "what was sent is not an ID token: log in with: cloudless login --oidc")
}

// plausible refuses an ID token that cannot be meant for this cluster at this time.
func (s *Service) plausible(o spec.Oidc, said unverifiedClaims) error {
	switch {
	case said.Issuer != o.Issuer:
		return core.Refuse(codes.Unauthenticated, "the ID token is from %q, and this cluster accepts those of %s: log in with: cloudless login --oidc", shortened(said.Issuer), o.Issuer)
	case !slices.Contains(said.Audience, o.ClientID):
		return core.Refuse(codes.Unauthenticated, "the ID token is for another client of the provider, and this cluster is %s there: log in with: cloudless login --oidc", o.ClientID)
	}
	now := s.Now()
	issued, okIssued := dateOf(said.Issued)
	expires, okExpires := dateOf(said.Expires)
	if !okIssued || !okExpires {
		return core.Refuse(codes.Unauthenticated, "the ID token does not say when it was made or when it ends: log in with: cloudless login --oidc")
	}
	const clocks = "by the clock of the provider %s, and the clock of server %s says %s"
	const setClock = "set the one that is wrong, for example with: timedatectl set-ntp true"
	switch {
	case issued.After(now.Add(clockSlack)):
		return core.Refuse(codes.Unauthenticated, "the ID token was made at %s "+clocks+", which is %s earlier: one of the two clocks is wrong; "+setClock+"; then log in again",
			stamp(issued), o.Issuer, s.serverName(), stamp(now), issued.Sub(now).Round(time.Second))
	case !now.Before(expires):
		return core.Refuse(codes.Unauthenticated, "the ID token ended at %s "+clocks+": log in again; if you have just logged in, one of the two clocks is wrong by %s or more: "+setClock,
			stamp(expires), o.Issuer, s.serverName(), stamp(now), now.Sub(expires).Round(time.Second))
	}
	return nil
}

// serverName names this server for people.
func (s *Service) serverName() string {
	if name := s.Store.Snapshot().Server(s.UID).GetMetadata().GetName(); name != "" {
		return name
	}
	return s.UID
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// dateOf reads a number of seconds, whole or not.
func dateOf(n json.Number) (time.Time, bool) {
	seconds, err := n.Float64()
	const most = 1 << 40 // seconds; time.Unix cannot overflow
	if err != nil || seconds <= 0 || seconds > most {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}

// shortened quotes what a stranger sent.
func shortened(text string) string {
	const most = 100
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// userOf reads the user and groups from verified claims.
func userOf(o spec.Oidc, claims map[string]json.RawMessage) (user, error) {
	var name string
	if json.Unmarshal(claims[o.UsernameClaim], &name) != nil || name == "" {
		return user{}, core.Refuse(codes.PermissionDenied, "the ID token has no claim %q, which names the user: have the provider put it into ID tokens (often by a scope in oidc.scopes), or have an admin choose another with: cloudless cluster config set oidc.usernameClaim=sub", o.UsernameClaim)
	}
	if len(name) > longestName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return user{}, core.Refuse(codes.PermissionDenied, "the claim %q of the ID token cannot be a name: it must have at most %d bytes and no control characters", o.UsernameClaim, longestName)
	}
	if o.UsernameClaim == spec.EmailClaim && !isTrue(claims["email_verified"]) {
		return user{}, core.Refuse(codes.PermissionDenied, "the provider has not verified the e-mail address %s, so it is no proof of who you are: verify it at %s and log in again", name, o.Issuer)
	}
	groups, err := groupsOf(claims[o.GroupsClaim])
	if err != nil {
		return user{}, core.Refuse(codes.PermissionDenied, "the claim %q of the ID token cannot be used: %s", o.GroupsClaim, err)
	}
	return user{name: name, groups: groups}, nil
}

// isTrue reads a claim that some providers write as a text.
func isTrue(claim json.RawMessage) bool {
	var yes any
	return json.Unmarshal(claim, &yes) == nil && (yes == true || yes == "true")
}

// groupsOf reads one group or several. Without the claim there are none.
func groupsOf(claim json.RawMessage) ([]string, error) {
	if len(claim) == 0 || string(claim) == "null" {
		return nil, nil
	}
	var groups []string
	var one string
	if json.Unmarshal(claim, &one) == nil {
		groups = []string{one}
	} else if err := json.Unmarshal(claim, &groups); err != nil {
		return nil, fmt.Errorf("it must be a list of texts")
	}
	if len(groups) > mostGroups {
		return nil, fmt.Errorf("it has %d groups, and at most %d are allowed: have the provider name only those that matter here", len(groups), mostGroups)
	}
	for _, g := range groups {
		if g == "" || len(g) > longestName || strings.ContainsFunc(g, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, fmt.Errorf("the name of a group must have 1 to %d bytes and no control characters", longestName)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}
