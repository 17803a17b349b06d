package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const testTTL = 24 * time.Hour

// renewer issues certificates to one member, in the manner of a server.
func renewer(ca *CA, id ID) func(context.Context, []byte) ([][]byte, error) {
	return func(_ context.Context, csr []byte) ([][]byte, error) {
		return ca.Issue(csr, id, IssueOptions{TTL: testTTL, Server: true, Client: true}, time.Now())
	}
}

func newTestRotator(t *testing.T, o RotatorOptions) *Rotator {
	t.Helper()
	o.Path = filepath.Join(t.TempDir(), "credentials.pem")
	o.Log = slog.New(slog.DiscardHandler)
	r, err := NewRotator(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs the rotator until the test ends.
func start(t *testing.T, r *Rotator) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestACertificateIsRenewedAtTwoThirdsOfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, testCluster)
		first := issue(t, ca, testTTL, KindNode, "n-1")
		r := newTestRotator(t, RotatorOptions{Current: first, Renew: renewer(ca, first.ID())})
		start(t, r)

		time.Sleep(testTTL * 60 / 100)
		synctest.Wait()
		if r.current.Load() != first {
			t.Fatal("renewed too soon")
		}
		time.Sleep(testTTL * 7 / 100)
		synctest.Wait()
		second := r.current.Load()
		if second == first {
			t.Fatal("not renewed when two thirds of the life had passed")
		}
		cert, err := r.Certificate()
		if err != nil || cert != second.cert {
			t.Errorf("handshakes get %v, %v", cert, err)
		}
		saved, err := LoadCredentials(r.path)
		if err != nil || saved.ID() != first.ID() || !saved.NotAfter().Equal(second.NotAfter()) {
			t.Errorf("saved: %v, %v", saved, err)
		}
		// For a month there is always a valid certificate.
		for range 30 * 24 {
			time.Sleep(time.Hour)
			if !time.Now().Before(r.current.Load().NotAfter()) {
				t.Fatalf("the certificate ended at %s", r.current.Load().NotAfter())
			}
		}
	})
}

func TestAFailedRenewalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, testCluster)
		first := issue(t, ca, testTTL, KindNode, "n-1")
		var tries []time.Time
		r := newTestRotator(t, RotatorOptions{
			Current: first,
			Renew: func(ctx context.Context, csr []byte) ([][]byte, error) {
				tries = append(tries, time.Now())
				if len(tries) < 20 {
					return nil, errors.New("no server reachable")
				}
				return renewer(ca, first.ID())(ctx, csr)
			},
		})
		start(t, r)
		time.Sleep(testTTL * 3 / 4)
		synctest.Wait()
		if len(tries) != 20 || r.current.Load() == first {
			t.Fatalf("%d tries, renewed %v", len(tries), r.current.Load() != first)
		}
		for i := range len(tries) - 1 {
			if pause := tries[i+1].Sub(tries[i]); pause < firstRetry/2 || pause > lastRetry {
				t.Errorf("pause of %s after try %d", pause, i+1)
			}
		}
	})
}

func TestAnOverdueCertificateIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, testCluster)
		first := issue(t, ca, testTTL, KindNode, "n-1")
		time.Sleep(testTTL * 9 / 10) // the machine was switched off
		r := newTestRotator(t, RotatorOptions{Current: first, Renew: renewer(ca, first.ID())})
		start(t, r)
		synctest.Wait()
		if r.current.Load() == first {
			t.Error("not renewed")
		}
	})
}

// Whatever answers a renewal, the member keeps its identity and its cluster.
func TestARenewalCannotChangeTheIdentity(t *testing.T) {
	ca := newTestCA(t, testCluster)
	first := issue(t, ca, testTTL, KindNode, "n-1")
	for name, renew := range map[string]func(context.Context, []byte) ([][]byte, error){
		"another id": renewer(ca, mustID(t, testCluster, KindNode, "n-2")),
		"another CA": renewer(newTestCA(t, testCluster), first.ID()),
		"another key": func(ctx context.Context, _ []byte) ([][]byte, error) {
			_, csr, err := NewKeyAndCSR()
			if err != nil {
				return nil, err
			}
			return renewer(ca, first.ID())(ctx, csr)
		},
		"nothing": func(context.Context, []byte) ([][]byte, error) { return nil, nil },
	} {
		r := newTestRotator(t, RotatorOptions{Current: first, Renew: renew})
		if _, err := r.rotate(t.Context()); err == nil || r.current.Load() != first {
			t.Errorf("%s: taken, %v", name, err)
		}
		if _, err := os.Stat(r.path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: saved, %v", name, err)
		}
	}
}

