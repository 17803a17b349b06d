package spec

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The states of a certificate.
const (
	CertificatePending = "pending"
	CertificateReady   = "ready"
	CertificateExpired = "expired"
)

// ExpiresSoon is how long before its end the cluster warns of a certificate.
const ExpiresSoon = 14 * 24 * time.Hour

func init() { checkObjects(checkCertificate) }

// madeByCluster begins the names of the certificates that the cluster makes.
const madeByCluster = "tls-"

// checkCertificate checks what users say about a certificate of their own. [ParseKeyPair] checks the certificate itself.
func checkCertificate(c *v1.Certificate, found *violations) {
	switch name := c.GetMetadata().GetName(); {
	case found.has("metadata.name"):
	case name == "":
		found.add("metadata.name", "is missing")
	case strings.HasPrefix(name, madeByCluster):
		found.add("metadata.name", "must not begin with %s: these are the names of certificates that the cluster makes; choose another name", madeByCluster)
	}
	if source := c.GetSpec().GetSource(); source != "" && source != TLSOwn {
		found.add("spec.source", "must be own, or left out: the cluster makes those of source %s itself, for routes with tls mode %s", source, source)
	}
}

const (
	certificateBlock       = "CERTIFICATE"
	minRSABits, maxRSABits = 2048, 8192
	maxChainBytes          = 256 << 10
	maxKeyBytes            = 64 << 10
	maxCertificateHosts    = 100
)

// KeyPair is a certificate with its key, as a node of the ingress can serve it.
type KeyPair struct {
	Leaf *x509.Certificate
	// Chain and Key are PEM in one form, without comments.
	Chain string
	Key   []byte
	// Hosts are the names and addresses in the certificate.
	Hosts []string
}

// ParseKeyPair checks a certificate with those of its authorities, and the key that belongs to it. Errors never quote
// the key.
func ParseKeyPair(chain string, key []byte, now time.Time) (*KeyPair, error) {
	var found violations
	pair := parseKeyPair(chain, key, now, &found)
	if len(found) > 0 {
		return nil, &Error{Violations: found}
	}
	return pair, nil
}

// The fields of a request that adds a certificate.
const (
	chainField = "certificate.spec.chain"
	keyField   = "key"
)

func parseKeyPair(chain string, key []byte, now time.Time, found *violations) *KeyPair {
	if len(chain) > maxChainBytes {
		found.add(chainField, "is too large: it may have at most %s", FormatBytes(maxChainBytes))
		return nil
	}
	all, problem := certificatesOf([]byte(chain))
	if problem != "" {
		found.add(chainField, "%s", problem)
		return nil
	}
	signer, problem := parseKey(key)
	if problem != "" {
		found.add(keyField, "%s", problem)
		return nil
	}
	leaf := all[0]
	checkOwner(all, signer.Public(), found)
	checkOrder(all, found)
	checkLeaf(leaf, now, found)
	if problem := keyProblem(signer.Public()); problem != "" {
		found.add(keyField, "%s", problem)
	}
	hosts := CertificateHosts(leaf)
	switch {
	case len(hosts) == 0:
		found.add(chainField, "names no host: the certificate has no subject alternative name, and clients look nowhere else; order one with the host as a DNS name")
	case len(hosts) > maxCertificateHosts:
		found.add(chainField, "names %d hosts, and at most %d are allowed; divide them among several certificates", len(hosts), maxCertificateHosts)
	}
	if len(*found) > 0 {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		found.add(keyField, "is of a type that cannot be stored; use ECDSA P-256 or RSA")
		return nil
	}
	var clean bytes.Buffer
	for _, one := range all {
		_ = pem.Encode(&clean, &pem.Block{Type: certificateBlock, Bytes: one.Raw}) // a buffer takes everything
	}
	return &KeyPair{Leaf: leaf, Chain: clean.String(), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), Hosts: hosts}
}

// parseKey reads the first private key in PEM.
func parseKey(text []byte) (key crypto.Signer, problem string) {
	if len(text) > maxKeyBytes {
		return nil, fmt.Sprintf("is too large: it may have at most %s", FormatBytes(maxKeyBytes))
	}
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, "has no private key in PEM: it must have a block that begins with -----BEGIN PRIVATE KEY-----"
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return nil, "is protected by a password, which the cluster does not know; remove it with: openssl pkey -in KEY -out PLAIN"
		}
		var parsed any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default: // such as EC PARAMETERS
			continue
		}
		signer, ok := parsed.(crypto.Signer)
		if err != nil || !ok {
			// The parser's words could quote the key.
			return nil, "has a private key that cannot be read; make it again with: openssl pkey -in KEY -out NEW"
		}
		return signer, ""
	}
}

func keyProblem(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Sprintf("is RSA with %d bits; use %d to %d bits, or ECDSA P-256", bits, minRSABits, maxRSABits)
		}
		return ""
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return "is ECDSA on curve P-224, which clients do not accept; use P-256"
		}
		return ""
	case ed25519.PublicKey:
		return ""
	}
	return "is of a type that TLS does not use; use ECDSA P-256 or RSA"
}

// checkOwner checks that the key belongs to the first certificate.
func checkOwner(all []*x509.Certificate, public crypto.PublicKey, found *violations) {
	for i, one := range all {
		key, ok := one.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		if !ok || !key.Equal(public) {
			continue
		}
		if i > 0 {
			found.add(chainField, "is not in order: the key belongs to certificate %d of %d (%s); put that one first", i+1, len(all), subjectOf(one))
		}
		return
	}
	found.add(keyField, "does not belong to the certificate of %s; give the key that the certificate was ordered with", subjectOf(all[0]))
}

