package ingress

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/crypto/bcrypt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/accesslog"
	"github.com/cloudless/cloudless/internal/must"
)

// echoes is a backend that answers with what it got.
func echoes(t *testing.T) string {
	t.Helper()
	return server(t, func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			for _, value := range values {
				fmt.Fprintf(w, "%s: %s\n", name, value)
			}
		}
	})
}

func with(h *v1.RouteHttp) *v1.RouteSpec { return &v1.RouteSpec{Http: h} }

func TestUnknownHostsAndPathsAreRefused(t *testing.T) {
	n := newNode(t, routed("a.test/only", "web"), routed("*.b.test", "web"), service("web", says(t, "hello")))
	for address, want := range map[string]int{
		"http://a.test/only/x": 200, "http://a.test/": 404, "http://c.test/": 404, "http://x.b.test/": 200, "http://b.test/": 404, "http://x.y.b.test/": 404,
	} {
		if p, body := n.get(address); p.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %s", address, p.StatusCode, want, body)
		}
	}
}

func TestCertificatesAreChosenByName(t *testing.T) {
	n := newNode(t, service("web", says(t, "hello")),
		routedAs(encrypted, "a.test", "web"), certified("a.test"), routedAs(encrypted, "*.b.test", "web"), certified("*.b.test"), routedAs(encrypted, "pending.test", "web"))
	for _, host := range []string{"a.test", "x.b.test"} {
		for _, multi := range []bool{false, true} {
			if p, body := n.send(n.client(multi), "GET", "https://"+host+"/", ""); body != "hello" {
				t.Errorf("%s: status %d, %s", host, p.StatusCode, body)
			}
		}
	}
	for _, host := range []string{"unknown.test", "pending.test", "x.y.b.test"} {
		_, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.https), &tls.Config{ServerName: host, InsecureSkipVerify: true})
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v, want the alert unrecognized name", host, err)
		}
	}
	// A browser may send requests for other hosts on the connection: it has to be told to use another.
	conn := must.Get(tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.https), &tls.Config{ServerName: "a.test", RootCAs: n.roots}))(t)
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x.b.test\r\n\r\n")
	if p := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t); p.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %d for another host", p.StatusCode)
	}
}

func TestAuthoritiesGetTheirAnswers(t *testing.T) {
	chain, key := selfSigned(t, "a.test")
	n := newNode(t, routedAs(encrypted, "a.test", "web"), func(_ *node, down *v1.IngressDown) {
		down.Challenges = []*v1.IngressChallenge{
			{Uid: "1", Host: "a.test", Token: "token", KeyAuthorization: "token.thumb"},
			{Uid: "2", Host: "b.test", Certificate: &v1.IngressCertificate{Uid: "2", Chain: chain, Key: key}},
		}
	})
	if p, body := n.get("http://a.test/.well-known/acme-challenge/token"); p.StatusCode != 200 || body != "token.thumb" {
		t.Errorf("status %d, %s", p.StatusCode, body)
	}
	if p, _ := n.get("http://a.test/.well-known/acme-challenge/other"); p.StatusCode != http.StatusPermanentRedirect {
		t.Errorf("status %d for another token", p.StatusCode)
	}
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.https), &tls.Config{ServerName: "b.test", NextProtos: []string{"acme-tls/1"}, InsecureSkipVerify: true})
	must.Succeed(t, err)
	defer conn.Close()
	if s := conn.ConnectionState(); s.NegotiatedProtocol != "acme-tls/1" || s.PeerCertificates[0].Subject.CommonName != "a.test" {
		t.Errorf("by TLS-ALPN-01 the answer is %s, %v", s.NegotiatedProtocol, s.PeerCertificates[0].Subject)
	}
	n.change(func(_ *node, down *v1.IngressDown) { down.RemovedChallenges = []string{"2"} })
	if _, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.https), &tls.Config{ServerName: "b.test", NextProtos: []string{"acme-tls/1"}, InsecureSkipVerify: true}); err == nil {
		t.Error("a challenge that is over is answered")
	}
}

