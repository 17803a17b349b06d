package peering

import (
	"crypto/x509"
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/must"
)

// lonely is a server that may or may not reach the others. If it does, it sends its address.
type lonely struct {
	v1.UnimplementedAgentServiceServer
	leads   bool
	address string
}

func (l *lonely) Session(stream grpc.BidiStreamingServer[v1.SessionUp, v1.SessionDown]) error {
	if l.leads {
		return stream.Send(&v1.SessionDown{Message: &v1.SessionDown_Assignments{Assignments: &v1.Assignments{Servers: []string{l.address}}}})
	}
	none, err := status.New(codes.Unavailable, "no server leads").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER"})
	if err != nil {
		return err
	}
	return none.Err()
}

// lonelyCertificate is a closed server with the certificate that all lonely servers have.
var lonelyCertificate = sync.OnceValue(func() *httptest.Server {
	server := httptest.NewTLSServer(nil)
	server.Close()
	return server
})

func serveLonely(t *testing.T, leads bool) string {
	t.Helper()
	return serveAt(t, listenLocally(t), leads)
}

func listenLocally(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	return listener
}

func serveAt(t *testing.T, listener net.Listener, leads bool) string {
	t.Helper()
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&lonelyCertificate().TLS.Certificates[0])))
	v1.RegisterAgentServiceServer(server, &lonely{leads: leads, address: listener.Addr().String()})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

// sessionsOf opens sessions with the servers of a list, and reports which server answered.
func sessionsOf(t *testing.T, list *ServerList) func() (by string, err error) {
	t.Helper()
	trusted := x509.NewCertPool()
	trusted.AddCert(lonelyCertificate().Certificate())
	conn, err := grpc.NewClient(list.Target(), append(list.Options(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(trusted, "example.com")))...)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return func() (string, error) {
		stream, err := v1.NewAgentServiceClient(conn).Session(t.Context(), grpc.WaitForReady(true))
		if err != nil {
			return "", err
		}
		down, err := stream.Recv()
		return strings.Join(down.GetAssignments().GetServers(), ","), err
	}
}

// TestNodeLeavesAServerThatIsCutOff: the server is connected but accepts no session.
func TestNodeLeavesAServerThatIsCutOff(t *testing.T) {
	t.Parallel()
	began := time.Now()
	cut, well := serveLonely(t, false), serveLonely(t, true)
	var kept []string
	list := NewServerList(datadir.Membership{Servers: []string{cut, well}, Via: cut}, func(servers []string) error {
		kept = servers
		return nil
	})
	session := sessionsOf(t, list)
	if _, err := session(); status.Code(err) != codes.Unavailable {
		t.Fatalf("the server that is cut off answered %v", err)
	}
	if by, err := session(); by != well || err != nil {
		t.Fatalf("the next session is with %q, %v; want %s", by, err, well)
	}
	if quiet := list.Quiet(); quiet < 0 || quiet >= time.Since(began) {
		t.Errorf("after what the servers have said it has been quiet for %s", quiet)
	}
	if near := list.nearest(); !slices.Equal(near, []string{well, cut}) {
		t.Errorf("images are pulled from %v, in this order", near)
	}
	// What it learns is kept, and the address by which it came stays known.
	must.Succeed(t, list.Learn([]string{well}))
	if !slices.Equal(kept, []string{well}) || !slices.Equal(list.Addresses(), []string{well, cut}) {
		t.Errorf("it keeps %v and tries %v", kept, list.Addresses())
	}
}

// gatedListener lets the kernel accept connections at once, but the server only when the gate is open.
type gatedListener struct {
	net.Listener
	taken func()
	gate  <-chan struct{}
}

func (l gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.taken()
		<-l.gate
	}
	return conn, err
}

