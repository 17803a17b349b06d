package machine

import (
	"math"
	"path"
	"strconv"
	"strings"
)

// readLink is the speed of the default route's interface in bits per second. It is 0 if
// unknown: radio links and many virtual machines do not report it.
func readLink(root root) int64 {
	name := defaultInterface(root)
	if name == "" || !root.hasRealSpeed(name) {
		return 0
	}
	text, err := root.line(path.Join("sys/class/net", name, "speed"))
	if err != nil { // the kernel does not report it for a link that is down
		return 0
	}
	return parseSpeed(text)
}

// parseSpeed reads megabits per second; the kernel writes -1 if unknown.
func parseSpeed(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n >= math.MaxUint32 {
		return 0
	}
	return n * 1_000_000
}

// hasRealSpeed reports whether the speed of an interface is that of hardware: its own, or that of
// its members. Virtual links report an arbitrary number.
func (r root) hasRealSpeed(name string) bool {
	for _, trait := range []string{"device", "bonding", "bridge"} {
		if r.exists(path.Join("sys/class/net", name, trait)) {
			return true
		}
	}
	return r.exists(path.Join("proc/net/vlan", name))
}

func defaultInterface(root root) string {
	if table, err := root.read("proc/net/route"); err == nil {
		if name := defaultRoute(string(table)); name != "" {
			return name
		}
	}
	table, err := root.read("proc/net/ipv6_route")
	if err != nil {
		return ""
	}
	return defaultRoute6(string(table))
}

// Route flags of the kernel.
const (
	routeUp     = 0x1
	routeReject = 0x200
)

// defaultRoute is the interface of the default route with the lowest metric. The columns
// are: interface, destination, gateway, flags, references, use, metric, mask.
func defaultRoute(table string) string {
	var routes lowest
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		metric, err2 := strconv.ParseUint(f[6], 10, 32)
		if err == nil && err2 == nil {
			routes.offer(f[0], metric, flags)
		}
	}
	return routes.name
}

// defaultRoute6 does the same for IPv6. The columns are: destination, its length, source,
// its length, next hop, metric, references, use, flags, interface; all in hex.
func defaultRoute6(table string) string {
	var routes lowest
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" {
			continue
		}
		metric, err := strconv.ParseUint(f[5], 16, 32)
		flags, err2 := strconv.ParseUint(f[8], 16, 32)
		if err == nil && err2 == nil {
			routes.offer(f[9], metric, flags)
		}
	}
	return routes.name
}

// lowest is the interface with the lowest metric so far.
type lowest struct {
	name   string
	metric uint64
}

func (l *lowest) offer(name string, metric, flags uint64) {
	// Names become paths.
	if name == "lo" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." || flags&routeUp == 0 || flags&routeReject != 0 {
		return
	}
	if l.name == "" || metric < l.metric {
		l.name, l.metric = name, metric
	}
}