func TestOnlyTrustedProxiesSayWhoTheClientIs(t *testing.T) {
	web := echoes(t)
	hostile := []string{"X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", "X_Forwarded_For: 203.0.113.9", "Forwarded: for=203.0.113.9", "X-Real-Ip: 203.0.113.9", "Connection: X-Secret", "X-Secret: 1", "Te: gzip"}
	n := newNode(t, routed("a.test", "web"), service("web", web))
	for _, multi := range []bool{false, true} {
		fields := hostile
		if multi {
			fields = hostile[:5]
		}
		_, got := n.send(n.client(multi), "GET", "http://a.test/", "", fields...)
		for _, want := range []string{"X-Forwarded-For: 127.0.0.1\n", "X-Forwarded-Proto: http\n", "X-Forwarded-Host: a.test\n", fmt.Sprintf("X-Forwarded-Port: %d\n", n.http), "X-Real-Ip: 127.0.0.1\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("HTTP/2 %v: %q is missing in %s", multi, want, got)
			}
		}
		for _, field := range []string{"203.0.113.9", "Forwarded: ", "X-Secret", "Te: ", "X_Forwarded"} {
			if strings.Contains(strings.ReplaceAll(got, "X-Forwarded", ""), field) {
				t.Errorf("HTTP/2 %v: %q came through: %s", multi, field, got)
			}
		}
	}
	n.change(func(n *node, down *v1.IngressDown) {
		down.Settings = &v1.Ingress{HttpPort: int32(n.http), HttpsPort: int32(n.https), TrustedProxies: []string{"127.0.0.0/8"}}
	})
	_, got := n.get("http://a.test/", "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 127.0.0.2", "X-Forwarded-Proto: https", "Forwarded: for=203.0.113.9")
	for _, want := range []string{"X-Forwarded-For: 198.51.100.1, 203.0.113.9, 127.0.0.2, 127.0.0.1\n", "X-Forwarded-Proto: https\n", "X-Real-Ip: 203.0.113.9\n", "Forwarded: for=203.0.113.9, for=127.0.0.1;proto=https\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("from a trusted proxy, %q is missing in %s", want, got)
		}
	}
}

func TestPROXYHeadersCountOnlyFromTrustedProxies(t *testing.T) {
	n := newNode(t, routedAs(&v1.RouteSpec{Allow: []string{"203.0.113.0/24"}}, "a.test", "web"), service("web", echoes(t)))
	ask := func(header string) int {
		conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
		defer conn.Close()
		fmt.Fprint(conn, header+"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
		return must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t).StatusCode
	}
	const header = "PROXY TCP4 203.0.113.9 192.0.2.1 5 80\r\n"
	if got := ask(header); got != http.StatusBadRequest {
		t.Errorf("from anybody, the header is answered with %d", got)
	}
	n.change(func(n *node, down *v1.IngressDown) {
		down.Settings = &v1.Ingress{HttpPort: int32(n.http), HttpsPort: int32(n.https), TrustedProxies: []string{"127.0.0.1"}}
	})
	if got := ask(header); got != 200 {
		t.Errorf("from a trusted proxy, a client that is allowed gets %d", got)
	}
	if got := ask(""); got != http.StatusForbidden {
		t.Errorf("a client that is not allowed gets %d", got)
	}
}

// A balancer that ends TLS has to say so: otherwise its clients would be redirected for ever.
func TestClientsOfABalancerWithTLSAreNotRedirected(t *testing.T) {
	n := newNode(t, routedAs(encrypted, "a.test", "web"), certified("a.test"), service("web", says(t, "hello")))
	if p, _ := n.get("http://a.test/", "X-Forwarded-Proto: https"); p.StatusCode != http.StatusPermanentRedirect {
		t.Errorf("status %d for anybody who claims TLS", p.StatusCode)
	}
	n.change(func(n *node, down *v1.IngressDown) {
		down.Settings = &v1.Ingress{HttpPort: int32(n.http), HttpsPort: int32(n.https), TrustedProxies: []string{"127.0.0.1"}}
	})
	for proto, want := range map[string]int{"https": 200, "http, HTTPS": 200, "https, http": 308, "http": 308, "": 308} {
		if p, _ := n.get("http://a.test/", "X-Forwarded-Proto: "+proto); p.StatusCode != want {
			t.Errorf("status %d if the balancer says %q, want %d", p.StatusCode, proto, want)
		}
	}
}

