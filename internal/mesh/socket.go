package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	// socketBuffer holds what arrives while the process does not run for a moment.
	socketBuffer = 7 << 20
	// maxSegments is how many datagrams the kernel takes or gives as one.
	maxSegments = 64
	// maxSegmented is the size of what stays one group until the receiver. With the headers of UDP, IP and the link, it
	// must be less than 64 KiB: interfaces split what is larger, and both sides would handle every datagram on its own.
	maxSegmented = 1<<16 - 128
	// readAtOnce is how many such groups are read by one call.
	readAtOnce = 4
	// sendAtOnce is how many datagrams are sent by one call at most.
	sendAtOnce  = 128
	controlSize = 64
)

// message is one datagram, or a group of datagrams of equal size, for both families.
type message = ipv6.Message

// batcher reads and writes many messages by one call.
type batcher interface {
	ReadBatch(ms []message, flags int) (int, error)
	WriteBatch(ms []message, flags int) (int, error)
}

// socket is a UDP socket of one family. The kernel splits and joins groups of datagrams, which saves most of the cost
// of sending and receiving them.
type socket struct {
	conn  *net.UDPConn
	batch batcher
	v6    bool
	// segments says that the kernel splits what is sent.
	segments atomic.Bool

	messages sync.Pool // of *[]message, for sending
}

// openSockets opens a socket of each family that the machine has, on the same port. 0 stands for any port.
func openSockets(port uint16) (v4, v6 *socket, actual uint16, err error) {
	for range 20 {
		v4, err = openSocket(false, port)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, nil, 0, err
		}
		actual = port
		if v4 != nil {
			actual = v4.port()
		}
		v6, err = openSocket(true, actual)
		if err == nil || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
		if v4 != nil {
			_ = v4.conn.Close()
		}
		if port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			return nil, nil, 0, err
		}
	}
	if v4 == nil && v6 == nil {
		return nil, nil, 0, fmt.Errorf("this machine has neither IPv4 nor IPv6: %w", err)
	}
	if v4 == nil {
		actual = v6.port()
	}
	return v4, v6, actual, nil
}

func openSocket(v6 bool, port uint16) (*socket, error) {
	network := "udp4"
	if v6 {
		network = "udp6"
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { prepareSocket(int(fd), v6) })
	}}
	opened, err := config.ListenPacket(context.Background(), network, ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	s := &socket{conn: opened.(*net.UDPConn), v6: v6}
	if v6 {
		s.batch = ipv6.NewPacketConn(s.conn)
	} else {
		s.batch = v4Batcher{ipv4.NewPacketConn(s.conn)}
	}
	s.messages.New = func() any {
		all := make([]message, sendAtOnce)
		for i := range all {
			all[i].OOB = make([]byte, 0, controlSize)
			all[i].Buffers = make([][]byte, 0, 1)
		}
		return &all
	}
	s.segments.Store(s.option(unix.IPPROTO_UDP, unix.UDP_SEGMENT) == nil)
	return s, nil
}

// v4Batcher gives ipv4.PacketConn the methods of its sibling: the messages are the same type.
type v4Batcher struct{ *ipv4.PacketConn }

func (b v4Batcher) ReadBatch(ms []message, flags int) (int, error) {
	return b.PacketConn.ReadBatch(ms, flags)
}

func (b v4Batcher) WriteBatch(ms []message, flags int) (int, error) {
	return b.PacketConn.WriteBatch(ms, flags)
}

// prepareSocket sets what a kernel may lack, so it ignores errors.
func prepareSocket(fd int, v6 bool) {
	for forced, asked := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, forced, socketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, asked, socketBuffer)
		}
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	// Datagrams that are too large for a network on the way are fragmented, not dropped. The discovered MTU makes that
	// rare, and a router that hides it does no harm.
	if v6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT)
	} else {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	}
}

func (s *socket) option(level, name int) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { _, failed = unix.GetsockoptInt(int(fd), level, name) })
	return errors.Join(err, failed)
}

func (s *socket) port() uint16 { return uint16(s.conn.LocalAddr().(*net.UDPAddr).Port) }

// receiver reads datagrams from a socket. One goroutine uses it.
type receiver struct {
	socket *socket
	read   []message
	left   []message // of those, what was not given to the caller yet
}

func newReceiver(s *socket) *receiver {
	r := &receiver{socket: s, read: make([]message, readAtOnce)}
	for i := range r.read {
		r.read[i].Buffers = [][]byte{make([]byte, 1<<16)}
		r.read[i].OOB = make([]byte, controlSize)
	}
	return r
}

// receive copies at least one datagram into the buffers.
func (r *receiver) receive(buffers [][]byte, sizes []int, from []netip.AddrPort) (n int, err error) {
	if len(r.left) == 0 {
		count, err := r.socket.batch.ReadBatch(r.read, 0)
		if err != nil {
			return 0, err
		}
		r.left = r.read[:count]
	}
	for len(r.left) > 0 && n < len(buffers) {
		n += r.split(&r.left[0], buffers[n:], sizes[n:], from[n:])
		if r.left[0].N == 0 {
			r.left = r.left[1:]
		}
	}
	return n, nil
}

