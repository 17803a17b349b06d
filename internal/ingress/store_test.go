package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/origin"
	"github.com/cloudless/cloudless/internal/must"
)

// agent stands for the agent of a node: it answers each request with what the connection was for.
type agent struct {
	listener net.Listener
	open     sync.WaitGroup
}

func newAgent(t *testing.T, socket string) *agent {
	a := &agent{listener: must.Get(net.Listen("unix", socket))(t)}
	a.open.Go(func() {
		for {
			conn, err := a.listener.Accept()
			if err != nil {
				return
			}
			a.open.Go(func() { a.answer(conn) })
		}
	})
	return a
}

func (a *agent) answer(conn net.Conn) {
	defer conn.Close()
	g, err := origin.Read(conn)
	if err != nil {
		return
	}
	r := bufio.NewReader(conn)
	for n := 1; ; n++ {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
		text := fmt.Sprintf("%s of %q, request %d: %s %s%s", g.Route, g.Bucket, n, q.Method, q.Host, q.RequestURI)
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	}
}

func (a *agent) close() {
	_ = a.listener.Close()
	a.open.Wait()
}

// stored leads from a host to a bucket; to S3 if it is empty. Without a uid, the bucket does not exist.
func stored(host, bucket, uid string) func(*node, *v1.IngressDown) {
	return func(_ *node, down *v1.IngressDown) {
		b := &v1.RouteBackend{S3: true}
		if bucket != "" {
			b = &v1.RouteBackend{Bucket: &v1.RouteBucket{Name: bucket}}
		}
		down.Routes = append(down.Routes, &v1.IngressRoute{
			Uid: "r-" + host, Namespace: "default", Name: host, Spec: &v1.RouteSpec{Host: host, Backends: []*v1.RouteBackend{b}}, ServiceUids: []string{uid},
		})
	}
}

// Connections to the agent say which route they are for, and serve no other one.
func TestBucketsAreReachedByTheAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	a := newAgent(t, socket)
	n := newNodeWith(t, Options{Store: socket}, stored("www.test", "site", "b-1"), stored("s3.test", "", ""), stored("gone.test", "gone", ""))
	t.Cleanup(func() { n.Close(); a.close() })
	for i, want := range []string{
		`r-www.test of "site", request 1: GET www.test/a%2Fb?c`, `r-www.test of "site", request 2: GET www.test/a%2Fb?c`,
	} {
		if p, got := n.get("http://www.test/a%2Fb?c"); p.StatusCode != 200 || got != want {
			t.Errorf("request %d: %d %s", i, p.StatusCode, got)
		}
	}
	if _, got := n.send(n.client(true), "PUT", "http://s3.test/b/k", "content"); got != `r-s3.test of "", request 1: PUT s3.test/b/k` {
		t.Errorf("by HTTP/2: %s", got)
	}
	if _, got := n.send(n.client(false), "POST", "http://s3.test/b/k", "content", "Content-Type: application/grpc"); !strings.Contains(got, "POST") {
		t.Errorf("what calls itself gRPC: %s", got)
	}
	if p, _ := n.get("http://gone.test/"); p.StatusCode != 503 {
		t.Errorf("a bucket that does not exist: %d", p.StatusCode)
	}
}

// A request waits for an agent that is restarting, as long as for any connection.
func TestRequestWaitsForTheAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	n := newNodeWith(t, Options{Store: socket}, stored("www.test", "site", "b-1"))
	client, got := n.client(false), make(chan string, 1)
	go func() { // ends with the answer
		var body []byte
		p, err := client.Get("http://www.test/")
		if err == nil {
			defer p.Body.Close()
			body, err = io.ReadAll(p.Body)
		}
		got <- fmt.Sprint(string(body), err)
	}()
	a := newAgent(t, socket)
	t.Cleanup(func() { n.Close(); a.close() })
	if body := <-got; !strings.HasPrefix(body, "r-www.test of") {
		t.Errorf("the answer is %s", body)
	}
}