// checkOrder checks that every certificate was issued by the next one.
func checkOrder(all []*x509.Certificate, found *violations) {
	if found.has(chainField) {
		return
	}
	for i := range len(all) - 1 {
		below, above := all[i], all[i+1]
		if bytes.Equal(below.Raw, above.Raw) {
			found.add(chainField, "has certificate %d (%s) twice; remove one of them", i+1, subjectOf(below))
			return
		}
		if err := below.CheckSignatureFrom(above); err != nil {
			found.add(chainField, "is not in order: certificate %d (%s) was issued by %s, and not by certificate %d (%s); put the certificate first, then the one that issued it, and so on",
				i+1, subjectOf(below), issuerOf(below), i+2, subjectOf(above))
			return
		}
	}
}

func checkLeaf(leaf *x509.Certificate, now time.Time, found *violations) {
	if found.has(chainField) {
		return
	}
	switch weak := leaf.SignatureAlgorithm; {
	case leaf.IsCA && leaf.BasicConstraintsValid:
		found.add(chainField, "begins with the certificate of an authority (%s); begin with the one for your host", subjectOf(leaf))
	case now.After(leaf.NotAfter):
		found.add(chainField, "has expired on %s; give a new certificate", leaf.NotAfter.UTC().Format(time.DateTime))
	case now.Before(leaf.NotBefore):
		found.add(chainField, "is not valid before %s; add it then, or check the clock of the servers", leaf.NotBefore.UTC().Format(time.DateTime))
	case !forServers(leaf):
		found.add(chainField, "is not for servers: its extended key usage leaves out serverAuth; order one for TLS servers")
	case weak == x509.SHA1WithRSA || weak == x509.ECDSAWithSHA1 || weak == x509.MD5WithRSA:
		found.add(chainField, "is signed with %s, which clients do not accept; order one with SHA-256", weak)
	}
}

func forServers(leaf *x509.Certificate) bool {
	if len(leaf.ExtKeyUsage) == 0 && len(leaf.UnknownExtKeyUsage) == 0 {
		return true
	}
	for _, usage := range leaf.ExtKeyUsage {
		if usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny {
			return true
		}
	}
	return false
}

// CertificateHosts are the names and addresses that a certificate is for.
func CertificateHosts(leaf *x509.Certificate) []string {
	var hosts []string
	for _, name := range leaf.DNSNames {
		hosts = append(hosts, strings.ToLower(name))
	}
	for _, ip := range leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// CertificateCovers reports whether a certificate for some hosts is also one for another host.
func CertificateCovers(hosts []string, host string) bool {
	return slices.ContainsFunc(hosts, func(h string) bool { return HostCovers(h, host) })
}

// ParseLeaf returns the first certificate of a chain that was checked before; nil if there is none.
func ParseLeaf(chain string) *x509.Certificate {
	block, _ := pem.Decode([]byte(chain))
	if block == nil {
		return nil
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return leaf
}

// DescribeCertificate is the status of a certificate as far as it is in the certificate itself.
func DescribeCertificate(leaf *x509.Certificate, now time.Time) *v1.CertificateStatus {
	sum := sha256.Sum256(leaf.Raw)
	status := &v1.CertificateStatus{
		State: CertificateReady, Issuer: issuerOf(leaf), Fingerprint: hex.EncodeToString(sum[:]),
		NotBefore: timestamppb.New(leaf.NotBefore), NotAfter: timestamppb.New(leaf.NotAfter),
	}
	if !now.Before(leaf.NotAfter) {
		status.State = CertificateExpired
	}
	return status
}

// ExpiryWarning says that a user must replace a certificate; empty if there is time.
func ExpiryWarning(c *v1.Certificate, now time.Time) string {
	end, m := c.GetStatus().GetNotAfter().AsTime(), c.GetMetadata()
	if c.GetSpec().GetSource() != TLSOwn || end.Sub(now) > ExpiresSoon {
		return ""
	}
	verb := "expires"
	if !now.Before(end) {
		verb = "has expired"
	}
	return fmt.Sprintf("it %s on %s; give a new one with: %s", verb, end.UTC().Format(time.DateTime),
		Hint(m.GetNamespace(), "cloudless certificate add "+m.GetName()+" --cert FILE --key FILE --update"))
}

func subjectOf(c *x509.Certificate) string {
	if hosts := CertificateHosts(c); len(hosts) > 0 {
		return hosts[0]
	}
	return cmp.Or(c.Subject.CommonName, c.Subject.String(), "without a name")
}

func issuerOf(c *x509.Certificate) string {
	text := cmp.Or(c.Issuer.CommonName, strings.Join(c.Issuer.Organization, ", "), c.Issuer.String(), "an authority without a name")
	// What an authority writes into its name is not ours to trust.
	return strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
}

// CertificateName is the name of the certificate that the cluster makes for a host of routes, in their namespace: such as
// tls-shop-example-org for shop.example.org, and tls-wildcard-example-org for *.example.org. Where another host could
// have the same name, it ends with a part of the host's hash.
func CertificateName(host string) string {
	const wildcard = "wildcard-"
	rest, star := strings.CutPrefix(host, "*.")
	readable := madeByCluster
	if star {
		readable += wildcard
	}
	readable += strings.ReplaceAll(rest, ".", "-")
	// Only dots become dashes, so hosts without a dash have names of their own.
	unique := !strings.Contains(rest, "-") && (star || !strings.HasPrefix(rest, "wildcard."))
	if unique && len(readable) <= maxName {
		return readable
	}
	sum := sha256.Sum256([]byte(host))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(readable[:min(len(readable), maxName-len(suffix))], "-") + suffix
}