// split copies the datagrams of a message, and leaves in it what did not fit.
func (r *receiver) split(m *message, buffers [][]byte, sizes []int, from []netip.AddrPort) (n int) {
	data := m.Buffers[0][:m.N]
	size := segmentSize(m.OOB[:m.NN])
	if size == 0 {
		size = len(data)
	}
	sender := m.Addr.(*net.UDPAddr).AddrPort()
	sender = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port())
	for len(data) > 0 && n < len(buffers) {
		one := data[:min(size, len(data))]
		sizes[n], from[n] = copy(buffers[n], one), sender
		data = data[len(one):]
		n++
	}
	m.N = copy(m.Buffers[0], data)
	return n
}

// segmentSize is the size of each datagram of a group, 0 if there is only one.
func segmentSize(control []byte) int {
	for len(control) > unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0
		}
		if header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(data) >= 2 {
			return int(binary.NativeEndian.Uint16(data))
		}
		control = rest
	}
	return 0
}

// send sends datagrams, which begin at an offset in their buffers, to an address.
func (s *socket) send(buffers [][]byte, offset int, to netip.AddrPort) error {
	messages := s.messages.Get().(*[]message)
	defer s.release(messages)
	address := net.UDPAddrFromAddrPort(to)
	for len(buffers) > 0 {
		some := buffers[:min(len(buffers), sendAtOnce)]
		buffers = buffers[len(some):]
		if err := s.sendSome(*messages, some, offset, address); err != nil {
			return err
		}
	}
	return nil
}

// sendSome sends in groups, and one by one what the kernel does not take as a group.
func (s *socket) sendSome(messages []message, buffers [][]byte, offset int, to *net.UDPAddr) error {
	for len(buffers) > 1 && s.segments.Load() {
		groups := group(messages, buffers, offset, to)
		written, err := s.write(groups)
		if err == nil {
			return nil
		}
		for _, one := range groups[:written] {
			buffers = buffers[len(one.Buffers):]
		}
		refused := len(groups[written].Buffers)
		switch {
		case refused == 1:
			return err
		case errors.Is(err, unix.EIO):
			s.segments.Store(false) // the interface cannot compute checksums of groups
		case !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.EINVAL):
			return err
		}
		// Datagrams larger than the MTU cannot be grouped, but fragmented one by one.
		if err := s.sendSingly(messages, buffers[:refused], offset, to); err != nil {
			return err
		}
		buffers = buffers[refused:]
	}
	return s.sendSingly(messages, buffers, offset, to)
}

func (s *socket) sendSingly(messages []message, buffers [][]byte, offset int, to *net.UDPAddr) error {
	for i, b := range buffers {
		messages[i].Addr, messages[i].OOB = to, messages[i].OOB[:0]
		messages[i].Buffers = append(messages[i].Buffers[:0], b[offset:])
	}
	_, err := s.write(messages[:len(buffers)])
	return err
}

// group joins consecutive datagrams of equal size. The last one of a group may be shorter.
func group(messages []message, buffers [][]byte, offset int, to *net.UDPAddr) []message {
	n, total := 0, 0
	var size int
	open := false // the last message takes more
	for _, b := range buffers {
		b = b[offset:]
		if open && len(b) <= size && total+len(b) <= maxSegmented && len(messages[n-1].Buffers) < maxSegments {
			m := &messages[n-1]
			if len(m.Buffers) == 1 {
				m.OOB = appendSegmentSize(m.OOB[:0], size)
			}
			m.Buffers = append(m.Buffers, b)
			total += len(b)
			open = len(b) == size
			continue
		}
		m := &messages[n]
		m.Addr, m.OOB, m.Buffers = to, m.OOB[:0], append(m.Buffers[:0], b)
		size, total, open = len(b), len(b), true
		n++
	}
	return messages[:n]
}

func appendSegmentSize(control []byte, size int) []byte {
	return binary.NativeEndian.AppendUint16(appendControl(control, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), uint16(size))[:len(control)+unix.CmsgSpace(2)]
}

// appendControl appends the header of a control message, whose data the caller appends.
func appendControl(control []byte, level, kind int32, size int) []byte {
	control = binary.NativeEndian.AppendUint64(control, uint64(unix.CmsgLen(size)))
	control = binary.NativeEndian.AppendUint32(control, uint32(level))
	return binary.NativeEndian.AppendUint32(control, uint32(kind))
}

// write returns how many messages the kernel took.
func (s *socket) write(messages []message) (written int, err error) {
	for written < len(messages) {
		n, err := s.batch.WriteBatch(messages[written:], 0)
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func (s *socket) release(messages *[]message) {
	for i := range *messages {
		clear((*messages)[i].Buffers)
		(*messages)[i].Addr = nil
	}
	s.messages.Put(messages)
}

// sendFor sends one datagram that a router drops after some hops.
func (s *socket) sendFor(datagram []byte, to netip.AddrPort, hops int) error {
	level, kind := int32(unix.IPPROTO_IP), int32(unix.IP_TTL)
	if s.v6 {
		level, kind = unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT
	}
	control := binary.NativeEndian.AppendUint32(appendControl(make([]byte, 0, controlSize), level, kind, 4), uint32(hops))
	_, _, err := s.conn.WriteMsgUDPAddrPort(datagram, control[:unix.CmsgSpace(4)], to)
	return err
}

// sendWhole sends one datagram that may not be fragmented.
func (s *socket) sendWhole(datagram []byte, to netip.AddrPort) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if s.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	set := func(value int) error {
		var failed error
		return errors.Join(raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, name, value) }), failed)
	}
	if err := set(unix.IP_PMTUDISC_PROBE); err != nil {
		return err
	}
	_, sent := s.conn.WriteToUDPAddrPort(datagram, to)
	return errors.Join(sent, set(unix.IP_PMTUDISC_DONT))
}
