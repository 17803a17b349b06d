package s3

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Others are the servers that the object store is compared with, as processes of their own.
type Others struct {
	// Plain is the floor, and Posix versitygw over a folder.
	Plain, Posix *Endpoint
	processes    []*exec.Cmd
}

const (
	otherKey    = "benchbenchbenchbench"
	otherSecret = "a secret of forty characters, more or less"
	startTime   = 30 * time.Second
)

// StartOthers starts them, with their programs, in a folder.
func StartOthers(ctx context.Context, dir, plain, gateway string) (_ *Others, err error) {
	o := &Others{}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	for _, folder := range []string{"plain-files", "posix"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	certificate, key := filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem")
	if err := writeCertificate(certificate, key); err != nil {
		return nil, err
	}
	first, err := freeAddress()
	if err != nil {
		return nil, err
	}
	o.Plain = &Endpoint{Name: "plain files", URL: "https://" + first, Key: otherKey, Secret: otherSecret}
	if err := o.start(ctx, []string{"PLAIN_KEY=" + otherKey, "PLAIN_SECRET=" + otherSecret},
		plain, filepath.Join(dir, "plain-files"), first, certificate, key); err != nil {
		return nil, err
	}
	second, err := freeAddress()
	if err != nil {
		return nil, err
	}
	o.Posix = &Endpoint{Name: "versitygw posix", URL: "https://" + second, Key: otherKey, Secret: otherSecret}
	if err := o.start(ctx, []string{"ROOT_ACCESS_KEY=" + otherKey, "ROOT_SECRET_KEY=" + otherSecret},
		gateway, "--port", second, "--cert", certificate, "--key", key, "--quiet", "--keep-alive", "posix", filepath.Join(dir, "posix")); err != nil {
		return nil, err
	}
	return o, errors.Join(answers(ctx, first), answers(ctx, second))
}

func (o *Others) start(ctx context.Context, environment []string, program string, args ...string) error {
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), environment...)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	o.processes = append(o.processes, command)
	return nil
}

// Close ends them.
func (o *Others) Close() {
	for _, e := range []*Endpoint{o.Plain, o.Posix} {
		if e != nil {
			e.Close()
		}
	}
	for _, p := range o.processes {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()         // a signal ends it
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// answers waits until a server accepts connections.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		if sleep.For(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("a server does not start: %w", err)
		}
	}
}

// writeCertificate makes one for this run.
func writeCertificate(certificate, key string) error {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, &secret.PublicKey, secret)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600),
	)
}