// The backend gets the path as the client wrote it. It must not be another one to the backend than to the rules.
func TestPathsCannotGoAroundRules(t *testing.T) {
	n := newNode(t, service("web", server(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })),
		routed("a.test", "web"), routedAs(&v1.RouteSpec{Allow: []string{"192.0.2.1"}}, "a.test/admin", "web"))
	for target, want := range map[string]int{
		"/admin": 403, "/%61dmin": 403, "/x/../admin": 403, "/admin;x=y": 403, "/admin;/users": 403, "/admin/%2e%2e/x": 400, "/admin/..%2fx": 400, "/x/..;/admin": 400, "/x%2f..%2fadmin": 400,
		"/x%2Fy": 200, "/x;a=b": 200, "/x?..%2fadmin": 200, "/a..b": 200,
	} {
		conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a.test\r\n\r\n", target)
		p := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		if body, _ := io.ReadAll(p.Body); p.StatusCode != want || want == 200 && string(body) != target {
			t.Errorf("%s: status %d, want %d: %s", target, p.StatusCode, want, body)
		}
		conn.Close()
	}
}

func TestLargestHeadersPassByBothProtocols(t *testing.T) {
	n := newNode(t, routedAs(with(&v1.RouteHttp{MaxHeaders: "1Mi"}), "a.test", "web"), service("web", says(t, "hello")))
	for _, multi := range []bool{false, true} {
		if p, body := n.send(n.client(multi), "GET", "http://a.test/", "", "X: "+strings.Repeat("x", 900<<10)); body != "hello" {
			t.Errorf("HTTP/2 %v: status %d, %s", multi, p.StatusCode, body)
		}
	}
}

func TestPasswordsAreCheckedOnceEach(t *testing.T) {
	hash := must.Get(bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost))(t)
	n := newNode(t, routedAs(with(&v1.RouteHttp{Users: []*v1.RouteUser{{Name: "ann", PasswordHash: string(hash)}}}), "a.test", "web"), service("web", says(t, "hello")))
	for address, want := range map[string]int{
		"http://ann:secret@a.test/": 200, "http://ann:wrong@a.test/": 401, "http://bob:secret@a.test/": 401, "http://a.test/": 401,
	} {
		for range 3 {
			if p, _ := n.get(address); p.StatusCode != want || want == 401 && !strings.HasPrefix(p.Header.Get("WWW-Authenticate"), "Basic realm=") {
				t.Errorf("%s: status %d, want %d", address, p.StatusCode, want)
			}
		}
	}
	if got := len(n.auth.known); got != 3 {
		t.Errorf("%d checks are remembered, want 3", got)
	}
}

func TestLimitsOfARoute(t *testing.T) {
	n := newNode(t, service("web", server(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })),
		routedAs(with(&v1.RouteHttp{MaxHeaders: "1Ki", MaxBody: "10k", ErrorPages: []*v1.RouteErrorPage{{Status: 413, ContentType: "text/plain", Body: "too much"}}}), "a.test", "web"))
	for _, multi := range []bool{false, true} {
		c := n.client(multi)
		if p, _ := n.send(c, "GET", "http://a.test/", "", "X: "+strings.Repeat("x", 2000)); p.StatusCode != 431 {
			t.Errorf("status %d for large headers", p.StatusCode)
		}
		if p, _ := n.send(c, "POST", "http://a.test/", strings.Repeat("x", 10_000)); p.StatusCode != 200 {
			t.Errorf("status %d for a body at the limit", p.StatusCode)
		}
		if p, body := n.send(c, "POST", "http://a.test/", strings.Repeat("x", 10_001)); p.StatusCode != 413 || body != "too much" {
			t.Errorf("status %d for a large body: %s", p.StatusCode, body)
		}
		r, w := io.Pipe()
		go func() {
			for range 100 {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
			w.Close()
		}()
		p := must.Get(c.Do(must.Get(http.NewRequest("POST", "http://a.test/", r))(t)))(t)
		p.Body.Close()
		r.Close()
		if p.StatusCode != 413 {
			t.Errorf("HTTP/2 %v: status %d for a large body of unknown length", multi, p.StatusCode)
		}
	}
}

