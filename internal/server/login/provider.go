package login

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"github.com/cloudless/cloudless/internal/spec"
)

// Fetching from the provider is bounded, because callers without an identity can cause it: by a key id that nobody knows.
const (
	// fetchPause and fetchBurst say how often the provider is asked.
	fetchPause = 2 * time.Second
	fetchBurst = 4
	// fetchPatience is how long an answer may take.
	fetchPatience = 10 * time.Second
	// longestFetch is the largest answer in bytes.
	longestFetch = 1 << 20
	// forgetAfter is how long what the provider says of itself is believed. Its keys are asked for when an unknown one is used.
	forgetAfter = time.Hour
	// failurePause is how long a failure is the answer to others.
	failurePause = 5 * time.Second
)

// providers remembers the configured provider and its keys.
type providers struct {
	foreign http.RoundTripper
	turn    chan struct{} // held by the goroutine that looks at the rest, and asks the provider if it must

	issuer, ca string
	known      *oidc.Provider
	asked      time.Time
	failure    error
}

func newProviders(foreign http.RoundTripper) *providers {
	return &providers{foreign: foreign, turn: make(chan struct{}, 1)}
}

// of returns the configured provider.
func (p *providers) of(ctx context.Context, o spec.Oidc, now time.Time) (*oidc.Provider, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p.issuer != o.Issuer || p.ca != o.CA {
		p.issuer, p.ca, p.known, p.failure = o.Issuer, o.CA, nil, nil
	}
	age := now.Sub(p.asked)
	switch {
	case p.known != nil && age >= 0 && age < forgetAfter:
		return p.known, nil
	case p.failure != nil && age >= 0 && age < failurePause:
		return nil, p.failure
	}
	p.asked = now
	client, err := p.client(o)
	if err != nil {
		p.failure = err
		return nil, err
	}
	// Not the caller's context: the answer is for all callers, and the key set goes on using it.
	ask, cancel := context.WithTimeout(oidc.ClientContext(context.WithoutCancel(ctx), client), fetchPatience)
	defer cancel()
	found, err := oidc.NewProvider(ask, o.Issuer)
	if err != nil {
		if p.known != nil { // it has been right for an hour
			return p.known, nil
		}
		p.failure = err
		return nil, err
	}
	p.known, p.failure = found, nil
	return found, nil
}

func (p *providers) client(o spec.Oidc) (*http.Client, error) {
	next := p.foreign
	if next == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		if o.CA != "" {
			roots, err := x509.SystemCertPool()
			if err != nil {
				roots = x509.NewCertPool()
			}
			if !roots.AppendCertsFromPEM([]byte(o.CA)) {
				return nil, errors.New("oidc.ca of the configuration has no certificate")
			}
			transport.TLSClientConfig.RootCAs = roots
		}
		next = transport
	}
	return &http.Client{
		Transport: &rareFetches{next: next, limit: rate.NewLimiter(rate.Every(fetchPause), fetchBurst)},
		Timeout:   fetchPatience,
		// A redirect could lead to a machine that only servers reach.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// rareFetches bounds the number and the size of fetches.
type rareFetches struct {
	next  http.RoundTripper
	limit *rate.Limiter
}

func (f *rareFetches) RoundTrip(r *http.Request) (*http.Response, error) {
	// Waiting and not refusing: all who need keys share one fetch, and whoever caused those before, one that comes in its turn
	// has the keys of an honest caller too.
	if err := f.limit.Wait(r.Context()); err != nil {
		return nil, fmt.Errorf("it was asked a moment ago: %w", err)
	}
	response, err := f.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, longestFetch), response.Body}
	return response, nil
}
