package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// Authority is an ACME authority and how hosts are proven to it. It is safe for concurrent use.
type Authority struct {
	// Directory is the address of its directory.
	Directory string
	// Roots are the authorities of the directory's own certificate; nil means those of this machine.
	Roots *x509.CertPool
	// DNS proves hosts by their DNS; nil if it cannot be changed.
	DNS DNSProvider
	// Resolvers are asked for DNS records; those of this machine if empty.
	Resolvers []string
	// Challenges has every node of the ingress answer.
	Challenges Challenges
	// Dial connects to a host to see whether a challenge is answered. It may be nil.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Patience is how long to wait until a challenge is answered before the authority looks anyway, because a cluster
	// may not be able to reach its own public addresses; 10 seconds if 0.
	Patience time.Duration
	Logger   *slog.Logger
}

// Challenges tells the nodes of the ingress what to answer.
type Challenges interface {
	Present(ctx context.Context, c Challenge) error
	Remove(ctx context.Context, c Challenge) error
}

// Challenge is an answer to a question of the authority.
type Challenge struct {
	Host string
	// Token and KeyAuthorization are those of HTTP-01.
	Token, KeyAuthorization string
	// Chain and Key, in PEM, are those of TLS-ALPN-01.
	Chain, Key []byte
}

// Account is the cluster's account at an authority.
type Account struct {
	Location string
	Key      crypto.Signer
}

// session is the authority for one order or one question.
type session struct {
	acmez.Client
	retry *retryAfter
}

// The time that one request to the authority may take.
const requestTimeout = 30 * time.Second

// open makes the client of one order. It ends with close.
func (a *Authority) open() (s *session, end func()) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: requestTimeout}).DialContext,
		TLSHandshakeTimeout: requestTimeout,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.Roots},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 2,
	}
	retry := &retryAfter{next: transport}
	// The client logs its own errors in detail, and they come back to the caller as well.
	return &session{retry: retry, Client: acmez.Client{Client: &acme.Client{
		Directory: a.Directory, HTTPClient: &http.Client{Transport: retry, Timeout: requestTimeout}, UserAgent: "cloudless",
		PollInterval: time.Second, Logger: slog.New(slog.DiscardHandler),
	}}}, transport.CloseIdleConnections
}

// Register makes an account with a new key. It accepts the authority's terms of service.
func (a *Authority) Register(ctx context.Context, email string) (Account, error) {
	s, end := a.open()
	defer end()
	key, err := NewKey()
	if err != nil {
		return Account{}, err
	}
	wanted := acme.Account{TermsOfServiceAgreed: true, PrivateKey: key}
	if email != "" {
		wanted.Contact = []string{"mailto:" + email}
	}
	made, err := s.NewAccount(ctx, wanted)
	if err != nil {
		return Account{}, a.explain(s, "", err)
	}
	return Account{Location: made.Location, Key: key}, nil
}

// NewKey makes a key of the kind that certificates and accounts have.
func NewKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return key, nil
}

// MarshalKey is a private key in PEM.
func MarshalKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("marshal key: it is of an unknown type")
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseKey reads what MarshalKey wrote.
func ParseKey(text []byte) (crypto.Signer, error) {
	// The parser's error could quote the key.
	unreadable := errors.New("parse key: it is not a PKCS #8 private key")
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, unreadable
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, unreadable
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, unreadable
	}
	return signer, nil
}

// Renewal is when the authority suggests to renew a certificate.
type Renewal struct {
	Start, End time.Time
	// Again is when to ask again; zero if the authority does not say.
	Again time.Time
}

// ErrNoRenewal says that the authority suggests nothing.
var ErrNoRenewal = errors.New("the authority suggests no time of renewal")

// RenewalOf asks when a certificate should be renewed.
func (a *Authority) RenewalOf(ctx context.Context, leaf *x509.Certificate) (Renewal, error) {
	s, end := a.open()
	defer end()
	info, err := s.GetRenewalInfo(ctx, leaf)
	if errors.Is(err, acme.ErrUnsupported) {
		return Renewal{}, ErrNoRenewal
	}
	if err != nil {
		return Renewal{}, a.explain(s, "", err)
	}
	r := Renewal{Start: info.SuggestedWindow.Start, End: info.SuggestedWindow.End}
	if info.RetryAfter != nil {
		r.Again = *info.RetryAfter
	}
	return r, nil
}
