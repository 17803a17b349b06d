package probe

import (
	"net"
	"os"
	"testing"
)

func TestAcceptedCountsNewConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	before := Accepted(os.Getpid())
	for range 3 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
	}
	if after := Accepted(os.Getpid()); after < before+3 { // other tests may connect, too
		t.Errorf("there were %d connections before, and %d after three more", before, after)
	}
}
