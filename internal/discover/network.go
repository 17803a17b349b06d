package discover

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const port = 5353

// family is IPv4 or IPv6, which do the same by other names.
type family struct {
	network string
	group   netip.Addr
}

var families = []family{
	{"udp4", netip.AddrFrom4([4]byte{224, 0, 0, 251})},
	{"udp6", netip.MustParseAddr("ff02::fb")},
}

func (f family) is4() bool { return f.group.Is4() }

func (f family) multicast() *net.UDPAddr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.group, port))
}

// carries reports whether the interface has an address of the family, and the one that others should use.
func (f family) carries(link net.Interface) (usable netip.Addr, has bool) {
	all, err := link.Addrs()
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		address, _ := netip.AddrFromSlice(n.IP)
		if address = address.Unmap(); address.Is4() != f.is4() {
			continue
		}
		has = true
		if address.IsGlobalUnicast() {
			return address, true
		}
	}
	return usable, has
}

// socket sends and receives for one family.
type socket struct {
	family
	conn net.PacketConn
	v4   *ipv4.PacketConn
	v6   *ipv6.PacketConn
}

// open opens a socket: on the port of multicast DNS, which it shares with others on this machine, or on any.
func (f family) open(ctx context.Context, shared bool) (*socket, error) {
	where := ":0"
	var lc net.ListenConfig
	if shared {
		// Bound to the group, it receives no unicast packets: machines outside the network cannot ask.
		where = f.multicast().String()
		lc.Control = share
	}
	conn, err := lc.ListenPacket(ctx, f.network, where)
	if err != nil {
		return nil, err
	}
	s := &socket{family: f, conn: conn}
	if f.is4() {
		s.v4 = ipv4.NewPacketConn(conn)
		err = s.v4.SetControlMessage(ipv4.FlagInterface, true)
	} else {
		s.v6 = ipv6.NewPacketConn(conn)
		err = s.v6.SetControlMessage(ipv6.FlagInterface, true)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

func share(_, _ string, raw syscall.RawConn) error {
	var set error
	err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	if err != nil {
		return err
	}
	return set
}

// join joins the multicast group on an interface. Joining twice only returns a harmless error.
func (s *socket) join(link net.Interface) {
	if s.v4 != nil {
		_ = s.v4.JoinGroup(&link, &net.UDPAddr{IP: s.group.AsSlice()})
		return
	}
	_ = s.v6.JoinGroup(&link, &net.UDPAddr{IP: s.group.AsSlice()})
}

// receive waits for a message and says on which interface it came.
func (s *socket) receive(buffer []byte) (n, link int, from net.Addr, err error) {
	if s.v4 != nil {
		n, control, from, err := s.v4.ReadFrom(buffer)
		if control != nil {
			link = control.IfIndex
		}
		return n, link, from, err
	}
	n, control, from, err := s.v6.ReadFrom(buffer)
	if control != nil {
		link = control.IfIndex
	}
	return n, link, from, err
}

// send sends a message on an interface.
func (s *socket) send(message []byte, link int, to net.Addr) error {
	if s.v4 != nil {
		_, err := s.v4.WriteTo(message, &ipv4.ControlMessage{IfIndex: link}, to)
		return err
	}
	_, err := s.v6.WriteTo(message, &ipv6.ControlMessage{IfIndex: link}, to)
	return err
}

// links are the interfaces on which others can be.
func links() ([]net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var usable []net.Interface
	const wanted = net.FlagUp | net.FlagMulticast
	for _, link := range all {
		if link.Flags&wanted == wanted && link.Flags&net.FlagLoopback == 0 {
			usable = append(usable, link)
		}
	}
	return usable, nil
}