func TestAnswersAreCompressedWhereThatHelps(t *testing.T) {
	text := strings.Repeat("compress me ", 1000)
	n := newNode(t, routedAs(with(&v1.RouteHttp{Compress: true}), "a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.URL.Query().Get("type"))
		w.Header().Set("Etag", `"1"`)
		if e := r.URL.Query().Get("encoding"); e != "" {
			w.Header().Set("Content-Encoding", e)
		}
		if r.URL.Query().Get("part") != "" {
			w.Header().Set("Content-Range", "bytes 0-1/2")
			w.WriteHeader(206)
		}
		_, _ = io.WriteString(w, text)
	})))
	for _, c := range []struct{ query, accepts, want string }{
		{"type=text/html", "gzip, deflate, br, zstd", "zstd"},
		{"type=application/json", "gzip", "gzip"},
		{"type=text/html", "zstd;q=0, gzip", "gzip"},
		{"type=text/html", "", ""},
		{"type=text/html", "br", ""},
		{"type=image/png", "gzip", ""},
		{"type=text/html&encoding=br", "gzip", "br"},
		{"type=text/html&part=1", "gzip", ""},
	} {
		for _, multi := range []bool{false, true} {
			p, body := n.send(n.client(multi), "GET", "http://a.test/?"+c.query, "", "Accept-Encoding: "+c.accepts)
			if got := p.Header.Get("Content-Encoding"); got != c.want {
				t.Errorf("%s for %q: encoding %q, want %q", c.query, c.accepts, got, c.want)
			}
			plain := body
			switch c.want {
			case "gzip":
				plain = string(must.Get(io.ReadAll(must.Get(gzip.NewReader(strings.NewReader(body)))(t)))(t))
			case "zstd":
				r := must.Get(zstd.NewReader(strings.NewReader(body)))(t)
				plain = string(must.Get(io.ReadAll(r))(t))
				r.Close()
			}
			if plain != text {
				t.Errorf("%s for %q: %d bytes became %d", c.query, c.accepts, len(text), len(plain))
			}
			if compressed := c.want == "gzip" || c.want == "zstd"; compressed && (p.Header.Get("Etag") != `W/"1"` || p.Header.Get("Vary") != "Accept-Encoding" || len(body) > len(text)/10) {
				t.Errorf("%s: %d bytes with %v", c.want, len(body), p.Header)
			}
		}
	}
}

func TestRequestsAreLogged(t *testing.T) {
	dir := t.TempDir()
	n := newNodeWith(t, Options{LogDir: dir}, routedAs(with(&v1.RouteHttp{AccessLog: true}), "a.test", "web"), service("web", says(t, "hello")))
	n.get("http://a.test/x?token=secret", "User-Agent: tester")
	var text []byte
	for len(text) == 0 { // the line follows the answer
		n.access.Flush()
		text, _ = os.ReadFile(filepath.Join(dir, accesslog.Name))
	}
	var line struct {
		Client, Method, Host, Path, Proto, Route, Endpoint, Agent string
		Status, Sent                                              int
	}
	must.Succeed(t, json.Unmarshal(text, &line))
	if line.Client != "127.0.0.1" || line.Method != "GET" || line.Host != "a.test" || line.Path != "/x" || line.Status != 200 || line.Sent != 5 || line.Endpoint != "web-0" || line.Agent != "tester" {
		t.Errorf("logged %+v", line)
	}
	if strings.Contains(string(text), "secret") {
		t.Errorf("the log has the query: %s", text)
	}
}

