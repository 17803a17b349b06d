package origin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloudless/cloudless/internal/ingress/origin"
)

// start runs a relay until the test ends, and returns its socket.
func start(t *testing.T, dial func(context.Context) (net.Conn, error)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "origin") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, origin.Socket)
	if err := os.WriteFile(socket, nil, 0o600); err != nil { // of an agent that was killed
		t.Fatal(err)
	}
	r, err := New(Options{Dir: dir, Dial: dial, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return socket
}

// connect waits until the relay listens.
func connect(t *testing.T, socket string) net.Conn {
	t.Helper()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectionReachesAServerAsItIs(t *testing.T) {
	servers := make(chan net.Conn, 1)
	socket := start(t, func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		servers <- there
		return here, nil
	})
	conn := connect(t, socket)
	if _, err := io.WriteString(conn, "0198 site\nGET /"); err != nil {
		t.Fatal(err)
	}
	server := <-servers
	got := make([]byte, len("0198 site\nGET /"))
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "0198 site\nGET /" {
		t.Fatalf("the server gets %q, %v", got, err)
	}
	go func() { // ends with the connection
		_, _ = io.WriteString(server, "HTTP/1.1 200 OK")
		_ = server.Close()
	}()
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "HTTP/1.1 200 OK" {
		t.Errorf("the ingress gets %q, %v", answer, err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may open the socket: %v, %v", info.Mode(), err)
	}
}

// The server's end goes with the ingress's.
func TestConnectionEndsWithTheIngress(t *testing.T) {
	servers := make(chan net.Conn, 1)
	socket := start(t, func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		servers <- there
		return here, nil
	})
	conn := connect(t, socket)
	server := <-servers
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the server reads %d bytes, %v", n, err)
	}
}

func TestWithoutAServerTheAnswerSaysSo(t *testing.T) {
	socket := start(t, func(context.Context) (net.Conn, error) { return nil, errors.New("nobody answers") })
	conn := connect(t, socket)
	if _, err := io.WriteString(conn, "0198 site\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Body.Close()
	if p.StatusCode != http.StatusServiceUnavailable || p.Header.Get("Retry-After") == "" {
		t.Errorf("the answer is %d %v", p.StatusCode, p.Header)
	}
}
