package identity

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A certificate request comes from a machine or a replica. Whatever it is, it is refused, or answered with a certificate
// of the identity that the cluster decided, and of nothing that the request says.
func FuzzIssue(f *testing.F) {
	ca, err := NewCA("home", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	id, err := NewID("home", KindWorkload, "default", "web")
	if err != nil {
		f.Fatal(err)
	}
	_, csr, err := NewKeyAndCSR()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Add(csr[:len(csr)-1])
	f.Add(ca.Trust().DER())
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, csr []byte) {
		chain, err := ca.Issue(csr, id, IssueOptions{TTL: time.Hour, Client: true}, time.Now())
		if err != nil {
			return
		}
		leaf, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		got, err := FromCertificate(leaf)
		if err != nil || got != id || leaf.IsCA || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
			t.Fatalf("a request became a certificate of %v (CA: %t, names: %v): %v", got, leaf.IsCA, leaf.DNSNames, err)
		}
	})
}

// The certificate of an authority comes from servers, contexts and files of users.
func FuzzParseTrust(f *testing.F) {
	ca, err := NewCA("home", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.Trust().PEM())
	f.Add(ca.Trust().DER())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) (*Trust, error){func(der []byte) (*Trust, error) { return ParseTrust(der) }, ParseTrustPEM} {
			trust, err := parse(data)
			if err != nil {
				continue
			}
			if again, err := ParseTrustPEM(trust.PEM()); err != nil || again.Fingerprint() != trust.Fingerprint() || again.Cluster() != trust.Cluster() {
				t.Fatalf("cluster %s is not the same when its certificate is read again: %v", trust.Cluster(), err)
			}
		}
	})
}

// What is sealed is in the replicated state and in backups. Whatever is there, only what was sealed is opened.
func FuzzUnseal(f *testing.F) {
	sealer, err := OpenOrCreateSealer(filepath.Join(f.TempDir(), "kek.json"))
	if err != nil {
		f.Fatal(err)
	}
	secret := []byte("the secret")
	sealed, err := sealer.Seal(secret, "use")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed, "use")
	f.Add(sealed, "another use")
	f.Add(sealed[:5], "use")
	f.Fuzz(func(t *testing.T, data []byte, use string) {
		opened, err := sealer.Unseal(data, use)
		same := bytes.Equal(data, sealed) && use == "use"
		if same != (err == nil) || same && !bytes.Equal(opened, secret) {
			t.Fatalf("%x was opened as %q for %q: %v", data, opened, use, err)
		}
	})
}

// The file with the key-encryption key may be damaged, or another file. Its content is in no error.
func FuzzSealerFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "kek.json")
	if _, err := OpenOrCreateSealer(path); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.ReplaceAll(good, []byte("ENABLED"), []byte("DISABLED")))
	f.Add([]byte(`{"primaryKeyId":1,"key":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "kek.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		sealer, err := OpenOrCreateSealer(path)
		if err != nil {
			if len(data) > 40 && bytes.Contains([]byte(err.Error()), data) {
				t.Fatal("the error quotes the key")
			}
			return
		}
		sealed, err := sealer.Seal([]byte("x"), "use")
		if err != nil {
			t.Fatal(err)
		}
		if opened, err := sealer.Unseal(sealed, "use"); err != nil || string(opened) != "x" {
			t.Fatalf("what was sealed is opened as %q: %v", opened, err)
		}
	})
}
