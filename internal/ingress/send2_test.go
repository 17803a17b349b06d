package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// A server may end a stream in both directions while the client could still send.
func TestServerEndsAStreamFirst(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(healthpb.HealthCheckRequest)); err != nil {
			return err
		}
		if err := stream.SendMsg(&healthpb.HealthCheckRequest{Service: "first"}); err != nil {
			return err
		}
		return status.Error(codes.FailedPrecondition, "enough")
	}))
	go func() { _ = s.Serve(l) }() // ends with Stop
	defer s.Stop()
	n := newNode(t, routed("a.test", "grpc"), service("grpc", l.Addr().String()))
	conn := must.Get(grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", n.http), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("a.test")))(t)
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := must.Get(conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/any.Service/Call"))(t)
	must.Succeed(t, stream.SendMsg(&healthpb.HealthCheckRequest{Service: "hello"}))
	var got healthpb.HealthCheckRequest
	if err := stream.RecvMsg(&got); err != nil || got.GetService() != "first" {
		t.Errorf("the message is %q, %v", got.GetService(), err)
	}
	if err := stream.RecvMsg(&got); status.Convert(err).Message() != "enough" {
		t.Errorf("the stream ends with %v", err)
	}
}

// The race detector sees it if anything still reads the connection of a client whose request has failed.
func TestNobodyReadsAClientWhoseRequestHasFailed(t *testing.T) {
	n := newNode(t, routedAs(with(&v1.RouteHttp{BackendProtocol: "h2c"}), "a.test", "web"), service("web", server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		panic(http.ErrAbortHandler)
	})))
	for range 20 {
		conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		p := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		if p.StatusCode != http.StatusBadGateway || !p.Close {
			t.Errorf("status %d, and the connection ends: %v", p.StatusCode, p.Close)
		}
		fmt.Fprint(conn, "5\r\nworld\r\n")
		conn.Close()
	}
}

// A connection can be used again after a request whose body the backend has read by HTTP/2.
func TestConnectionsStayAfterABodyByHTTP2(t *testing.T) {
	n := newNode(t, routedAs(with(&v1.RouteHttp{BackendProtocol: "h2c"}), "a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.http)))(t)
	defer conn.Close()
	r := bufio.NewReader(conn)
	for range 3 {
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		p, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(p.Body); string(body) != "hello" || err != nil {
			t.Fatalf("status %d, %q, %v", p.StatusCode, body, err)
		}
		if p.Close {
			break // the answer may have begun before the end of the body was read
		}
	}
}

// The route's timeout is the backend's. A client may take longer to send its body.
func TestTimeoutBeginsAtTheEndOfTheBody(t *testing.T) {
	n := newNode(t, routedAs(with(&v1.RouteHttp{BackendProtocol: "h2c", Timeout: "100ms"}), "a.test", "web"), service("web", server(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/silent" {
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(b)
	})))
	c := n.client(true)
	r, w := io.Pipe()
	go func() {
		defer w.Close()
		_, _ = io.WriteString(w, "slow ")
		for range 2 { // the timeout passes meanwhile
			if p, _ := n.send(c, "POST", "http://a.test/silent", "quick"); p.StatusCode != http.StatusGatewayTimeout {
				t.Errorf("status %d from a backend that is silent", p.StatusCode)
			}
		}
		_, _ = io.WriteString(w, "but complete")
	}()
	p := must.Get(c.Do(must.Get(http.NewRequest("POST", "http://a.test/", r))(t)))(t)
	defer p.Body.Close()
	if body, err := io.ReadAll(p.Body); string(body) != "slow but complete" {
		t.Errorf("status %d, %q, %v", p.StatusCode, body, err)
	}
}
