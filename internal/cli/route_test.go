package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// routeStore is what a cluster remembers of routes, certificates and secrets.
type routeStore struct {
	secretStore
	store   *bucketStore
	objects *objectStore
	storage storageService
	cloudlessv1.UnimplementedRouteServiceServer
	cloudlessv1.UnimplementedCertificateServiceServer
	routes map[string]*cloudlessv1.Route // as they are stored
	// answering is the status of a route; nil answers on node box.
	answering    func(*cloudlessv1.Route) *cloudlessv1.RouteStatus
	certificates map[string]*cloudlessv1.Certificate
	key          []byte // the newest one that was sent
}

func (c *cluster) registerRoutes(server *grpc.Server) {
	c.routes, c.certificates = map[string]*cloudlessv1.Route{}, map[string]*cloudlessv1.Certificate{}
	c.registerSecrets(server)
	c.registerBuckets(server)
	c.objects = &objectStore{ObjectServiceServer: cloudlessv1.UnimplementedObjectServiceServer{}}
	cloudlessv1.RegisterObjectServiceServer(server, c.objects)
	cloudlessv1.RegisterStorageServiceServer(server, &c.storage)
	cloudlessv1.RegisterRouteServiceServer(server, c)
	cloudlessv1.RegisterCertificateServiceServer(server, c)
}

func (c *cluster) presented(r *cloudlessv1.Route) *cloudlessv1.Route {
	shown := proto.CloneOf(spec.WithoutPasswords(r))
	if c.answering != nil {
		shown.Status = c.answering(r)
		return shown
	}
	shown.Status = &cloudlessv1.RouteStatus{Url: "http://" + r.GetSpec().GetHost(), Nodes: []*cloudlessv1.RouteNode{{Node: "box", Addresses: []string{"192.0.2.7", "2001:db8::7"}}}}
	return shown
}

func (c *cluster) CreateRoute(_ context.Context, request *cloudlessv1.CreateRouteRequest) (*cloudlessv1.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := proto.CloneOf(request.GetRoute())
	if c.routes[r.GetMetadata().GetName()] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "route %s exists already in namespace default", r.GetMetadata().GetName())
	}
	spec.NormalizeRoute(r)
	c.routes[r.GetMetadata().GetName()] = r
	return c.presented(r), nil
}

func (c *cluster) ApplyRoute(_ context.Context, request *cloudlessv1.ApplyRouteRequest) (*cloudlessv1.ApplyRouteResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := proto.CloneOf(request.GetRoute())
	spec.NormalizeRoute(r)
	c.routes[r.GetMetadata().GetName()] = r
	return &cloudlessv1.ApplyRouteResponse{Route: c.presented(r), Result: "updated"}, nil
}

func (c *cluster) GetRoute(_ context.Context, request *cloudlessv1.GetRouteRequest) (*cloudlessv1.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.routes[request.GetName()]; r != nil {
		return c.presented(r), nil
	}
	return nil, status.Errorf(codes.NotFound, "route %s does not exist in namespace default", request.GetName())
}

func (c *cluster) ListRoutes(context.Context, *cloudlessv1.ListRoutesRequest) (*cloudlessv1.ListRoutesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cloudlessv1.ListRoutesResponse{}
	for _, r := range c.routes {
		answer.Items = append(answer.Items, c.presented(r))
	}
	return answer, nil
}

func (c *cluster) DeleteRoute(_ context.Context, request *cloudlessv1.DeleteRouteRequest) (*cloudlessv1.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.routes[request.GetName()]
	delete(c.routes, request.GetName())
	return r, nil
}

func (c *cluster) CreateCertificate(_ context.Context, request *cloudlessv1.CreateCertificateRequest) (*cloudlessv1.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := request.GetCertificate().GetMetadata().GetName()
	if c.certificates[name] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "certificate %s exists already in namespace default", name)
	}
	made := proto.CloneOf(request.GetCertificate())
	made.Spec.Hosts, made.Status = []string{"shop.example.org"}, &cloudlessv1.CertificateStatus{State: "ready"}
	c.certificates[name], c.key = made, request.GetKey()
	return made, nil
}

func (c *cluster) GetCertificate(_ context.Context, request *cloudlessv1.GetCertificateRequest) (*cloudlessv1.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.certificates[request.GetName()]; found != nil {
		return found, nil
	}
	return nil, status.Errorf(codes.NotFound, "certificate %s does not exist", request.GetName())
}

