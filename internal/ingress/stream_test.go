package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

func TestGRPCPasses(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s, checks := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(s, checks)
	go func() { _ = s.Serve(l) }() // ends with Stop
	defer s.Stop()
	n := newNode(t, routedAs(&v1.RouteSpec{Tls: &v1.RouteTls{Mode: "own"}, Http: &v1.RouteHttp{Plain: "serve", Compress: true}}, "a.test", "grpc"), certified("a.test"), service("grpc", l.Addr().String()))
	for port, secure := range map[int]credentials.TransportCredentials{
		n.http: insecure.NewCredentials(), n.https: credentials.NewTLS(&tls.Config{ServerName: "a.test", RootCAs: n.roots}),
	} {
		conn := must.Get(grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(secure), grpc.WithAuthority("a.test")))(t)
		defer conn.Close()
		client := healthpb.NewHealthClient(conn)
		if p, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || p.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("port %d: %v, %v", port, p, err)
		}
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "unknown"}); status.Convert(err).Message() != "unknown service" {
			t.Errorf("port %d: the error is %v", port, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream := must.Get(client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "x"}))(t)
		for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
			checks.SetServingStatus("x", want)
			for {
				p, err := stream.Recv()
				if err != nil {
					t.Fatalf("port %d: the stream ends with %v", port, err)
				}
				if p.GetStatus() == want {
					break
				}
			}
		}
		cancel()
	}
}

// tcpEcho repeats what it gets until the client has ended, and then says goodbye.
func tcpEcho(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
				_, _ = io.WriteString(conn, "goodbye")
			}()
		}
	}()
	return l.Addr().String()
}

func TestTCPPasses(t *testing.T) {
	plain, secure, versioned := freePort(t), freePort(t), freePort(t)
	n := newNode(t, service("echo", tcpEcho(t)), certified("a.test"),
		routedAs(&v1.RouteSpec{Tcp: int32(plain)}, "", "echo"),
		func(n *node, down *v1.IngressDown) {
			routedAs(&v1.RouteSpec{Tcp: int32(secure), Tls: &v1.RouteTls{Mode: "own"}}, "", "echo")(n, down)
			down.Routes[1].Uid, down.Routes[1].CertificateUid = "r-secure", "c-a.test"
			routedAs(&v1.RouteSpec{Tcp: int32(versioned), ProxyProtocol: "v1"}, "", "echo")(n, down)
			down.Routes[2].Uid = "r-versioned"
		})
	large := strings.Repeat("x", 5<<20)
	for _, c := range []struct {
		port   int
		prefix bool
		dial   func(address string) (net.Conn, error)
	}{
		{plain, false, func(a string) (net.Conn, error) { return net.Dial("tcp", a) }},
		{secure, false, func(a string) (net.Conn, error) {
			return tls.Dial("tcp", a, &tls.Config{ServerName: "a.test", RootCAs: n.roots})
		}},
		{versioned, true, func(a string) (net.Conn, error) { return net.Dial("tcp", a) }},
	} {
		conn := must.Get(c.dial(fmt.Sprintf("127.0.0.1:%d", c.port)))(t)
		want := large + "goodbye"
		if c.prefix {
			want = fmt.Sprintf("PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n", conn.LocalAddr().(*net.TCPAddr).Port, c.port) + want
		}
		go func() {
			_, _ = io.WriteString(conn, large)
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if string(got) != want {
			t.Errorf("port %d: %d bytes beginning with %.60q came back, %v, want %d", c.port, len(got), got, err, len(want))
		}
		conn.Close()
	}
}

func TestSilentTCPConnectionsEnd(t *testing.T) {
	port := freePort(t)
	newNode(t, service("echo", tcpEcho(t)), routedAs(&v1.RouteSpec{Tcp: int32(port), Http: &v1.RouteHttp{IdleTimeout: "100ms"}}, "", "echo"))
	conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)))(t)
	defer conn.Close()
	if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection ends with %v", err)
	}
}