func TestAnOpenConnectionOutlivesARotation(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server, node := issue(t, ca, testTTL, KindServer, "s-1"), issue(t, ca, testTTL, KindNode, "n-1")
	atServer := newTestRotator(t, RotatorOptions{Current: server, Renew: renewer(ca, server.ID())})
	atNode := newTestRotator(t, RotatorOptions{Current: node, Renew: renewer(ca, node.ID())})
	l, err := tls.Listen("tcp", "127.0.0.1:0", ServerTLS(ca.Trust(), atServer.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go echo(l)

	dial := func() *tls.Conn {
		conn, err := tls.Dial("tcp", l.Addr().String(), ClientTLS(ca.Trust(), atNode.Certificate))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	old := dial()
	say(t, old, "before")
	for _, r := range []*Rotator{atServer, atNode} {
		if _, err := r.rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	say(t, old, "after")
	fresh := dial()
	say(t, fresh, "fresh")
	was, is := old.ConnectionState().PeerCertificates[0], fresh.ConnectionState().PeerCertificates[0]
	if !was.Equal(server.cert.Leaf) || is.Equal(server.cert.Leaf) {
		t.Error("the new connection does not use the new certificate")
	}
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("said %q, heard %q, %v", text, got, err)
	}
}

func TestCredentialsAreSavedForTheirOwnerOnly(t *testing.T) {
	c := issue(t, newTestCA(t, testCluster), time.Hour, KindNode, "n-1")
	path := filepath.Join(t.TempDir(), "credentials.pem")
	if _, err := LoadCredentials(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loading what is not there: %v", err)
	}
	for range 2 { // the second time over the first
		if err := c.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("saved with mode %v, %v", info.Mode(), err)
	}
	loaded, err := LoadCredentials(path)
	if err != nil || loaded.ID() != c.ID() || loaded.Trust().Fingerprint() != c.Trust().Fingerprint() {
		t.Errorf("loaded %v, %v", loaded, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCredentials(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("loading a key that all can read: %v", err)
	}
}

func TestDamagedCredentialsAreRefused(t *testing.T) {
	ca := newTestCA(t, testCluster)
	one, two := issue(t, ca, time.Hour, KindNode, "n-1"), issue(t, ca, time.Hour, KindNode, "n-2")
	path := filepath.Join(t.TempDir(), "credentials.pem")
	text := func(c *Credentials) []byte {
		if err := c.Save(path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	a, b := text(one), text(two)
	certificates := []byte("-----BEGIN CERTIFICATE-----")
	for name, data := range map[string][]byte{
		"empty":               nil,
		"cut off":             a[:len(a)/2],
		"key alone":           a[:bytes.Index(a, certificates)],
		"certificates alone":  a[bytes.Index(a, certificates):],
		"certificate of two":  append(bytes.Clone(a[:bytes.Index(a, certificates)]), b[bytes.Index(b, certificates):]...),
		"everything, twice":   append(bytes.Clone(a), a...),
		"not PEM at all":      []byte("hello"),
		"certificate missing": append(bytes.Clone(a[:bytes.Index(a, certificates)]), ca.Trust().PEM()...),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := LoadCredentials(path); err == nil {
			t.Errorf("%s: loaded %s", name, c)
		}
	}
}

func FuzzDecodeCredentials(f *testing.F) {
	ca, err := NewCA(testCluster, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	key, err := ca.MarshalKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.Trust().PEM())
	f.Add(key)
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, chain, err := decodeCredentials(data)
		if err != nil {
			return
		}
		if key == nil {
			t.Fatal("no key and no error")
		}
		_, _ = NewCredentials(key, chain)
	})
}

// A server whose clock was days ahead has issued itself a certificate that is valid only in
// days. When the clock is corrected, it gets a new one at once.
func TestACertificateFromTheFutureIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, testCluster)
		key, csr, err := NewKeyAndCSR()
		if err != nil {
			t.Fatal(err)
		}
		id := issue(t, ca, testTTL, KindNode, "n-1").ID()
		chain, err := ca.Issue(csr, id, IssueOptions{TTL: testTTL, Server: true, Client: true}, time.Now().Add(10*24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ahead, err := NewCredentials(key, chain)
		if err != nil {
			t.Fatal(err)
		}
		r := newTestRotator(t, RotatorOptions{Current: ahead, Renew: renewer(ca, id)})
		start(t, r)
		time.Sleep(longestWait + time.Second)
		synctest.Wait()
		if now := r.current.Load(); now == ahead || time.Now().Before(now.cert.Leaf.NotBefore) {
			t.Errorf("handshakes still get a certificate that holds from %s on", now.cert.Leaf.NotBefore)
		}
	})
}

// A certificate that was issued while the server's clock was hours ahead is valid when the
// clock is corrected. One that was issued while it was hours behind is valid until the
// rotation notices.
func TestCertificatesTolerateAClockThatJumpsByHours(t *testing.T) {
	ca := newTestCA(t, testCluster)
	id := issue(t, ca, testTTL, KindServer, "s-1").ID()
	for _, jump := range []time.Duration{12 * time.Hour, -12 * time.Hour} {
		_, csr, err := NewKeyAndCSR()
		if err != nil {
			t.Fatal(err)
		}
		chain, err := ca.Issue(csr, id, IssueOptions{TTL: testTTL, Server: true}, time.Now().Add(jump))
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Trust().verify(leaf, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("issued by a clock that was off by %s: %v", jump, err)
		}
	}
}