func TestRouteAdd(t *testing.T) {
	c := newCluster(t)
	const records = "Clients find the nodes by these DNS records:\n  shop.example.org A    192.0.2.7  (node box)\n  shop.example.org AAAA 2001:db8::7  (node box)\n"
	c.run(t.Context(), "", "route", "add", "Shop.example.org/v2", "api:8080=9", "next:8080=1", "--retries", "0", "-l", "app=shop").
		expect(t, 0, "route shop-example-org-v2 created\nhttp://shop.example.org\n", records)
	s := c.routes["shop-example-org-v2"].GetSpec()
	if s.GetHost() != "shop.example.org" || s.GetPath() != "/v2" || s.GetBackends()[0].GetWeight() != 9 || s.GetBackends()[1].GetService() != "next" || s.GetHttp().Retries == nil || s.GetHttp().GetRetries() != 0 {
		t.Errorf("the cluster was asked for %v", s)
	}
	// The same again does no harm, in any notation; something else needs --update.
	c.run(t.Context(), "", "route", "add", "shop.example.org", "api:8080=9", "next:8080=1", "--path", "/v2/", "--retries", "0", "-l", "app=shop", "--response-timeout", "60s").
		expect(t, 0, "route shop-example-org-v2 unchanged\nhttp://shop.example.org\n", records)
	c.run(t.Context(), "", "route", "add", "shop.example.org/v2", "api:8081").
		expect(t, 1, "", "cloudless: route shop-example-org-v2 exists already in namespace default, and differs in metadata.labels[app] (shop now, nothing asked for): give another --name, or change it with --update\n")
	c.run(t.Context(), "", "route", "add", "shop.example.org/v2", "api:8081", "--update").expect(t, 0, "route shop-example-org-v2 updated\nhttp://shop.example.org\n", records)
	c.run(t.Context(), "", "route", "add", "--tcp", "5432", "db:5432", "--proxy-protocol", "v2", "--nodes", "zone=eu", "--allow", "192.0.2.0/24,198.51.100.7", "-d").
		expect(t, 0, "route tcp-5432 created\nhttp://\n", "")
	if db := c.routes["tcp-5432"].GetSpec(); db.GetTcp() != 5432 || db.GetHost() != "" || db.GetProxyProtocol() != "v2" || db.GetNodes() != "zone=eu" || len(db.GetAllow()) != 2 {
		t.Errorf("a TCP route is %v", db)
	}
	if got := c.run(t.Context(), "", "route", "add", "müsli.example.org", "api", "-d", "-o", "json"); got.code != 0 || !strings.Contains(got.stdout, `"host": "xn--msli-0ra.example.org"`) {
		t.Errorf("with another alphabet: %+v", got)
	}
	c.run(t.Context(), "", "route", "rm", "tcp-5432").expect(t, 0, "route tcp-5432 removed\n", "")
}

func TestRouteAddRefuses(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		line, want string
		code       int
	}{
		{"route add", "HOST is missing", 2},
		{"route add a.org", "SERVICE:PORT is missing", 2},
		{"route add --tcp 5432", "SERVICE:PORT is missing", 2},
		{"route add https://a.org/ api:80", "is an address: write the host alone, such as a.org", 2},
		{"route add a.org:443 api:80", "has a port: nodes answer for hosts at the ports of the ingress; write a.org", 2},
		{"route add a.org/x api:80 --path /y", "has a path, and --path gives another", 2},
		{"route add a.org api:http", `"http" in "api:http" is not a port`, 2},
		{"route add a.org api:80=much", `"much" in "api:80=much" is not a weight`, 2},
		{"route add a.org :80", "is not of the form SERVICE:PORT", 2},
		{"route add a.org api:80 --redirect --plain", "exclude each other", 2},
		{"route add a.org api:80 --error-page down.html", "is not of the form STATUS=FILE", 2},
		{"route add a.org api:80 --error-page 503=/does/not/exist", "--error-page: open /does/not/exist", 2},
		{"route add a.org api:80 --password-stdin", "name them with --user", 2},
		{"route add a.org api:80 --user ann", "there is no terminal to ask for the password on: give it with --password-stdin", 2},
		{"route add a.org api:80 --tls on", "spec.tls.mode: must be auto, cluster, own or off", 1},
		{"route add a.org api:80 --tls own", "spec.tls.certificate: is missing", 1},
		{"route add a_b.org api:80", "spec.host: must be a host name in lower case", 1},
		{"route add localhost api:80 --tls auto", "spec.tls.mode: auto needs a name", 1},
		{"route add a.org api:80 --redirect", "spec.http.plain: redirect is only for routes with TLS", 1},
		{"route add --udp 53 dns --compress", "spec.http: is only for routes with a host", 1},
		{"edit certificate x", "certificate cannot be edited", 1},
	} {
		if got := c.run(t.Context(), "", strings.Fields(test.line)...); got.code != test.code || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s: %+v, want %d and %q", test.line, got, test.code, test.want)
		}
	}
	if len(c.routes) != 0 {
		t.Errorf("made %v", c.routes)
	}
}

