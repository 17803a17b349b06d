package probe

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// socket is a bound UDP socket or a listening TCP socket.
type socket struct {
	protocol string
	address  netip.AddrPort
}

// Listening reports whether the network namespace of a process has a socket for each port of a workload. It makes no
// connection, so the program does not notice.
func Listening(pid int, w *v1.WorkloadSpec) Result {
	var found []socket
	for _, protocol := range []string{"tcp", "udp"} {
		if !slices.ContainsFunc(w.GetPorts(), func(p *v1.Port) bool { return protocolOf(p) == protocol }) {
			continue
		}
		for _, table := range []string{protocol, protocol + "6"} {
			sockets, err := readSockets(fmt.Sprintf("/proc/%d/net/%s", pid, table), protocol)
			if err != nil && !os.IsNotExist(err) { // a machine without IPv6 has no such table
				return Result{Unknown: true, Reason: "Its sockets cannot be read: " + err.Error()}
			}
			found = append(found, sockets...)
		}
	}
	return listensOnAll(w, found)
}

// Accepted counts the TCP connections that programs in the network namespace of a process have accepted so far. It is 0 if
// that is unknown.
func Accepted(pid int) int {
	counters, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		return 0
	}
	var names []string
	for line := range strings.Lines(string(counters)) { // a line of names, then one of their values
		if !strings.HasPrefix(line, "Tcp:") {
			continue
		}
		values := strings.Fields(line)
		if at := slices.Index(names, "PassiveOpens"); at > 0 && at < len(values) {
			count, _ := strconv.Atoi(values[at])
			return count
		}
		names = values
	}
	return 0
}

func protocolOf(p *v1.Port) string {
	if p.GetProtocol() == "" {
		return "tcp"
	}
	return p.GetProtocol()
}

// listensOnAll reports whether the sockets serve all ports of a workload, and which one they do not serve.
func listensOnAll(w *v1.WorkloadSpec, found []socket) Result {
	for _, p := range w.GetPorts() {
		local := false
		if slices.ContainsFunc(found, func(s socket) bool {
			if s.protocol != protocolOf(p) || s.address.Port() != uint16(p.GetPort()) {
				return false
			}
			// On the network of the machine, loopback is as good as any address.
			loopback := s.address.Addr().Unmap().IsLoopback() && w.GetNetwork() != networkHost
			local = local || loopback
			return !loopback
		}) {
			continue
		}
		name := strconv.Itoa(int(p.GetPort()))
		if protocolOf(p) == "udp" {
			name += "/udp"
		}
		if local {
			return Result{Reason: fmt.Sprintf("It listens on port %s at a loopback address only, where nothing else can reach it: let it listen on 0.0.0.0.", name)}
		}
		return Result{Reason: fmt.Sprintf("It does not listen on port %s yet.", name)}
	}
	return Result{OK: true}
}

const networkHost = "host"

// The states of sockets in /proc/net.
const (
	stateListen = "0A" // a TCP socket that listens
	stateClosed = "07" // a UDP socket without a peer
)

func readSockets(path, protocol string) ([]socket, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseSockets(f, protocol)
}

// parseSockets reads a table such as /proc/net/tcp. Its listening sockets come before all connections, which may be very
// many and are not read.
func parseSockets(table io.Reader, protocol string) (found []socket, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[0] == "sl" {
			continue
		}
		switch {
		case protocol == "tcp" && fields[3] != stateListen:
			return found, nil
		case protocol == "udp" && fields[3] != stateClosed:
			continue
		}
		address, err := parseSocketAddress(fields[1])
		if err != nil {
			return nil, err
		}
		found = append(found, socket{protocol, address})
	}
	return found, lines.Err()
}

// parseSocketAddress reads an address such as 0100007F:1F90: 32-bit words in the byte order of the machine, and a port.
func parseSocketAddress(text string) (a netip.AddrPort, err error) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	number, errPort := strconv.ParseUint(port, 16, 16)
	if err != nil || errPort != nil || len(raw) != 4 && len(raw) != 16 {
		return a, fmt.Errorf("%q is not the address of a socket", text)
	}
	for word := range slices.Chunk(raw, 4) {
		if littleEndian {
			slices.Reverse(word)
		}
	}
	address, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address, uint16(number)), nil
}

// littleEndian is the byte order of this machine.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
