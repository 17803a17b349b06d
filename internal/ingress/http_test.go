package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// dial leads every name to the node.
func (n *node) dial(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	switch port {
	case "80":
		port = fmt.Sprint(n.http)
	case "443":
		port = fmt.Sprint(n.https)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, "127.0.0.1:"+port)
}

func TestRequestsReachTheBackendInEveryProtocol(t *testing.T) {
	echo := server(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s%s %s", r.Method, r.Host, r.RequestURI, body)
	})
	n := newNode(t, service("web", echo), routedAs(&v1.RouteSpec{Tls: &v1.RouteTls{Mode: "cluster"}, Http: &v1.RouteHttp{Plain: "serve"}}, "a.test", "web"), certified("a.test"))
	for _, scheme := range []string{"http", "https"} {
		for _, multi := range []bool{false, true} {
			c := n.client(multi)
			for _, body := range []string{"", "small", strings.Repeat("large ", 100_000)} {
				for range 2 {
					p, got := n.send(c, http.MethodPost, scheme+"://a.test/x/y?q=1", body)
					if want := "POST a.test/x/y?q=1 " + body; p.StatusCode != http.StatusTeapot || got != want || p.Header.Get("X-Backend") != "yes" {
						t.Errorf("%s, HTTP/2 %v: status %d, body %.40q of %d bytes, want %.40q", scheme, multi, p.StatusCode, got, len(got), want)
					}
					if multi != (p.ProtoMajor == 2) {
						t.Errorf("%s: the answer is %s", scheme, p.Proto)
					}
				}
			}
		}
	}
}

func TestBodiesOfUnknownLengthPass(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // Go's server cannot read and write at once
		_, _ = w.Write(body)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	})))
	for _, multi := range []bool{false, true} {
		r, w := io.Pipe()
		go func() {
			for i := range 100 {
				fmt.Fprintf(w, "%d %s\n", i, strings.Repeat("x", 1000*(i%7)))
			}
			w.Close()
		}()
		q := must.Get(http.NewRequest(http.MethodPut, "http://a.test/", r))(t)
		p := must.Get(n.client(multi).Do(q))(t)
		body := must.Get(io.ReadAll(p.Body))(t)
		p.Body.Close()
		if !strings.HasPrefix(string(body), "0 \n") || !strings.HasSuffix(string(body), "x\n") || strings.Count(string(body), "\n") != 100 {
			t.Errorf("HTTP/2 %v: %d bytes came back", multi, len(body))
		}
		if got := p.Trailer.Get("X-Sum"); got != "42" {
			t.Errorf("HTTP/2 %v: the trailer is %q", multi, got)
		}
	}
}

func TestEventsArriveAtOnce(t *testing.T) {
	next, left := make(chan string), make(chan struct{})
	n := newNode(t, routedAs(&v1.RouteSpec{Http: &v1.RouteHttp{Compress: true}}, "a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case <-r.Context().Done():
				left <- struct{}{}
				return
			case event := <-next:
				fmt.Fprintf(w, "data: %s\n\n", event)
				w.(http.Flusher).Flush()
			}
		}
	})))
	for _, multi := range []bool{false, true} {
		go func() { next <- "first" }()
		p := must.Get(n.client(multi).Get("http://a.test/"))(t)
		r := bufio.NewReader(p.Body)
		for _, event := range []string{"first", "second", "third"} {
			if event != "first" {
				next <- event
			}
			if line, err := r.ReadString('\n'); line != "data: "+event+"\n" {
				t.Fatalf("HTTP/2 %v: got %q, %v, want %s", multi, line, err, event)
			}
			_, _ = r.ReadString('\n')
		}
		p.Body.Close()
		<-left
	}
}

func TestWebSocketsPass(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil {
				return
			}
			_ = c.Write(r.Context(), kind, append([]byte("you said "), message...))
		}
	})))
	c, _, err := websocket.Dial(t.Context(), "ws://a.test/", &websocket.DialOptions{HTTPClient: n.client(false)})
	must.Succeed(t, err)
	defer c.CloseNow()
	for _, text := range []string{"hello", strings.Repeat("x", 20_000)} {
		must.Succeed(t, c.Write(t.Context(), websocket.MessageText, []byte(text)))
		_, got, err := c.Read(t.Context())
		if string(got) != "you said "+text {
			t.Errorf("got %.20q, %v", got, err)
		}
	}
	must.Succeed(t, c.Close(websocket.StatusNormalClosure, ""))
}

func TestPlainRequestsAreRedirected(t *testing.T) {
	n := newNode(t, routedAs(encrypted, "a.test", "web"), service("web", says(t, "hello")), certified("a.test"))
	p, _ := n.get("http://a.test/x?y=z")
	if want := fmt.Sprintf("https://a.test:%d/x?y=z", n.https); p.StatusCode != http.StatusPermanentRedirect || p.Header.Get("Location") != want {
		t.Errorf("status %d, location %s, want %s", p.StatusCode, p.Header.Get("Location"), want)
	}
	if p, body := n.get("https://a.test/x"); p.StatusCode != 200 || body != "hello" {
		t.Errorf("status %d, body %q", p.StatusCode, body)
	}
}

func TestSilentBackendIsATimeout(t *testing.T) {
	release := make(chan struct{})
	n := newNode(t, routedAs(&v1.RouteSpec{Http: &v1.RouteHttp{Timeout: "50ms"}}, "a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) { <-release })))
	defer close(release)
	for _, multi := range []bool{false, true} {
		if p, body := n.send(n.client(multi), http.MethodGet, "http://a.test/", ""); p.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("status %d, %s", p.StatusCode, body)
		}
	}
	samples := n.Report(false).GetTraffic()
	if len(samples) != 1 || samples[0].GetErrors() != 2 || samples[0].GetRequests() != 2 || samples[0].GetServiceUid() != "s-web" || samples[0].GetRevisionUid() != "r1" {
		t.Errorf("counted %v", samples)
	}
}

func TestClientThatLeavesEndsTheRequest(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	n := newNode(t, routed("a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})))
	for _, multi := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		go func() {
			q, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.test/", nil)
			if p, err := n.client(multi).Do(q); err == nil {
				p.Body.Close()
			}
		}()
		<-began
		cancel()
		<-ended
	}
}
