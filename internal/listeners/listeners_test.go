package listeners

import (
	"net"
	"os"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

func TestListenersAreFound(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer udp.Close()
	one := Port{"tcp", uint16(tcp.Addr().(*net.TCPAddr).Port)}
	other := Port{"udp", uint16(udp.LocalAddr().(*net.UDPAddr).Port)}
	found := Of(one, other, Port{"tcp", 1})
	if len(found) != 2 || found[one].PID != os.Getpid() || found[other].PID != os.Getpid() {
		t.Errorf("found %v, want this process twice", found)
	}
}

// FuzzTable: no output of the kernel crashes the parser.
func FuzzTable(f *testing.F) {
	f.Add("  0: 0100007F:1E14 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12345 1\n", uint16(7700))
	f.Fuzz(func(_ *testing.T, text string, port uint16) {
		for _, network := range []string{"tcp", "udp"} {
			_ = listener(text, network, port)
		}
	})
}
