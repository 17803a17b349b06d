// Package listeners finds the processes that listen on ports of this machine, in what the kernel shows below /proc.
//
// It knows nothing of this repository.
package listeners

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Port is a port of "tcp" or "udp".
type Port struct {
	Network string
	Number  uint16
}

// Process is one that listens. Name is such as "process 7 (nginx)"; PID is 0 if it cannot be seen from here.
type Process struct {
	PID  int
	Name string
}

// Of returns the processes that listen on ports, those without one left out.
func Of(ports ...Port) map[Port]Process {
	tables := map[string]string{
		"tcp": read("/proc/net/tcp") + read("/proc/net/tcp6"),
		"udp": read("/proc/net/udp") + read("/proc/net/udp6"),
	}
	owners := map[string]Process{} // by inode; listed only once, because that is slow
	found := map[Port]Process{}
	for _, p := range ports {
		inode := listener(tables[p.Network], p.Network, p.Number)
		if inode == "" {
			continue
		}
		if len(owners) == 0 {
			owners = socketOwners()
		}
		owner, known := owners[inode]
		if !known {
			owner = Process{Name: "a process that cannot be seen from here"}
		}
		found[p] = owner
	}
	return found
}

func read(path string) string {
	b, _ := os.ReadFile(path) // what is not there has nothing to say
	return string(b)
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

// socketOwners maps inodes of sockets to processes.
func socketOwners() map[string]Process {
	owners := map[string]Process{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		inode, isSocket := strings.CutPrefix(target, "socket:[")
		if err != nil || !isSocket {
			continue
		}
		text := strings.Split(link, "/")[2]
		pid, _ := strconv.Atoi(text)
		owners[strings.TrimSuffix(inode, "]")] = Process{PID: pid, Name: fmt.Sprintf("process %s (%s)", text, strings.TrimSpace(read("/proc/"+text+"/comm")))}
	}
	return owners
}
