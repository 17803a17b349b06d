package mesh

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
)

// pairOfSockets are two sockets of one family on this machine.
func pairOfSockets(t *testing.T, v6 bool) (a, b *socket, to netip.AddrPort) {
	t.Helper()
	open := func() *socket {
		s, err := openSocket(v6, 0)
		if err != nil {
			t.Skipf("this machine has no such sockets: %v", err)
		}
		t.Cleanup(func() { _ = s.conn.Close() })
		return s
	}
	a, b = open(), open()
	local := netip.MustParseAddr("127.0.0.1")
	if v6 {
		local = netip.IPv6Loopback()
	}
	return a, b, netip.AddrPortFrom(local, b.port())
}

// datagrams have sizes that force groups of every kind: equal ones, a shorter last one, longer ones after it.
func datagrams(offset int) (all [][]byte) {
	for i, size := range []int{1400, 1400, 1400, 700, 1400, 200, 200, 9000, 9000, 60, 1400} {
		all = append(all, append(make([]byte, offset), bytes.Repeat([]byte{byte(i + 1)}, size)...))
	}
	return all
}

func TestDatagramsArriveAsSent(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, segments := range []bool{true, false} {
			t.Run(fmt.Sprintf("v6=%v segments=%v", v6, segments), func(t *testing.T) {
				a, b, to := pairOfSockets(t, v6)
				if !segments {
					a.segments.Store(false)
				}
				const offset = 16
				sent := datagrams(offset)
				if err := a.send(sent, offset, to); err != nil {
					t.Fatal(err)
				}
				received := receiveAll(t, b, len(sent))
				for i := range sent {
					if !bytes.Equal(received[i], sent[i][offset:]) {
						t.Errorf("datagram %d has %d bytes, want %d", i, len(received[i]), len(sent[i])-offset)
					}
				}
			})
		}
	}
}

func TestGroupsStayWholeForEverySizeOfDatagrams(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		a, b, to := pairOfSockets(t, v6)
		if !a.segments.Load() {
			t.Skip("this kernel does not split groups of datagrams")
		}
		for size := smallestMTU + sealing; size <= 1500; size++ {
			var sent [][]byte
			for range maxSegments {
				sent = append(sent, make([]byte, size))
			}
			if err := a.send(sent, 0, to); err != nil {
				t.Fatal(err)
			}
			groups := group(make([]message, len(sent)), sent, 0, nil)
			if received := receiveGroups(t, b, len(sent)*size); received != len(groups) {
				t.Errorf("%d datagrams of %d bytes were sent in %d groups and arrived in %d (IPv6: %v)", len(sent), size, len(groups), received, v6)
			}
		}
	}
}

// receiveGroups receives so many bytes, and returns in how many groups they came.
func receiveGroups(t *testing.T, s *socket, size int) (groups int) {
	t.Helper()
	r := newReceiver(s)
	for size > 0 {
		n, err := s.batch.ReadBatch(r.read, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range r.read[:n] {
			size -= one.N
		}
		groups += n
	}
	return groups
}

// receiveAll reads into few buffers at a time, so that groups are split over several calls.
func receiveAll(t *testing.T, s *socket, count int) (all [][]byte) {
	t.Helper()
	r := newReceiver(s)
	buffers, sizes, from := make([][]byte, 2), make([]int, 2), make([]netip.AddrPort, 2)
	for i := range buffers {
		buffers[i] = make([]byte, 1<<16)
	}
	for len(all) < count {
		n, err := r.receive(buffers, sizes, from)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if !from[i].Addr().IsLoopback() {
				t.Errorf("it came from %v", from[i])
			}
			all = append(all, bytes.Clone(buffers[i][:sizes[i]]))
		}
	}
	return all
}

func TestProbesWithFewHopsAndWithoutFragments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		a, b, to := pairOfSockets(t, v6)
		if err := a.sendFor([]byte("near"), to, 1); err != nil {
			t.Fatal(err)
		}
		if err := a.sendWhole([]byte("whole"), to); err != nil {
			t.Fatal(err)
		}
		if got := receiveAll(t, b, 2); string(got[0]) != "near" || string(got[1]) != "whole" {
			t.Errorf("received %q", got)
		}
	}
}

func TestBothFamiliesHaveTheSamePort(t *testing.T) {
	v4, v6, port, err := openSockets(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*socket{v4, v6} {
		if s == nil {
			continue
		}
		if s.port() != port {
			t.Errorf("a socket has port %d, the other %d", s.port(), port)
		}
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
