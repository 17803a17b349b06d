package netd

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/cloudless/cloudless/internal/mesh"
)

// Most upgrades do not change the messages between the agent and the process.
func TestUpgradeKeepsAProcessOfTheSameVersion(t *testing.T) {
	a, b, _, _, stop := connected(t)
	before := a.pid()
	stop()
	a.program = filepath.Join(t.TempDir(), "cloudless-net-of-the-next-release")
	if err := os.Symlink(program, a.program); err != nil {
		t.Fatal(err)
	}
	again, _ := a.agent()
	again.SetPeers([]mesh.Peer{b.known})
	a.peer()
	if got := a.pid(); got != before {
		t.Errorf("process %s was replaced by %s", before, got)
	}
	a.reach(b)
}

// A process of another version is replaced as soon as it has released everything. The test prints how long replicas wait
// meanwhile: from the last answer through the older process to the first through its successor.
func TestUpgradeReplacesAProcessOfAnotherVersion(t *testing.T) {
	a, b := twoMachines(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a.program, a.older = self, true
	_, _, stop := connect(a, b)
	before := a.pid()
	stop()
	pings := a.pings(b)
	a.program, a.older = program, false
	agent, _ := a.agent()
	agent.SetPeers([]mesh.Peer{b.known})
	a.peer()
	announced := time.Now()
	for (<-pings).Before(announced) { // these may be answered by the older process
	}
	if got := a.pid(); got == before || len(got) == 0 {
		t.Errorf("process %s was replaced by %q", before, got)
	}
	if len(a.failed) != 0 {
		t.Errorf("a problem was reported: %s", <-a.failed)
	}
}

// pings sends a packet to another machine every few milliseconds, and returns when the answered ones were sent. It
// prints the longest pause between two answers.
func (m *machine) pings(other *machine) <-chan time.Time {
	m.t.Helper()
	echo := other.listenUDP()
	go func() { // ends with the socket
		packet := make([]byte, 8)
		for {
			_, from, err := echo.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			_, _ = echo.WriteToUDPAddrPort(packet, from)
		}
	}()
	mine, began := m.listenUDP(), time.Now()
	to := echo.LocalAddr().(*net.UDPAddr).AddrPort()
	go func() { // ends with the socket
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for ; ; <-ticker.C {
			packet := binary.BigEndian.AppendUint64(nil, uint64(time.Since(began)))
			if _, err := mine.WriteToUDPAddrPort(packet, to); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	answered := make(chan time.Time, 1<<16)
	ended := make(chan time.Duration)
	go func() {
		var longest time.Duration
		packet, last := make([]byte, 8), time.Time{}
		for {
			if _, err := mine.Read(packet); err != nil {
				ended <- longest
				return
			}
			now := time.Now()
			if !last.IsZero() {
				longest = max(longest, now.Sub(last))
			}
			last = now
			answered <- began.Add(time.Duration(binary.BigEndian.Uint64(packet)))
		}
	}()
	<-answered
	m.t.Cleanup(func() {
		_ = mine.Close()
		m.t.Logf("the longest pause between two answers was %v", <-ended)
	})
	return answered
}

// listenUDP opens a socket on the machine's address in the mesh.
func (m *machine) listenUDP() *net.UDPConn {
	m.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		m.t.Fatal(err)
	}
	defer own.Close()
	space, err := netns.GetFromName(m.namespace)
	if err != nil {
		m.t.Fatal(err)
	}
	defer space.Close()
	if err := netns.Set(space); err != nil {
		m.t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(m.setup.Addresses[0].Addr(), 0)))
	if back := netns.Set(own); err != nil || back != nil {
		m.t.Fatal(err, back)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
