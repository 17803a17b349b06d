package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Kind is what sort of member an [ID] names.
type Kind string

// The kinds of members a cluster has.
const (
	KindNode     Kind = "node"     // a machine that runs replicas, by its uid
	KindServer   Kind = "server"   // a machine that holds the state, by its uid
	KindUser     Kind = "user"     // a person or program that calls the API, by its name
	KindWorkload Kind = "workload" // a workload, by namespace and name
)

// ID is the SPIFFE id of a member of a cluster, whose id is the trust domain. Two IDs are equal (==) exactly when their
// strings are. The zero ID is no identity.
type ID struct {
	cluster string
	kind    Kind
	path    string // what follows the kind, slashes between its parts
}

// NewID names a member of a cluster. A workload has two parts, its namespace and its name; all others have one.
func NewID(cluster string, kind Kind, parts ...string) (ID, error) {
	want := 1
	switch kind {
	case KindNode, KindServer, KindUser:
	case KindWorkload:
		want = 2
	default:
		return ID{}, fmt.Errorf("identity kind %q is not known: use %s, %s, %s or %s",
			kind, KindNode, KindServer, KindUser, KindWorkload)
	}
	if len(parts) != want {
		return ID{}, fmt.Errorf("a %s identity has %d part(s) after its kind, not %d", kind, want, len(parts))
	}
	if err := checkCluster(cluster); err != nil {
		return ID{}, err
	}
	for _, part := range parts {
		if err := spiffeid.ValidatePathSegment(part); err != nil {
			return ID{}, fmt.Errorf("%q cannot be part of a %s identity: %w", part, kind, err)
		}
	}
	id := ID{cluster: cluster, kind: kind, path: strings.Join(parts, "/")}
	if n := len(id.String()); n > maxIDLength {
		return ID{}, fmt.Errorf("a %s identity of %d bytes is too long: at most %d", kind, n, maxIDLength)
	}
	return id, nil
}

// The limits of the SPIFFE specification.
const (
	maxIDLength     = 2048
	maxDomainLength = 255
)

// ParseID reads what [ID.String] writes, and nothing else.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, "spiffe://")
	if !ok {
		return ID{}, fmt.Errorf("identity %q does not begin with spiffe://", s)
	}
	parts := strings.Split(rest, "/")
	if len(parts) < 3 {
		return ID{}, fmt.Errorf("identity %q is not of the form spiffe://<cluster>/<kind>/<name>", s)
	}
	id, err := NewID(parts[0], Kind(parts[1]), parts[2:]...)
	if err != nil {
		return ID{}, fmt.Errorf("parse identity %q: %w", s, err)
	}
	return id, nil
}

// String is the id as a URI, such as spiffe://<cluster>/node/<uid>; empty for the zero ID.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return "spiffe://" + id.cluster + "/" + string(id.kind) + "/" + id.path
}

// IsZero reports whether the ID is no identity.
func (id ID) IsZero() bool { return id == ID{} }

// Cluster is the id of the cluster that the member belongs to.
func (id ID) Cluster() string { return id.cluster }

// Kind is the sort of member.
func (id ID) Kind() Kind { return id.kind }

// Namespace is the namespace of a workload; empty for all other kinds.
func (id ID) Namespace() string {
	namespace, _, found := strings.Cut(id.path, "/")
	if !found {
		return ""
	}
	return namespace
}

// Name is the uid of a node or server, the name of a user or workload.
func (id ID) Name() string {
	return id.path[strings.LastIndexByte(id.path, '/')+1:]
}

func (id ID) url() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: id.cluster, Path: "/" + string(id.kind) + "/" + id.path}
}

// FromCertificate reads the ID in a certificate. It does not verify the certificate.
func FromCertificate(cert *x509.Certificate) (ID, error) {
	// The SPIFFE specification allows exactly one URI, so that two readers cannot see two identities.
	if len(cert.URIs) != 1 {
		return ID{}, fmt.Errorf("certificate %s holds %d URIs: an identity is exactly one", serial(cert), len(cert.URIs))
	}
	id, err := ParseID(cert.URIs[0].String())
	if err != nil {
		return ID{}, fmt.Errorf("certificate %s: %w", serial(cert), err)
	}
	return id, nil
}

// PeerID is the verified identity of the client at the other end of a server's connection, or false when it gave
// no certificate. The connection must come from a configuration made by [ServerTLS].
func PeerID(state tls.ConnectionState) (ID, bool) {
	if len(state.VerifiedChains) == 0 {
		return ID{}, false
	}
	id, err := FromCertificate(state.VerifiedChains[0][0])
	return id, err == nil
}

// PeerIssuer returns the authority that issued the certificate for which [PeerID] returns an identity.
func PeerIssuer(state tls.ConnectionState) Fingerprint {
	if len(state.VerifiedChains) == 0 {
		return Fingerprint{}
	}
	chain := state.VerifiedChains[0]
	return sha256.Sum256(chain[len(chain)-1].Raw)
}

// checkCluster holds the id of a cluster to the alphabet of a SPIFFE trust domain.
func checkCluster(cluster string) error {
	if cluster == "" || len(cluster) > maxDomainLength {
		return fmt.Errorf("cluster id %q must have 1 to %d characters", cluster, maxDomainLength)
	}
	for _, c := range cluster {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return fmt.Errorf("cluster id %q may hold only a-z, 0-9, dot, dash and underscore, not %q", cluster, c)
		}
	}
	return nil
}

func serial(cert *x509.Certificate) string {
	if cert.SerialNumber == nil {
		return "without serial number"
	}
	return cert.SerialNumber.Text(16)
}