func TestUDPPasses(t *testing.T) {
	backend := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer backend.Close()
	go func() { // ends with the socket
		b := make([]byte, 2048)
		for {
			n, from, err := backend.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = backend.WriteTo(append([]byte("you said "), b[:n]...), from)
		}
	}()
	port := freePort(t)
	n := newNode(t, service("dns", backend.LocalAddr().String()), routedAs(&v1.RouteSpec{Udp: int32(port), Http: &v1.RouteHttp{IdleTimeout: "50ms"}}, "", "dns"))
	for i := range 3 {
		conn := must.Get(net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port)))(t)
		defer conn.Close()
		fmt.Fprintf(conn, "hello %d", i)
		b := make([]byte, 2048)
		size := must.Get(conn.Read(b))(t)
		if got, want := string(b[:size]), fmt.Sprintf("you said hello %d", i); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	var flows, open int64
	for flows == 0 || open > 0 { // silent flows end
		for _, s := range n.Report(false).GetTraffic() {
			flows += s.GetRequests()
			open = s.GetOpen()
		}
	}
	if flows != 3 {
		t.Errorf("%d flows were counted", flows)
	}
}

// The node's resolver has the port of DNS at some addresses: a UDP route has it at all others, whoever was first, and gets
// nothing of what is for the resolver, also while that does not run.
func TestUDPRouteLeavesTheResolverItsAddresses(t *testing.T) {
	backend := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer backend.Close()
	go func() { // ends with the socket
		b := make([]byte, 2048)
		for {
			n, from, err := backend.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = backend.WriteTo(append([]byte("route: "), b[:n]...), from)
		}
	}()
	port, theirs := freePort(t), netip.MustParseAddr("127.0.0.2")
	resolver := func() net.PacketConn {
		config := net.ListenConfig{Control: share}
		return must.Get(config.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(theirs, uint16(port)).String()))(t)
	}
	before := resolver()
	e := New(Options{SharedUDP: port, Theirs: func(a netip.Addr) bool { return a == theirs }})
	defer e.Close()
	down := &v1.IngressDown{Full: true, Settings: &v1.Ingress{HttpPort: int32(freePort(t)), HttpsPort: int32(freePort(t))}}
	n := &node{t: t, Engine: e}
	service("dns", backend.LocalAddr().String())(n, down)
	routedAs(&v1.RouteSpec{Udp: int32(port)}, "", "dns")(n, down)
	e.Apply(down)
	route := must.Get(net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port)))(t)
	defer route.Close()
	ask := func(query, want string) {
		t.Helper()
		must.Get(route.Write([]byte(query)))(t)
		b := make([]byte, 2048)
		if n := must.Get(route.Read(b))(t); string(b[:n]) != want {
			t.Errorf("got %q, want %q", b[:n], want)
		}
	}
	ask("one", "route: one")
	client := must.Get(net.Dial("udp", fmt.Sprintf("127.0.0.2:%d", port)))(t)
	defer client.Close()
	heard := func(at net.PacketConn, want string) {
		t.Helper()
		b := make([]byte, 2048)
		if n, _, err := at.ReadFrom(b); err != nil || string(b[:n]) != want {
			t.Errorf("the resolver got %q, %v, want %q", b[:n], err, want)
		}
	}
	must.Get(client.Write([]byte("first")))(t)
	heard(before, "first")
	before.Close()
	must.Get(client.Write([]byte("nobody")))(t)
	ask("two", "route: two") // after it in the queue of the same socket
	after := resolver()
	defer after.Close()
	must.Get(client.Write([]byte("second")))(t)
	heard(after, "second")
	if received := func() (n int64) {
		for _, s := range e.Report(false).GetTraffic() {
			n += s.GetReceived()
		}
		return n
	}(); received != int64(len("one")+len("two")) {
		t.Errorf("the route got %d bytes", received)
	}
}