// Passwords are hashed on this machine, and are in no output.
func TestRouteAddHashesPasswords(t *testing.T) {
	c := newCluster(t)
	got := c.run(t.Context(), "secret1\nsecret2\n", "route", "add", "a.org", "api", "--user", "ann", "--user", "bob", "--password-stdin")
	users := c.routes["a-org"].GetSpec().GetHttp().GetUsers()
	if got.code != 0 || len(users) != 2 || strings.Contains(got.stdout+got.stderr, "secret") || strings.Contains(got.stdout+got.stderr, "$2a$") {
		t.Fatalf("%+v, %v", got, users)
	}
	for i, password := range []string{"secret1", "secret2"} {
		if err := bcrypt.CompareHashAndPassword([]byte(users[i].GetPasswordHash()), []byte(password)); err != nil {
			t.Errorf("the hash of %s: %v", users[i].GetName(), err)
		}
	}
	if got := c.run(t.Context(), "x\ny\n", "route", "add", "a.org", "api", "--user", "ann", "--user", "bob", "--password-stdin"); got.code != 0 ||
		!strings.Contains(got.stdout, "unchanged") || !strings.Contains(got.stderr, "The passwords are not compared and stay as they are") {
		t.Errorf("again: %+v", got)
	}
	for words, stdin := range map[string]string{"standard input has no line for it": "x\n", "the password of ann is empty": "\ny\n", "has more than 72 bytes": strings.Repeat("x", 73) + "\ny\n"} {
		if got := c.run(t.Context(), stdin, "route", "add", "b.org", "api", "--user", "ann", "--user", "bob", "--password-stdin"); got.code != 1 || !strings.Contains(got.stderr, words) {
			t.Errorf("%+v, want %q", got, words)
		}
	}
}

// Add waits until a node answers and the certificate is there; an interrupt and the time limit leave the route.
func TestRouteAddWaits(t *testing.T) {
	c := newCluster(t)
	asked := 0
	ctx, interrupt := context.WithCancel(t.Context())
	c.answering = func(*cloudlessv1.Route) *cloudlessv1.RouteStatus {
		st := &cloudlessv1.RouteStatus{Url: "https://a.org", Certificate: "tls-a-org", Nodes: []*cloudlessv1.RouteNode{{Node: "box", Problem: "nginx uses port 443"}}}
		switch asked++; {
		case asked == 2:
			c.certificates["tls-a-org"] = &cloudlessv1.Certificate{Status: &cloudlessv1.CertificateStatus{State: "pending", Problem: "the authority does not answer"}}
			st.Nodes[0].Problem = ""
		case asked > 2:
			c.certificates["tls-a-org"].Status = &cloudlessv1.CertificateStatus{State: "ready"}
			st.Nodes[0].Problem, st.Reason = "", "service api does not exist"
		}
		return st
	}
	c.run(t.Context(), "", "route", "add", "a.org", "api", "--tls", "auto").
		expect(t, 0, "route a-org created\nhttps://a.org\n", "warning: route a-org: service api does not exist\n")
	c.answering = func(*cloudlessv1.Route) *cloudlessv1.RouteStatus {
		return &cloudlessv1.RouteStatus{Nodes: []*cloudlessv1.RouteNode{{Node: "box", Problem: "nginx uses port 443"}}}
	}
	c.run(t.Context(), "", "route", "add", "b.org", "api", "--timeout", "2s").
		expect(t, 1, "route b-org created\n", "cloudless: route b-org stays, but after 2s no node answers yet; node box nginx uses port 443; see: cloudless route get b-org\n")
	calls := 0
	c.answering = func(*cloudlessv1.Route) *cloudlessv1.RouteStatus {
		if calls++; calls == 3 {
			interrupt()
		}
		return &cloudlessv1.RouteStatus{}
	}
	c.run(ctx, "", "route", "add", "c.org", "api").
		expect(t, 130, "route c-org created\n", "Stopped waiting. Route c-org stays: no node that should answer for it is online. See: cloudless route get c-org\n")
}

