package acme

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// answerer has the nodes of the ingress answer HTTP-01 and TLS-ALPN-01.
type answerer struct {
	authority *Authority
	host      string
	presented Challenge
}

// Present tells the nodes what to answer.
func (s *answerer) Present(ctx context.Context, c acme.Challenge) error {
	s.presented = Challenge{Host: s.host}
	if c.Type == acme.ChallengeTypeTLSALPN01 {
		made, err := acmez.TLSALPN01ChallengeCert(c)
		if err != nil {
			return fmt.Errorf("make the certificate that answers the authority: %w", err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
		if err != nil {
			return errors.New("marshal the key of the certificate that answers the authority")
		}
		s.presented.Chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]})
		s.presented.Key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	} else {
		s.presented.Token, s.presented.KeyAuthorization = c.Token, c.KeyAuthorization
	}
	return s.authority.Challenges.Present(ctx, s.presented)
}

const (
	defaultPatience = 10 * time.Second
	// Between two looks at whether a challenge is answered.
	lookPause = 250 * time.Millisecond
	// The time that one look may take.
	lookTimeout = 3 * time.Second
	// cleanTimeout is the time in which an answer is removed, also after the order was stopped.
	cleanTimeout = 5 * time.Second
)

// Wait returns when a node answers, or when patience ends. It never fails: this server may be unable to reach the public
// addresses of its own cluster, and only what the authority sees counts.
func (s *answerer) Wait(ctx context.Context, _ acme.Challenge) error {
	patience := s.authority.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, min(lookTimeout, patience))
		answered := s.answered(look)
		cancel()
		if answered {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return nil
		case <-time.After(lookPause):
		}
	}
}

// answered looks as the authority will.
func (s *answerer) answered(ctx context.Context) bool {
	dial := s.authority.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	if s.presented.Token == "" {
		return s.answeredTLS(ctx, dial)
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+"/.well-known/acme-challenge/"+s.presented.Token, nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1024))
	return err == nil && answer.StatusCode == http.StatusOK && strings.TrimSpace(string(body)) == s.presented.KeyAuthorization
}

func (s *answerer) answeredTLS(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) bool {
	block, _ := pem.Decode(s.presented.Chain)
	conn, err := dial(ctx, "tcp", net.JoinHostPort(s.host, "443"))
	if err != nil || block == nil {
		return false
	}
	defer conn.Close()
	// Its certificate is compared with the one that a node must show.
	handshake := tls.Client(conn, &tls.Config{ServerName: s.host, NextProtos: []string{acmez.ACMETLS1Protocol}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if handshake.HandshakeContext(ctx) != nil {
		return false
	}
	shown := handshake.ConnectionState().PeerCertificates
	return len(shown) > 0 && bytes.Equal(shown[0].Raw, block.Bytes)
}

// CleanUp removes the answer, even if the order was stopped.
func (s *answerer) CleanUp(ctx context.Context, _ acme.Challenge) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	return s.authority.Challenges.Remove(ctx, s.presented)
}