func TestRequestsAreSharedByWeight(t *testing.T) {
	n := newNode(t, routed("a.test", "one=30", "other=70", "none=0", "gone=500"), service("one", says(t, "one")),
		serviceOf("other", weighing(replica("stable", says(t, "stable")), 95), marked(weighing(replica("canary", says(t, "canary")), 5))), service("none", says(t, "none")), service("gone"))
	counts := map[string]float64{}
	const requests = 20_000
	r := n.current.Load().byUID["r-a.test"]
	for range requests {
		c, ok := r.choose(nil, false)
		if !ok {
			t.Fatal("nothing was chosen")
		}
		counts[c.id]++
	}
	for id, want := range map[string]float64{"one-0": 30, "stable": 66.5, "canary": 3.5, "none-0": 0} {
		if got := 100 * counts[id] / requests; got < want-1.5 || got > want+1.5 {
			t.Errorf("%s got %.1f %%, want %.1f", id, got, want)
		}
	}
}

// beside is a backend that answers with a text, at another address with the port of a first one.
func beside(t *testing.T, first, text string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(first)
	must.Succeed(t, err)
	l := must.Get(net.Listen("tcp", "127.0.0.2:"+port))(t)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })}
	go func() { _ = s.Serve(l) }() // ends with Close
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func weighing(e *v1.IngressEndpoint, weight int32) *v1.IngressEndpoint {
	e.Weight = weight
	return e
}

func marked(e *v1.IngressEndpoint) *v1.IngressEndpoint {
	e.Canary, e.RevisionUid = true, "r2"
	return e
}

func TestTestersGetTheCanary(t *testing.T) {
	stable := says(t, "stable")
	pin := &v1.RouteHttp{Pin: &v1.RoutePin{Header: "X-Canary", Cookie: "canary", Value: "yes"}}
	n := newNode(t, routedAs(with(pin), "a.test", "web"), serviceOf("web", replica("stable", stable), marked(weighing(replica("canary", beside(t, stable, "canary")), 0))))
	for field, want := range map[string]string{
		"X-Other: yes": "stable", "X-Canary: yes": "canary", "X-Canary: no": "stable", "Cookie: a=b; canary=yes": "canary", "Cookie: canary=no": "stable", "Cookie: xcanary=yes": "stable",
	} {
		for range 5 {
			if _, got := n.get("http://a.test/", field); got != want {
				t.Errorf("%q leads to %s, want %s", field, got, want)
			}
		}
	}
	if samples := n.Report(false).GetTraffic(); len(samples) != 2 {
		t.Errorf("the revisions are counted as %v", samples)
	}
}

// A replica that is gone costs a client nothing but time: the request was not sent.
func TestRequestsTryOtherReplicasIfConnectingFails(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Succeed(t, l.Close())
	web := says(t, "hello")
	_, port, _ := net.SplitHostPort(web)
	n := newNode(t, routed("a.test", "web"), serviceOf("web", replica("gone-1", "127.0.0.2:"+port), replica("gone-2", "127.0.0.3:"+port), replica("web", web)))
	for i := range 10 {
		if p, body := n.send(n.client(false), "POST", "http://a.test/", "body"); p.StatusCode != 200 {
			t.Errorf("request %d: status %d, %s", i, p.StatusCode, body)
		}
	}
	n.change(serviceOf("web", replica("gone-1", "127.0.0.2:"+port)))
	if p, _ := n.get("http://a.test/"); p.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d without a replica that answers", p.StatusCode)
	}
	n.change(service("web"))
	if p, _ := n.get("http://a.test/"); p.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d without a replica", p.StatusCode)
	}
}

func TestSentRequestsAreNotRepeated(t *testing.T) {
	var received atomic.Int32
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				received.Add(1)
			}
			conn.Close() // without an answer
		}
	}()
	n := newNode(t, routed("a.test", "web"), service("web", l.Addr().String()))
	for i, method := range []string{"GET", "POST"} {
		if p, _ := n.send(n.client(false), method, "http://a.test/", ""); p.StatusCode != http.StatusBadGateway || int(received.Load()) != i+1 {
			t.Errorf("%s: status %d, and %d requests reached the backend", method, p.StatusCode, received.Load())
		}
	}
}

