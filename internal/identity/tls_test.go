package identity

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/url"
	"testing"
	"time"
)

// shake connects two configurations over loopback. One byte goes each way, because in TLS 1.3 a client learns only when
// it reads that the server has refused its certificate.
func shake(t *testing.T, server, client *tls.Config) (atServer tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			serverErr = err
			return
		}
		conn := tls.Server(raw, server)
		defer conn.Close()
		if serverErr = conn.Handshake(); serverErr != nil {
			return
		}
		atServer = conn.ConnectionState()
		if _, serverErr = conn.Write([]byte("s")); serverErr == nil {
			_, serverErr = io.ReadFull(conn, make([]byte, 1))
		}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, client)
	if _, clientErr = io.ReadFull(conn, make([]byte, 1)); clientErr == nil {
		_, clientErr = conn.Write([]byte("c"))
	}
	conn.Close()
	<-done
	return atServer, serverErr, clientErr
}

func TestMembersAuthenticateEachOther(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server, node := issue(t, ca, time.Hour, KindServer, "s-1"), issue(t, ca, time.Hour, KindNode, "n-1")
	state, serverErr, clientErr := shake(t, ServerTLS(ca.Trust(), server.Certificate), ClientTLS(ca.Trust(), node.Certificate))
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v, client: %v", serverErr, clientErr)
	}
	if id, ok := PeerID(state); !ok || id != node.ID() {
		t.Errorf("the server sees %s, %v; want %s", id, ok, node.ID())
	}
	if state.Version != tls.VersionTLS13 {
		t.Errorf("version %x", state.Version)
	}
}

func TestAClientMayComeWithoutACertificate(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server := issue(t, ca, time.Hour, KindServer, "s-1")
	state, serverErr, clientErr := shake(t, ServerTLS(ca.Trust(), server.Certificate), ClientTLS(ca.Trust(), nil))
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v, client: %v", serverErr, clientErr)
	}
	if id, ok := PeerID(state); ok || !id.IsZero() {
		t.Errorf("the server sees %s in a client without certificate", id)
	}
}

func TestServersRefuseClientsThatAreNoMembers(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server := issue(t, ca, time.Hour, KindServer, "s-1")
	for name, client := range map[string]*Credentials{
		"from a CA that calls itself the same": issue(t, newTestCA(t, testCluster), time.Hour, KindNode, "n-1"),
		"expired":                              expired(t, ca),
		"of another trust domain":              misissued(t, ca, "spiffe://elsewhere/node/n-1"),
		"without identity":                     misissued(t, ca, "https://"+testCluster+"/node/n-1"),
	} {
		state, serverErr, clientErr := shake(t,
			ServerTLS(ca.Trust(), server.Certificate), ClientTLS(ca.Trust(), client.Certificate))
		if serverErr == nil || clientErr == nil {
			t.Errorf("%s: server: %v, client: %v", name, serverErr, clientErr)
		}
		if id, ok := PeerID(state); ok {
			t.Errorf("%s: the server sees %s", name, id)
		}
	}
}

