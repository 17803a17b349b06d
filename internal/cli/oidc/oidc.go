// Package oidc gets an ID token for the user of this machine from an OpenID provider: in a browser, by an authorization code
// with PKCE that comes back to a loopback address, or by a device code that the user enters elsewhere. It knows nothing of
// the cluster that the token is for.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// Options say which provider to ask, and how to reach the user.
type Options struct {
	Issuer, ClientID string
	Scopes           []string // besides "openid"
	// CA are certificates in PEM that the provider's own may be from, besides those that this machine trusts.
	CA string
	// Open shows an address in a browser. If it is nil or fails, the user gets a device code.
	Open func(ctx context.Context, address string) error
	// Say shows a line to the user.
	Say func(line string)
}

// Token is what the provider gave. Nonce is what the request had in it, empty for a device code.
type Token struct{ ID, Nonce string }

const (
	// patience is how long the user may take in the browser.
	patience = 10 * time.Minute
	// askPatience is how long an answer of the provider may take.
	askPatience = 30 * time.Second
	// headersPatience is how long a browser may take to send its request.
	headersPatience = 10 * time.Second
)

// LogIn gets a token.
func LogIn(ctx context.Context, o Options) (Token, error) {
	ctx, err := o.withClient(ctx)
	if err != nil {
		return Token{}, err
	}
	provider, err := oidc.NewProvider(ctx, o.Issuer)
	if err != nil {
		return Token{}, o.failed(err)
	}
	config := &oauth2.Config{ClientID: o.ClientID, Endpoint: provider.Endpoint(), Scopes: append([]string{oidc.ScopeOpenID}, o.Scopes...)}
	config.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	if o.Open != nil {
		token, err := o.byBrowser(ctx, config)
		if _, closed := errors.AsType[*noBrowserError](err); !closed {
			return token, err
		}
		o.Say(err.Error())
	}
	return o.byDevice(ctx, config)
}

// withClient adds the client that trusts the provider's certificates.
func (o Options) withClient(ctx context.Context) (context.Context, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if o.CA != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM([]byte(o.CA)) {
			return nil, errors.New("the cluster names certificates of its OpenID provider that cannot be read: have an admin check oidc.ca of the configuration")
		}
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return oidc.ClientContext(ctx, &http.Client{Transport: transport, Timeout: askPatience}), nil
}

// failed says what the provider has to do with an error. A certificate that is not valid at this time may mean that the
// clock of this machine is wrong.
func (o Options) failed(err error) error {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return fmt.Errorf("the OpenID provider %s shows a certificate that is valid from %s to %s, and the clock of this machine says %s: if that is wrong, set it, for example with: timedatectl set-ntp true",
			o.Issuer, stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter), stamp(time.Now()))
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.ErrorCode != "" {
		return fmt.Errorf("the OpenID provider %s refuses the login: %s", o.Issuer, printable(refused.ErrorCode+" "+refused.ErrorDescription))
	}
	return fmt.Errorf("log in at the OpenID provider %s: %w", o.Issuer, err)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// printable is a text of the provider without what could control a terminal.
func printable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
}

// noBrowserError says why no browser was opened.
type noBrowserError struct{ why error }

func (e *noBrowserError) Error() string {
	return fmt.Sprintf("no browser could be opened here (%s), so another one is needed:", e.why)
}

// answer is what the browser brings back.
type answer struct {
	code string
	err  error
}

// byBrowser waits at a loopback address for the browser of this machine.
func (o Options) byBrowser(ctx context.Context, config *oauth2.Config) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nobody has logged in within %s", patience))
	defer cancel()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Token{}, &noBrowserError{err}
	}
	config.RedirectURL = "http://" + listener.Addr().String() + "/callback"
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	answers := make(chan answer, 1)
	server := &http.Server{Handler: callback(state, answers), ReadHeaderTimeout: headersPatience}
	served := make(chan struct{})
	go func() { // ends with the server
		defer close(served)
		_ = server.Serve(listener)
	}()
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(bye) != nil { // once the browser has its page
			_ = server.Close()
		}
		<-served
	}()
	address := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oidc.Nonce(nonce))
	if err := o.Open(ctx, address); err != nil {
		return Token{}, &noBrowserError{err}
	}
	o.Say("Log in with the browser that opens. If none does, open this address on this machine: " + address)
	select {
	case got := <-answers:
		if got.err != nil {
			return Token{}, o.failed(got.err)
		}
		return o.exchanged(config.Exchange(ctx, got.code, oauth2.VerifierOption(verifier)))(nonce)
	case <-ctx.Done():
		return Token{}, o.failed(context.Cause(ctx))
	}
}

// callback answers the browser. Requests that are not from this login change nothing: any page could send them.
func callback(state string, answers chan<- answer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /callback", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Connection", "close")
		query := r.URL.Query()
		if query.Get("state") != state {
			http.Error(w, "This is not the login that cloudless waits for: begin again with cloudless login.", http.StatusBadRequest)
			return
		}
		got := answer{code: query.Get("code")}
		if got.code == "" {
			got.err = errors.New(printable(query.Get("error") + " " + query.Get("error_description")))
			http.Error(w, "The provider has refused the login: "+got.err.Error(), http.StatusOK)
		} else {
			_, _ = fmt.Fprintln(w, "You have logged in at the provider. You can close this page; the terminal says the rest.")
		}
		select {
		case answers <- got:
		default: // the page was loaded again
		}
	})
	return mux
}

// byDevice shows a code that the user enters in any browser.
func (o Options) byDevice(ctx context.Context, config *oauth2.Config) (Token, error) {
	if config.Endpoint.DeviceAuthURL == "" {
		return Token{}, fmt.Errorf("the OpenID provider %s has no device codes: log in on a machine with a browser", o.Issuer)
	}
	device, err := config.DeviceAuth(ctx)
	if err != nil {
		return Token{}, o.failed(err)
	}
	o.Say("Open " + printable(device.VerificationURI) + " in any browser and enter the code " + printable(device.UserCode))
	if device.VerificationURIComplete != "" {
		o.Say("With the code in it, the address is " + printable(device.VerificationURIComplete))
	}
	token, err := config.DeviceAccessToken(ctx, device)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return Token{}, fmt.Errorf("nobody has entered the code at %s in time: log in again", o.Issuer)
	}
	return o.exchanged(token, err)("")
}

// exchanged takes the ID token out of the provider's answer.
func (o Options) exchanged(token *oauth2.Token, err error) func(nonce string) (Token, error) {
	return func(nonce string) (Token, error) {
		if err != nil {
			return Token{}, o.failed(err)
		}
		id, ok := token.Extra("id_token").(string)
		if !ok || id == "" {
			return Token{}, fmt.Errorf("the OpenID provider %s gave no ID token: have an admin check that its client %s may use the scope openid", o.Issuer, o.ClientID)
		}
		return Token{ID: id, Nonce: nonce}, nil
	}
}
