package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/oidc"
	"github.com/cloudless/cloudless/test/openid"
)

// withProvider is a cluster whose users log in at a real provider.
func withProvider(t *testing.T, provider *openid.Provider, settings *v1.Oidc, change ...func(*Options)) *cluster {
	t.Helper()
	c := newCluster(t, append(change, func(o *Options) { o.Foreign = nil })...)
	settings.Issuer, settings.ClientId, settings.Ca = provider.Issuer, openid.ClientID, provider.CA
	c.setConfiguration(func(s *v1.ClusterSpec) { s.Oidc = settings })
	return c
}

// setConfiguration changes the configuration as an admin does.
func (c *cluster) setConfiguration(change func(*v1.ClusterSpec)) {
	c.t.Helper()
	admin := c.as("admin")
	have, err := admin.GetConfiguration(c.ctx, &v1.GetConfigurationRequest{})
	must(c.t, err)
	change(have.Spec.Cluster)
	_, err = admin.SetConfiguration(c.ctx, &v1.SetConfigurationRequest{Configuration: have})
	must(c.t, err)
}

// atProvider logs a user in at the provider, in a browser or by a device code, and returns the ID token.
func (c *cluster) atProvider(provider *openid.Provider, user string, device bool) oidc.Token {
	c.t.Helper()
	methods, err := v1.NewLoginServiceClient(c.dial(nil, "").conn).GetLoginMethods(c.ctx, &v1.GetLoginMethodsRequest{})
	must(c.t, err)
	browser, err := provider.NewBrowser()
	must(c.t, err)
	var visits sync.WaitGroup
	defer visits.Wait()
	visit := func(address string) {
		visits.Go(func() {
			if _, err := browser.LogIn(c.ctx, address, user); err != nil {
				c.t.Errorf("%s in the browser: %v", user, err)
			}
		})
	}
	o := oidc.Options{
		Issuer: methods.GetOidcIssuer(), ClientID: methods.GetOidcClientId(), Scopes: methods.GetOidcScopes(), CA: methods.GetOidcCa(),
		Open: func(_ context.Context, address string) error { visit(address); return nil },
		Say:  func(string) {},
	}
	if device {
		o.Open = nil
		o.Say = func(line string) {
			if _, address, found := strings.Cut(line, "With the code in it, the address is "); found {
				visit(address)
			}
		}
	}
	token, err := oidc.LogIn(c.ctx, o)
	must(c.t, err)
	return token
}

// exchange gives an ID token to the cluster.
func (c *cluster) exchange(token oidc.Token) (*v1.CreateTokenResponse, error) {
	return v1.NewLoginServiceClient(c.dial(nil, "").conn).LoginOidc(c.ctx, &v1.LoginOidcRequest{IdToken: token.ID, Nonce: token.Nonce})
}

func TestUsersLogInAtARealProvider(t *testing.T) {
	provider := openid.Start(t)
	c := withProvider(t, provider, &v1.Oidc{Scopes: []string{"email", "groups"}, Session: "48h"})
	for how, device := range map[string]bool{"browser": false, "device code": true} {
		made, err := c.exchange(c.atProvider(provider, "ada", device))
		must(t, err)
		about := made.GetToken().GetSpec()
		if about.GetUser() != "ada@example.org" || !slices.Equal(about.GetGroups(), []string{"deployers", "readers"}) || about.GetRole() != "" {
			t.Errorf("by %s, the token is of %+v", how, about)
		}
		if life := time.Until(about.GetExpireTime().AsTime()); life > 24*time.Hour || about.GetRenew() == nil {
			t.Errorf("by %s, the token lasts %s and is renewed by %s", how, life, about.GetRenew().AsDuration())
		}
		who, err := v1.NewClusterServiceClient(c.dial(nil, made.GetSecret()).conn).WhoAmI(c.ctx, &v1.WhoAmIRequest{})
		must(t, err)
		if who.GetUser() != "ada@example.org" || !slices.Equal(who.GetGroups(), about.GetGroups()) {
			t.Errorf("by %s, the caller is %v", how, who)
		}
		_, err = v1.NewNodeServiceClient(c.dial(nil, made.GetSecret()).conn).ListNodes(c.ctx, &v1.ListNodesRequest{})
		wantCode(t, err, codes.PermissionDenied) // no binding names the user
	}
}

