package nodenet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
`

func TestSocketsAt(t *testing.T) {
	for key, want := range map[portKey][]string{
		{protocol: "tcp", number: 8080}: {"4711"},
		{protocol: "udp", number: 8080}: {"4711", "4712"},
		{protocol: "tcp", number: 80}:   {"4713"},
		{protocol: "tcp", number: 81}:   nil,
	} {
		if got := socketsAt(strings.NewReader(sockets), key); !slices.Equal(got, want) {
			t.Errorf("at %v: %v, want %v", key, got, want)
		}
	}
}

func FuzzSocketsAt(f *testing.F) {
	f.Add(sockets, uint16(80))
	f.Fuzz(func(t *testing.T, table string, port uint16) {
		for _, inode := range socketsAt(strings.NewReader(table), portKey{protocol: "tcp", number: port}) {
			if !strings.Contains(table, inode) {
				t.Errorf("inode %q is not in the table", inode)
			}
		}
	})
}

// Flows to other machines are left alone, whatever their port.
func TestStaleFlows(t *testing.T) {
	here, replica, former, abroad := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.64.0.2"), netip.MustParseAddr("10.64.0.3"), netip.MustParseAddr("198.51.100.53")
	stale := staleFlows{
		serving: map[uint16]map[netip.Addr]bool{53: {replica: true}},
		local:   map[netip.Addr]bool{here: true},
	}
	for name, c := range map[string]struct {
		asked, answers netip.Addr
		protocol       uint8
		port           uint16
		want           bool
	}{
		"to one who serves":        {here, replica, unix.IPPROTO_UDP, 53, false},
		"to one who did":           {here, former, unix.IPPROTO_UDP, 53, true},
		"to one who did, by lo":    {netip.MustParseAddr("127.0.0.1"), former, unix.IPPROTO_UDP, 53, true},
		"to the machine itself":    {here, here, unix.IPPROTO_UDP, 53, true},
		"to a server elsewhere":    {abroad, abroad, unix.IPPROTO_UDP, 53, false},
		"to a port of its own":     {here, former, unix.IPPROTO_UDP, 54, false},
		"not made of datagrams":    {here, former, unix.IPPROTO_TCP, 53, false},
		"to a replica as a client": {former, former, unix.IPPROTO_UDP, 53, false},
	} {
		flow := &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{DstIP: c.asked.AsSlice(), DstPort: c.port, Protocol: c.protocol},
			Reverse: netlink.IPTuple{SrcIP: c.answers.AsSlice()},
		}
		if got := stale.MatchConntrackFlow(flow); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
