package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// lookPorts finds the processes that use the ports.
func lookPorts(wanted []Port) []Port {
	if len(wanted) == 0 {
		return nil
	}
	tables := map[string]string{
		"tcp": read("/proc/net/tcp") + read("/proc/net/tcp6"),
		"udp": read("/proc/net/udp") + read("/proc/net/udp6"),
	}
	owners := map[string]owner{} // by inode; listed only once, because that is slow
	seen := make([]Port, len(wanted))
	for i, p := range wanted {
		inode := listener(tables[p.Network], p.Network, p.Number)
		if inode != "" && len(owners) == 0 {
			owners = socketOwners()
		}
		switch owner, known := owners[inode]; {
		case inode == "":
		case known:
			p.UsedBy, p.PID = owner.name, owner.pid
		default:
			p.UsedBy = "a process that cannot be seen from here"
		}
		seen[i] = p
	}
	return seen
}

// listener finds the inode of the socket that listens on a port in the kernel's table; empty if there is none.
func listener(table, network string, port uint16) (inode string) {
	const listening, unconnected = "0A", "07"
	state := map[string]string{"tcp": listening, "udp": unconnected}[network]
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != state {
			continue
		}
		_, hex, found := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); found && err == nil && uint16(n) == port {
			return fields[9]
		}
	}
	return ""
}

// owner is a process with an open socket.
type owner struct {
	pid  int
	name string
}

// socketOwners maps inodes of sockets to processes.
func socketOwners() map[string]owner {
	owners := map[string]owner{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		text := strings.Split(link, "/")[2]
		pid, _ := strconv.Atoi(text)
		owners[strings.TrimSuffix(inode, "]")] = owner{pid: pid, name: fmt.Sprintf("process %s (%s)", text, strings.TrimSpace(read("/proc/"+text+"/comm")))}
	}
	return owners
}

// UserOf returns which process listens on a port of "tcp" or "udp", such as "process 7 (nginx)", and nothing if none does.
func UserOf(network string, port uint16) string {
	return lookPorts([]Port{{Network: network, Number: port}})[0].UsedBy
}
