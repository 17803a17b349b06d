package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// node is an engine on ports of its own, and what it was told.
type node struct {
	*Engine
	t           testing.TB
	http, https int
	roots       *x509.CertPool
}

func newNode(t testing.TB, parts ...func(n *node, down *v1.IngressDown)) *node {
	t.Helper()
	return newNodeWith(t, Options{}, parts...)
}

func newNodeWith(t testing.TB, o Options, parts ...func(n *node, down *v1.IngressDown)) *node {
	t.Helper()
	o.Address, o.Logger = "127.0.0.1", slog.New(slog.NewTextHandler(t.Output(), nil))
	n := &node{t: t, http: freePort(t), https: freePort(t), roots: x509.NewCertPool(), Engine: New(o)}
	t.Cleanup(n.Close)
	down := &v1.IngressDown{Full: true, Settings: &v1.Ingress{HttpPort: int32(n.http), HttpsPort: int32(n.https)}}
	for _, add := range parts {
		add(n, down)
	}
	n.Apply(down)
	return n
}

func freePort(t testing.TB) int {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// change tells the node of a change.
func (n *node) change(parts ...func(n *node, down *v1.IngressDown)) {
	down := &v1.IngressDown{}
	for _, add := range parts {
		add(n, down)
	}
	n.Apply(down)
}

// service has one replica at each address.
func service(name string, addresses ...string) func(*node, *v1.IngressDown) {
	var endpoints []*v1.IngressEndpoint
	for i, a := range addresses {
		endpoints = append(endpoints, replica(name+"-"+strconv.Itoa(i), a))
	}
	return serviceOf(name, endpoints...)
}

func replica(id, address string) *v1.IngressEndpoint {
	return &v1.IngressEndpoint{Id: id, Addresses: []string{address}, State: "ready", Weight: 100, RevisionUid: "r1"}
}

// serviceOf has endpoints whose addresses have ports, which real ones have not: each test server has another one.
func serviceOf(name string, endpoints ...*v1.IngressEndpoint) func(*node, *v1.IngressDown) {
	return func(n *node, down *v1.IngressDown) {
		s := &v1.IngressService{Uid: "s-" + name, Namespace: "default", Name: name}
		for _, known := range endpoints {
			host, port, err := net.SplitHostPort(known.GetAddresses()[0])
			must.Succeed(n.t, err)
			known = proto.CloneOf(known)
			known.Addresses = []string{host}
			number := must.Get(strconv.Atoi(port))(n.t)
			s.Ports = []*v1.IngressServicePort{{Port: 80, TargetPort: int32(number), Protocol: "tcp"}, {Port: 53, TargetPort: int32(number), Protocol: "udp"}}
			s.Endpoints = append(s.Endpoints, known)
		}
		down.Services = append(down.Services, s)
	}
}

// routed leads from a host, which may have a path, to services.
func routed(host string, services ...string) func(*node, *v1.IngressDown) {
	return routedAs(&v1.RouteSpec{}, host, services...)
}

func routedAs(spec *v1.RouteSpec, host string, services ...string) func(*node, *v1.IngressDown) {
	return func(_ *node, down *v1.IngressDown) {
		spec := proto.CloneOf(spec)
		spec.Host, spec.Path = host, ""
		if slash := strings.IndexByte(host, '/'); slash >= 0 {
			spec.Host, spec.Path = host[:slash], host[slash:]
		}
		r := &v1.IngressRoute{Uid: "r-" + host, Namespace: "default", Name: host, Spec: spec}
		if spec.GetTls().GetMode() != "" {
			r.CertificateUid = "c-" + spec.GetHost()
		}
		for i, name := range services {
			name, weight, weighted := strings.Cut(name, "=")
			if len(spec.GetBackends()) <= i {
				spec.Backends = append(spec.Backends, &v1.RouteBackend{Service: name, Port: 80})
			}
			if spec.GetUdp() != 0 {
				spec.Backends[i].Port = 53
			}
			if weighted {
				w, _ := strconv.ParseInt(weight, 10, 32)
				spec.Backends[i].Weight = new(int32)
				*spec.Backends[i].Weight = int32(w)
			}
			r.ServiceUids = append(r.ServiceUids, "s-"+name)
		}
		down.Routes = append(down.Routes, r)
	}
}

var encrypted = &v1.RouteSpec{Tls: &v1.RouteTls{Mode: "cluster"}}

// certified has a certificate for a host, which the node's clients trust.
func certified(host string) func(*node, *v1.IngressDown) {
	return func(n *node, down *v1.IngressDown) {
		chain, key := selfSigned(n.t, host)
		n.roots.AppendCertsFromPEM([]byte(chain))
		down.Certificates = append(down.Certificates, &v1.IngressCertificate{Uid: "c-" + host, Chain: chain, Key: key})
	}
}

func selfSigned(t testing.TB, host string) (chain string, key []byte) {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	secret := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// client reaches the node whatever the host is called, by HTTP/1.1, or by HTTP/2 if it is told so.
func (n *node) client(multi bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(!multi)
	protocols.SetHTTP2(multi)
	protocols.SetUnencryptedHTTP2(multi)
	transport := &http.Transport{
		Protocols: &protocols, DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: n.roots},
		DialContext: n.dial,
	}
	n.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get makes a request with fields such as "Name: value", and returns the answer with its body.
func (n *node) get(address string, fields ...string) (*http.Response, string) {
	n.t.Helper()
	return n.send(n.client(false), http.MethodGet, address, "", fields...)
}

func (n *node) send(c *http.Client, method, address, body string, fields ...string) (*http.Response, string) {
	n.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	q := must.Get(http.NewRequest(method, address, reader))(n.t)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		q.Header.Add(name, value)
	}
	p, err := c.Do(q)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, address, err)
	}
	defer p.Body.Close()
	b, err := io.ReadAll(p.Body)
	if err != nil {
		n.t.Fatalf("%s %s: the body: %v", method, address, err)
	}
	return p, string(b)
}

// server is a test server, and where it is.
func server(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.Config.Protocols = &protocols
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// says is a backend that answers with a text.
func says(t testing.TB, text string) string {
	t.Helper()
	return server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}