func TestIDTokensThatProveNothingAreRefused(t *testing.T) {
	provider := openid.Start(t)
	c := withProvider(t, provider, &v1.Oidc{})
	ada := c.atProvider(provider, "ada", false)
	_, err := c.exchange(oidc.Token{ID: ada.ID, Nonce: "another"})
	wantCode(t, err, codes.Unauthenticated, "nonce", "cloudless login --oidc")
	_, err = c.exchange(oidc.Token{ID: ada.ID})
	wantCode(t, err, codes.Unauthenticated, "nonce")
	header, rest, _ := strings.Cut(ada.ID, ".")
	claims, signature, _ := strings.Cut(rest, ".")
	forged := header + "." + claims + "." + strings.ToUpper(signature[:8]) + "x" + signature[9:]
	_, err = c.exchange(oidc.Token{ID: forged, Nonce: ada.Nonce})
	wantCode(t, err, codes.Unauthenticated, "not valid")
	_, err = c.exchange(oidc.Token{ID: "eyJhbGciOiJub25lIn0." + claims + ".", Nonce: ada.Nonce})
	wantCode(t, err, codes.Unauthenticated, "not valid")
	_, err = c.exchange(oidc.Token{ID: "garbage"})
	wantCode(t, err, codes.Unauthenticated, "not an ID token")
	_, err = c.exchange(ada)
	must(t, err)
	for how, again := range map[string]string{
		"as it is":                              ada.ID,
		"with other unused bits at its end":     ada.ID[:len(ada.ID)-1] + string(sameBits(ada.ID[len(ada.ID)-1])),
		"with a line end in the signature":      ada.ID[:len(ada.ID)-10] + "\n" + ada.ID[len(ada.ID)-10:],
		"with a line end in the claims":         header + "." + claims[:10] + "\r\n" + claims[10:] + "." + signature,
		"with a line end between header and it": header + "\n." + claims + "." + signature,
	} {
		if _, err := c.exchange(oidc.Token{ID: again, Nonce: ada.Nonce}); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "used before, and it counts once") {
			t.Errorf("an ID token again, %s: %v", how, err)
		}
	}
	_, err = c.exchange(c.atProvider(provider, "methuselah", false))
	wantCode(t, err, codes.Unauthenticated, "the ID token is valid until", "more than 24h0m0s from now", "have the provider give ID tokens a shorter life")
	_, err = c.exchange(c.atProvider(provider, "mallory", false))
	wantCode(t, err, codes.PermissionDenied, "has not verified", "mallory@example.org")

	c.setConfiguration(func(s *v1.ClusterSpec) { s.Oidc.UsernameClaim = "nickname" })
	_, err = c.exchange(c.atProvider(provider, "bob", false))
	wantCode(t, err, codes.PermissionDenied, `no claim "nickname"`, "oidc.usernameClaim")
	bob := c.atProvider(provider, "bob", false)
	c.setConfiguration(func(s *v1.ClusterSpec) { s.Oidc.ClientId = "another" })
	_, err = c.exchange(bob)
	wantCode(t, err, codes.Unauthenticated, "another client")
	c.setConfiguration(func(s *v1.ClusterSpec) { s.Oidc.Issuer = "https://accounts.example.org" })
	_, err = c.exchange(bob)
	wantCode(t, err, codes.Unauthenticated, provider.Issuer, "https://accounts.example.org")
	c.setConfiguration(func(s *v1.ClusterSpec) { s.Oidc = nil })
	_, err = c.exchange(bob)
	wantCode(t, err, codes.FailedPrecondition, "no OpenID provider", "oidc.issuer")
}

// sameBits is another character of base64 that means the same as the last one of a text: only two of its bits count.
func sameBits(last byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return alphabet[strings.IndexByte(alphabet, last)^1]
}

// The error names both clocks, however the server's is wrong.
func TestWrongClockDuringLogin(t *testing.T) {
	provider := openid.Start(t)
	for name, wrong := range map[string]struct {
		by   time.Duration
		says string
	}{"ahead": {2 * time.Hour, "ended at"}, "behind": {-2 * time.Hour, "was made at"}} {
		t.Run(name, func(t *testing.T) {
			var by time.Duration
			c := withProvider(t, provider, &v1.Oidc{}, func(o *Options) { o.Clock = func() time.Time { return time.Now().Add(by) } })
			token := c.atProvider(provider, "ada", false)
			by = wrong.by
			_, err := c.exchange(token)
			wantCode(t, err, codes.Unauthenticated, wrong.says, "by the clock of the provider "+provider.Issuer, "the clock of server", "timedatectl set-ntp true")
		})
	}
}