// Backends close connections that are idle: that must not cost a request.
func TestConnectionsThatBackendsCloseAreReplaced(t *testing.T) {
	var conns sync.Map
	s := http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method) }),
		ConnState: func(c net.Conn, s http.ConnState) { conns.Store(c, s) },
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = s.Serve(l) }() // ends with Close
	defer s.Close()
	n := newNode(t, routed("a.test", "web"), service("web", l.Addr().String()))
	c := n.client(false)
	for range 50 {
		for _, method := range []string{"GET", "POST"} {
			if p, body := n.send(c, method, "http://a.test/", ""); p.StatusCode != 200 {
				t.Fatalf("%s: status %d, %s", method, p.StatusCode, body)
			}
			conns.Range(func(conn, _ any) bool {
				_ = conn.(net.Conn).Close()
				return true
			})
		}
	}
}

func TestFirstRequestWaitsForAServiceThatIsScaledToZero(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), func(_ *node, down *v1.IngressDown) {
		down.Services = []*v1.IngressService{{Uid: "s-web", Ports: []*v1.IngressServicePort{{Port: 80, TargetPort: 1}}, Wakes: true}}
	})
	answers := make(chan string, 2)
	for range 2 {
		go func() {
			_, body := n.get("http://a.test/")
			answers <- body
		}()
	}
	woken := 0
	for woken < 2 { // it is repeated while requests wait
		<-n.Urgent()
		n.hurry()
		if up := n.Report(false); len(up.GetWake()) == 1 && up.GetWake()[0] == "s-web" {
			woken++
		}
	}
	n.change(serviceOf("web", &v1.IngressEndpoint{Id: "web", Addresses: []string{"127.0.0.1:1"}, State: "unready"})) // the replica starts
	n.change(service("web", says(t, "awake")))
	for range 2 {
		if got := <-answers; got != "awake" {
			t.Errorf("the answer is %q", got)
		}
	}
	if up := n.Report(false); len(up.GetWake()) != 0 {
		t.Errorf("still waking %v", up.GetWake())
	}
}

func TestDrainingReplicaEndsWhatItHas(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	old := server(t, func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "old")
	})
	n := newNode(t, routed("a.test", "web"), service("web", old))
	answer := make(chan string)
	go func() {
		_, body := n.get("http://a.test/")
		answer <- body
	}()
	<-began
	leaving := replica("web-0", old)
	leaving.State = "draining"
	n.change(serviceOf("new", replica("new", says(t, "new"))), serviceOf("web", leaving), routed("a.test", "web", "new"))
	for range 5 {
		if _, body := n.get("http://a.test/"); body != "new" {
			t.Errorf("a new request gets %q", body)
		}
	}
	close(release)
	if got := <-answer; got != "old" {
		t.Errorf("the open request gets %q", got)
	}
}

// A service may be restarted that has only one replica, and its node may count as offline because the servers do not hear it.
func TestDrainingReplicaIsBetterThanNothing(t *testing.T) {
	leaving := replica("web-0", says(t, "leaving"))
	leaving.State = "draining"
	n := newNode(t, serviceOf("web", leaving), routed("a.test", "web"))
	if _, body := n.get("http://a.test/"); body != "leaving" {
		t.Errorf("without another replica a request gets %q", body)
	}
	n.change(serviceOf("web", leaving, replica("web-1", says(t, "ready"))))
	for range 5 {
		if _, body := n.get("http://a.test/"); body != "ready" {
			t.Errorf("with another replica a request gets %q", body)
		}
	}
}

func TestPortsFollowTheRoutes(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), service("web", says(t, "hello")))
	if up := n.Report(false); !up.GetPortsSet() || len(up.GetPorts()) != 1 || int(up.GetPorts()[0].GetPort()) != n.http || up.GetPorts()[0].GetProblem() != "" {
		t.Errorf("the ports are %v", up.GetPorts())
	}
	n.change(routedAs(encrypted, "a.test", "web"), certified("a.test"))
	if up := n.Report(false); len(up.GetPorts()) != 2 {
		t.Errorf("with TLS the ports are %v", up.GetPorts())
	}
	n.change(func(_ *node, down *v1.IngressDown) { down.RemovedRoutes = []string{"r-a.test"} })
	if up := n.Report(false); !up.GetPortsSet() || len(up.GetPorts()) != 0 {
		t.Errorf("without a route the ports are %v", up.GetPorts())
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)); err == nil {
		t.Error("the port is open without a route")
	}
}
