package ingress

import (
	"net"
	"testing"
)

func TestPanicEndsOneConnectionOnly(t *testing.T) {
	n := newNode(t, routed("a.test", "web"), service("web", says(t, "hello")))
	ours, theirs := net.Pipe()
	defer theirs.Close()
	n.open.Go(func() { n.accept(port{"tcp", n.http}, broken{ours}) })
	if _, err := theirs.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
	if _, body := n.get("http://a.test/"); body != "hello" {
		t.Errorf("another connection is answered with %q", body)
	}
}

// broken panics when it is read from.
type broken struct{ net.Conn }

func (broken) Read([]byte) (int, error) { panic("a mistake") }
