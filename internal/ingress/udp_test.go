package ingress

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// udpSays is a backend that answers each packet with a text.
func udpSays(t *testing.T, address, text string) net.PacketConn {
	t.Helper()
	conn := must.Get(net.ListenPacket("udp", address))(t)
	t.Cleanup(func() { conn.Close() })
	go func() { // ends with the socket
		b := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(text), from)
		}
	}()
	return conn
}

// A client that never stops sending must not stay at a backend that is gone, or that another route leads to by now.
func TestUDPFlowsLeaveBackendsThatAreGone(t *testing.T) {
	for name, leave := range map[string]func(n *node, port int, old net.PacketConn, one, other *v1.IngressEndpoint){
		"endpoint removed": func(n *node, _ int, _ net.PacketConn, _, other *v1.IngressEndpoint) {
			n.change(serviceOf("dns", other))
		},
		"endpoint draining": func(n *node, _ int, _ net.PacketConn, one, other *v1.IngressEndpoint) {
			one.State = "draining"
			n.change(serviceOf("dns", one, other))
		},
		"endpoint refuses": func(n *node, _ int, old net.PacketConn, one, other *v1.IngressEndpoint) {
			n.change(serviceOf("dns", one, other))
			old.Close()
		},
		"another route": func(n *node, port int, _ net.PacketConn, _, other *v1.IngressEndpoint) {
			n.change(func(_ *node, down *v1.IngressDown) { down.RemovedRoutes = []string{"r-"} }, serviceOf("other", other), func(n *node, down *v1.IngressDown) {
				routedAs(&v1.RouteSpec{Udp: int32(port)}, "", "other")(n, down)
				down.Routes[0].Uid = "r-other"
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := udpSays(t, "127.0.0.1:0", "old")
			_, number, err := net.SplitHostPort(old.LocalAddr().String())
			must.Succeed(t, err)
			next := udpSays(t, "127.0.0.2:"+number, "new")
			port := freePort(t)
			one, other := replica("old", old.LocalAddr().String()), replica("new", next.LocalAddr().String())
			n := newNode(t, serviceOf("dns", one), routedAs(&v1.RouteSpec{Udp: int32(port)}, "", "dns"))
			conn := must.Get(net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port)))(t)
			defer conn.Close()
			ask := func() string {
				_, _ = conn.Write([]byte("hello"))
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // packets may be lost
				b := make([]byte, 16)
				size, _ := conn.Read(b)
				return string(b[:size])
			}
			for ask() != "old" { // until it comes through
			}
			leave(n, port, old, one, other)
			for ask() != "new" { // as above
			}
		})
	}
}

// Packets with invented senders fill the table of flows. They make room for each other, and not those that are answered.
func TestFlowsWithoutAnAnswerMakeRoom(t *testing.T) {
	f := &flows{all: map[netip.AddrPort]*flow{}, each: map[netip.Addr]int{}}
	from := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 53)
	}
	var real []*flow
	for i := range 2 * mostFlows {
		one, isNew := f.get(from(i), nil)
		if one == nil || !isNew {
			t.Fatalf("flow %d finds no place", i)
		}
		if i%1000 == 0 {
			one.answered.Store(true)
			real = append(real, one)
		}
	}
	for _, one := range real {
		if f.all[one.from] != one {
			t.Errorf("the flow of %v has ended", one.from)
		}
	}
	if len(f.all) != mostFlows || len(f.each) != mostFlows {
		t.Errorf("%d flows of %d clients", len(f.all), len(f.each))
	}
}