// While one server is slow to answer, gRPC dials the next one, but may still use the first.
func TestNodeLeavesTheServerOfItsSessionNotTheOneDialedLast(t *testing.T) {
	t.Parallel()
	dialed, opened := make(chan struct{}), make(chan struct{})
	dial, open := sync.OnceFunc(func() { close(dialed) }), sync.OnceFunc(func() { close(opened) })
	slow := serveAt(t, gatedListener{Listener: listenLocally(t), taken: func() {}, gate: dialed}, true)
	other := serveAt(t, gatedListener{Listener: listenLocally(t), taken: dial, gate: opened}, true)
	t.Cleanup(dial)
	t.Cleanup(open)
	list := NewServerList(datadir.Membership{Servers: []string{slow, other}}, func([]string) error { return nil })
	session := sessionsOf(t, list)
	if by, err := session(); by != slow || err != nil {
		t.Fatalf("the first session is with %q, %v; want %s", by, err, slow)
	}
	if near := list.nearest(); !slices.Equal(near, []string{slow, other}) {
		t.Errorf("images are pulled from %v, in this order, while the session is with %s", near, slow)
	}
	open()
	list.Leave()
	if near := list.nearest(); !slices.Equal(near, []string{other, slow}) {
		t.Errorf("images are pulled from %v, in this order, after %s was left", near, slow)
	}
	if by, err := session(); by != other || err != nil {
		t.Errorf("after %s was left the session is with %q, %v; want %s", slow, by, err, other)
	}
}

// A machine that gets another address does not wait until it notices that its connections are dead.
func TestConnectionsEndWithTheAddressTheyCameFrom(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int32
	server := serveAt(t, gatedListener{Listener: listenLocally(t), taken: func() { accepted.Add(1) }, gate: openGate()}, true)
	list := NewServerList(datadir.Membership{Servers: []string{server}}, func([]string) error { return nil })
	session := sessionsOf(t, list)
	for _, step := range []struct {
		have []netip.Addr
		want int32
	}{
		{[]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7")}, 1},
		{[]netip.Addr{netip.MustParseAddr("192.0.2.7")}, 2},
	} {
		if _, err := session(); err != nil {
			t.Fatal(err)
		}
		list.Moved(step.have)
		if by, err := session(); by != server || err != nil {
			t.Fatalf("after the move, the session is with %q, %v", by, err)
		}
		if n := accepted.Load(); n != step.want {
			t.Errorf("with the addresses %v, the node has made %d connections, want %d", step.have, n, step.want)
		}
	}
	if n := len(list.open); n != 1 {
		t.Errorf("%d connections are remembered", n)
	}
}

// openGate lets everything through.
func openGate() <-chan struct{} {
	gate := make(chan struct{})
	close(gate)
	return gate
}

// Streams of earlier sessions may continue on their servers.
func TestOtherServersDoNotHideAQuietSessionServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := NewServerList(datadir.Membership{}, nil)
		oldEnd, oldServer := net.Pipe()
		end, server := net.Pipe()
		old, current := newServerConn(oldEnd, "a:1"), newServerConn(end, "b:1")
		list.answered(old)
		list.answered(current)
		hear := func(conn *serverConn, from net.Conn) {
			go func() { _, _ = from.Write([]byte{0}) }()
			_, err := conn.Read(make([]byte, 1))
			must.Succeed(t, err)
		}
		time.Sleep(time.Second)
		hear(current, server)
		time.Sleep(time.Second)
		hear(old, oldServer)
		if quiet := list.Quiet(); quiet != time.Second {
			t.Errorf("the server of the session has been quiet for %s, want 1s", quiet)
		}
	})
}

func TestFollowersHearOfNewServers(t *testing.T) {
	l := NewServerList(datadir.Membership{Servers: []string{"10.0.0.1:7700"}, Via: "127.0.0.1:7700"}, func([]string) error { return nil })
	addresses, changed := l.Follow()
	if !slices.Equal(addresses, []string{"10.0.0.1:7700", "127.0.0.1:7700"}) {
		t.Errorf("the servers are %q", addresses)
	}
	must.Succeed(t, l.Learn([]string{"10.0.0.1:7700"}))
	select {
	case <-changed:
		t.Error("the same list counts as a change")
	default:
	}
	must.Succeed(t, l.Learn([]string{"10.0.0.1:7700", "10.0.0.2:7700"}))
	<-changed
	if addresses, _ = l.Follow(); len(addresses) != 3 {
		t.Errorf("the servers are %q, want the new one, too", addresses)
	}
}