// expired are credentials that expired an hour ago.
func expired(t *testing.T, ca *CA) *Credentials {
	t.Helper()
	key, csr, err := NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	id := mustID(t, ca.Trust().Cluster(), KindNode, "n-1")
	chain, err := ca.Issue(csr, id, IssueOptions{TTL: time.Hour, Client: true}, time.Now().Add(-2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCredentials(key, chain)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// misissued are credentials with a URI that the CA would never issue, but signed by it.
func misissued(t *testing.T, ca *CA, uri string) *Credentials {
	t.Helper()
	c := issue(t, ca, time.Hour, KindNode, "n-1")
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	template := *c.cert.Leaf
	template.URIs, template.ExtraExtensions = []*url.URL{u}, nil
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.trust.root(), c.cert.Leaf.PublicKey, ca.now.Load().key)
	if err != nil {
		t.Fatal(err)
	}
	c.cert.Certificate[0] = der
	return c
}

func TestAResumedConnectionHasTheIdentityOfTheFirst(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server, node := issue(t, ca, time.Hour, KindServer, "s-1"), issue(t, ca, time.Hour, KindNode, "n-1")
	atServer := ServerTLS(ca.Trust(), server.Certificate)
	atClient := ClientTLS(ca.Trust(), node.Certificate)
	atClient.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	atClient.ServerName = "server" // the key of the session, since each connection here has another address
	for resumed := range 2 {
		state, serverErr, clientErr := shake(t, atServer, atClient)
		if serverErr != nil || clientErr != nil {
			t.Fatalf("server: %v, client: %v", serverErr, clientErr)
		}
		if state.DidResume != (resumed == 1) {
			t.Fatalf("connection %d: resumed %v", resumed, state.DidResume)
		}
		if id, ok := PeerID(state); !ok || id != node.ID() {
			t.Errorf("connection %d: the server sees %s, %v", resumed, id, ok)
		}
	}
}

func TestClientsRefuseServersOfOtherClusters(t *testing.T) {
	ca := newTestCA(t, testCluster)
	user := issue(t, ca, time.Hour, KindUser, "ada")
	for name, server := range map[string]*Credentials{
		"a node that plays server":             issue(t, ca, time.Hour, KindNode, "n-1"),
		"another cluster":                      issue(t, newTestCA(t, "elsewhere"), time.Hour, KindServer, "s-1"),
		"from a CA that calls itself the same": issue(t, newTestCA(t, testCluster), time.Hour, KindServer, "s-1"),
		"expired":                              expired(t, ca),
	} {
		state, serverErr, clientErr := shake(t,
			ServerTLS(server.Trust(), server.Certificate), ClientTLS(ca.Trust(), user.Certificate))
		if clientErr == nil || serverErr == nil {
			t.Errorf("%s: server: %v, client: %v", name, serverErr, clientErr)
		}
		if len(state.PeerCertificates) != 0 {
			t.Errorf("%s: the client showed its certificate", name)
		}
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server := issue(t, ca, time.Hour, KindServer, "s-1")
	client := ClientTLS(ca.Trust(), nil)
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, serverErr, clientErr := shake(t, ServerTLS(ca.Trust(), server.Certificate), client)
	if serverErr == nil || clientErr == nil {
		t.Errorf("server: %v, client: %v", serverErr, clientErr)
	}
}

func TestAJoiningMachineVerifiesTheServerByItsToken(t *testing.T) {
	ca := newTestCA(t, testCluster)
	server := issue(t, ca, time.Hour, KindServer, "s-1")
	token, err := ParseJoinToken(NewJoinToken(ca.Trust().Fingerprint()).Reveal())
	if err != nil {
		t.Fatal(err)
	}
	_, serverErr, clientErr := shake(t, ServerTLS(ca.Trust(), server.Certificate), JoinTLS(token.CA()))
	if serverErr != nil || clientErr != nil {
		t.Errorf("server: %v, client: %v", serverErr, clientErr)
	}
}

func TestJoiningMachineSendsNothingToAnImpostor(t *testing.T) {
	ca, evil := newTestCA(t, testCluster), newTestCA(t, testCluster)
	fingerprint := ca.Trust().Fingerprint()
	impostor := issue(t, evil, time.Hour, KindServer, "s-1")
	// The CA's certificate is public: an impostor can send it along.
	borrowed := *impostor.cert
	borrowed.Certificate = [][]byte{impostor.cert.Certificate[0], ca.Trust().DER()}
	node := issue(t, ca, time.Hour, KindNode, "n-1")
	for name, cert := range map[string]*tls.Certificate{
		"own CA":           impostor.cert,
		"borrowed CA":      &borrowed,
		"node, not server": node.cert,
	} {
		source := func() (*tls.Certificate, error) { return cert, nil }
		state, serverErr, clientErr := shake(t, ServerTLS(evil.Trust(), source), JoinTLS(fingerprint))
		if clientErr == nil || serverErr == nil {
			t.Errorf("%s: server: %v, client: %v", name, serverErr, clientErr)
		}
		if state.HandshakeComplete {
			t.Errorf("%s: the handshake was completed", name)
		}
	}
}
