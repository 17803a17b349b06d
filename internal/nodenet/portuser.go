package nodenet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// userOf says in words who has a port of the machine.
func userOf(key portKey) string {
	sockets := map[string]bool{}
	for _, file := range []string{key.protocol, key.protocol + "6"} {
		table, err := os.Open("/proc/thread-self/net/" + file)
		if err != nil {
			continue
		}
		for _, inode := range socketsAt(table, key) {
			sockets["socket:["+inode+"]"] = true
		}
		_ = table.Close()
	}
	if pid, name, found := processWith(sockets); found {
		return fmt.Sprintf("%s (process %d) on this machine", name, pid)
	}
	return "another process on this machine"
}

// listening is the state of a TCP socket that waits for connections; UDP sockets have only
// one state.
const listening = "0A"

// socketsAt reads a table of sockets as in /proc/net/tcp and returns the inodes of those
// that occupy the port.
func socketsAt(table io.Reader, key portKey) []string {
	var inodes []string
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			continue
		}
		_, port, found := strings.Cut(fields[1], ":")
		number, err := strconv.ParseUint(port, 16, 16)
		if !found || err != nil || uint16(number) != key.number {
			continue
		}
		if key.protocol == "tcp" && fields[3] != listening {
			continue
		}
		if fields[9] != "0" {
			inodes = append(inodes, fields[9])
		}
	}
	return inodes
}

// processWith finds the first process that has one of the sockets open.
func processWith(sockets map[string]bool) (pid int, name string, found bool) {
	if len(sockets) == 0 {
		return 0, "", false
	}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, path := range open {
		target, err := os.Readlink(path)
		if err != nil || !sockets[target] {
			continue
		}
		process := filepath.Dir(filepath.Dir(path))
		if pid, err = strconv.Atoi(filepath.Base(process)); err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil {
			continue
		}
		return pid, strings.TrimSpace(string(text)), true
	}
	return 0, "", false
}