// Clients that send nothing, or byte by byte, hold connections and no more: others are served meanwhile.
func TestSlowClientsDoNotKeepOthersFromBeingServed(t *testing.T) {
	const slow = 4000 // both ends are in this process; package ingressd has a test with more
	n := newNode(t, routed("a.test", "web"), service("web", says(t, "hello")))
	conns := make([]net.Conn, slow)
	var dialing sync.WaitGroup
	for part := range 8 {
		dialing.Go(func() {
			for i := part; i < slow; i += 8 {
				conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http))
				if err != nil {
					t.Error(err)
					return
				}
				conns[i] = conn
				_, _ = io.WriteString(conn, []string{"", "G", "GET / HTTP/1.1\r\nHost: a.test\r\nX: "}[i%3])
			}
		})
	}
	dialing.Wait()
	for range 50 {
		if p, body := n.get("http://a.test/"); p.StatusCode != 200 || body != "hello" {
			t.Fatalf("status %d, %s", p.StatusCode, body)
		}
	}
	for _, conn := range conns {
		conn.Close()
	}
}

// Too many connections of one address make room for each other, and not those that have a request.
func TestOneAddressGetsAShareOfTheConnections(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	n := newNodeWith(t, Options{Connections: 40}, routed("a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			began <- struct{}{}
			<-release
		}
	})))
	ask := func(path, from string) (*bufio.Reader, net.Conn) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn := must.Get(d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n", path)
		return bufio.NewReader(conn), conn
	}
	answered := func(r *bufio.Reader) bool {
		p, err := http.ReadResponse(r, nil)
		if err != nil {
			return false
		}
		return p.Body.Close() == nil
	}
	for i := range 30 {
		r, conn := ask("/", "127.0.0.1")
		defer conn.Close()
		if !answered(r) {
			t.Errorf("connection %d got no answer, though others are idle", i)
		}
	}
	var slow []*bufio.Reader
	for range 10 {
		r, conn := ask("/slow", "127.0.0.1")
		defer conn.Close()
		<-began
		slow = append(slow, r)
	}
	r, conn := ask("/", "127.0.0.1")
	defer conn.Close()
	if answered(r) {
		t.Error("an address has more requests than its share of the connections")
	}
	r, conn = ask("/", "127.0.0.9")
	defer conn.Close()
	if !answered(r) {
		t.Error("another address got no answer")
	}
	close(release)
	for _, r := range slow {
		if !answered(r) {
			t.Error("a connection with a request was closed")
		}
	}
}

// What a parser may read in two ways reaches no backend, and ends the connection.
func TestAmbiguousRequestsReachNoBackend(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		t.Errorf("the backend got %s %s with %q", r.Method, r.RequestURI, b)
	})))
	for name, text := range map[string]string{
		"length and chunks": "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"two lengths":       "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"folded line":       "POST / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n Content-Length: 44\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"bare line feeds":   "GET / HTTP/1.1\nHost: a.test\n\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"another encoding":  "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"host of two":       "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
	} {
		conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
		_, _ = io.WriteString(conn, text)
		got, err := io.ReadAll(conn)
		conn.Close()
		if strings.Count(string(got), "HTTP/1.1 ") != 1 || !strings.HasPrefix(string(got), "HTTP/1.1 4") && !strings.HasPrefix(string(got), "HTTP/1.1 501") || !strings.Contains(string(got), "Connection: close\r\n") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A body whose chunks are broken must not be complete for the backend.
func TestBrokenChunksAreNotABody(t *testing.T) {
	bodies := make(chan error, 1)
	n := newNode(t, routed("a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		bodies <- err
	})))
	conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n+1\r\na\r\n0\r\n\r\n")
	got, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(got), "HTTP/1.1 400") || <-bodies == nil {
		t.Errorf("answered with %.60q", got)
	}
}