func TestRouteGetAndList(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "route", "add", "a.org", "api:80", "next:80", "-d")
	c.answering = func(*cloudlessv1.Route) *cloudlessv1.RouteStatus {
		return &cloudlessv1.RouteStatus{
			Url: "https://a.org", Certificate: "tls-a-org", Ready: 3, Reason: "something is wrong",
			Nodes: []*cloudlessv1.RouteNode{{Node: "box", Addresses: []string{"192.0.2.7"}}, {Node: "nas", Problem: "nginx uses port 443"}},
			Traffic: &cloudlessv1.RouteTraffic{
				Requests: 41.6, ErrorRate: 0.012, P50: 3.2, P99: 48, Open: 7, Received: 2048, Sent: 4096,
				Backends: []*cloudlessv1.BackendTraffic{{Service: "api", Revision: 3, Requests: 40, P99: 48}, {Service: "next", Requests: 1.6, ErrorRate: 0.5}},
			},
		}
	}
	got := c.run(t.Context(), "", "route", "get", "a-org")
	for _, want := range []string{
		"To: api:80 50 %, next:80 50 %", "Ready: 3 endpoints", "Requests: 42/s, 1.20 % failed, 7 open", "Latency: p50 3.2 ms, p99 48 ms",
		"Reason: something is wrong", "nas - nginx uses port 443", "api 3 40 0 % 48 ms", "next - 1.6 50 % -",
	} {
		if !strings.Contains(oneLine(got.stdout), want) {
			t.Errorf("route get shows\n%s\nwithout %q", got.stdout, want)
		}
	}
	got = c.run(t.Context(), "", "route", "ls")
	if !strings.Contains(oneLine(got.stdout), "NAME URL TO NODES REQUESTS/S REASON AGE a-org https://a.org api:80 50 %, next:80 50 % 1/2 42 something is wrong") {
		t.Errorf("route ls shows\n%s", got.stdout)
	}
	if got := c.run(t.Context(), "", "get", "rt", "a-org", "-o", "json"); !strings.Contains(got.stdout, `"url": "https://a.org"`) {
		t.Errorf("as JSON: %+v", got)
	}
}

// oneLine is a text with single blanks between its words.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// keyPair writes a certificate and its key into files.
func keyPair(t *testing.T, dir, name string) (certificate, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"shop.example.org"}, NotAfter: time.Now().Add(time.Hour)}
	public, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: public}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func TestCertificateAdd(t *testing.T) {
	c := newCluster(t)
	dir := t.TempDir()
	certificate, key := keyPair(t, dir, "a")
	_, otherKey := keyPair(t, dir, "b")
	otherCertificate := strings.TrimSuffix(otherKey, "key") + "pem"
	for words, args := range map[string][]string{
		"--cert is missing": {"--key", key},
		"are no certificate with its key in PEM: private key does not match public key": {"--cert", certificate, "--key", otherKey},
		"are no certificate with its key in PEM: failed to find certificate PEM data":   {"--cert", key, "--key", key},
		"--key: open": {"--cert", certificate, "--key", filepath.Join(dir, "none")},
	} {
		if got := c.run(t.Context(), "", append([]string{"certificate", "add", "shop"}, args...)...); got.code == 0 || !strings.Contains(got.stderr, words) {
			t.Errorf("%v: %+v, want %q", args, got, words)
		}
	}
	if c.key != nil {
		t.Fatal("a wrong key was sent")
	}
	add := func(certificate, key string) result {
		return c.run(t.Context(), "", "certificate", "add", "shop", "--cert", certificate, "--key", key)
	}
	add(certificate, key).expect(t, 0, "certificate shop created, for shop.example.org\n", "")
	add(certificate, key).expect(t, 0, "certificate shop unchanged, for shop.example.org\n", "")
	add(otherCertificate, otherKey).expect(t, 1, "", "cloudless: certificate shop exists already in namespace default: give another name, or replace it with --update\n")
	if sent := string(c.key); !strings.Contains(sent, "PRIVATE KEY") {
		t.Errorf("the key was sent as %q", sent)
	}
	if got := c.run(t.Context(), "", "certificate", "get", "shop"); got.code != 0 || !strings.Contains(oneLine(got.stdout), "State: ready") || strings.Contains(got.stdout, "PRIVATE") {
		t.Errorf("certificate get: %+v", got)
	}
}
