// Package resolvconf reads and follows the files that name this machine's name servers, and writes such a file
// for replicas. It knows the format of resolv.conf and nothing of networks, services or the API.
package resolvconf

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Paths are the files with the machine's name servers, in order of preference. Local caches write the later ones,
// with the servers behind them.
var Paths = []string{
	"/etc/resolv.conf",
	"/run/systemd/resolve/resolv.conf",
	"/run/NetworkManager/no-stub-resolv.conf",
}

// Config is what a resolver on this machine needs to know.
type Config struct {
	Servers []netip.Addr
	Search  []string
}

// Read returns the servers of the first file that names one outside this machine, because a local cache may
// forward to the caller. If there is none, it returns the local servers of the first file that has any. The caller's
// own addresses do not count.
func Read(paths []string, own ...netip.Addr) Config {
	var local Config
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		c := parse(data)
		c.Servers = slices.DeleteFunc(c.Servers, func(a netip.Addr) bool { return slices.Contains(own, a) })
		outside := slices.DeleteFunc(slices.Clone(c.Servers), netip.Addr.IsLoopback)
		if len(outside) > 0 {
			return Config{Servers: outside, Search: c.Search}
		}
		if len(local.Servers) == 0 {
			local.Servers = c.Servers
		}
		if len(local.Search) == 0 {
			local.Search = c.Search
		}
	}
	return local
}

func parse(data []byte) (c Config) {
	for line := range lines(data) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if addr, err := netip.ParseAddr(fields[1]); err == nil && !addr.IsUnspecified() {
				c.Servers = append(c.Servers, addr.Unmap())
			}
		case "search", "domain": // the last one counts
			c.Search = fields[1:]
		}
	}
	return c
}

// Text returns the first of the files that names a server which other network namespaces can reach, without the
// servers that they cannot reach. If there is none, a sentence says so.
func Text(paths []string) (text, sentence string) {
	fallback, found := "", false
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		text, servers, local := withoutLoopback(data)
		if servers > 0 || !local && path == paths[0] {
			return text, ""
		}
		if !found {
			fallback, found = text, true
		}
	}
	if !found {
		return "", "" // a machine without name servers has replicas without them
	}
	return fallback, "Names cannot be resolved inside replicas: " + paths[0] +
		" has only servers on 127.0.0.x, which replicas cannot reach; name others in it."
}

// withoutLoopback removes the servers that only the machine itself can reach.
func withoutLoopback(data []byte) (text string, servers int, local bool) {
	var out strings.Builder
	for line := range lines(data) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "nameserver" {
			host, _, _ := strings.Cut(fields[1], "%")
			if addr, err := netip.ParseAddr(host); err == nil && (addr.IsLoopback() || addr.IsUnspecified()) {
				local = true
				continue
			}
			servers++
		}
		out.WriteString(line + "\n")
	}
	return out.String(), servers, local
}

func lines(data []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		s := bufio.NewScanner(bytes.NewReader(data))
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			if !yield(strings.TrimRight(s.Text(), "\r")) { // the scanner removes only one
				return
			}
		}
	}
}

// maxSearch is how many search domains old versions of glibc accept.
const maxSearch = 6

// ForReplica is the file of a replica whose short names are looked up below the given domains, then below those of
// the machine. Name one server: musl asks all of them at once.
//
// A name with one dot, such as api.shop, is looked up below the domains first. musl never does that for a name
// with as many dots as ndots says, so ndots is 2.
func ForReplica(servers []netip.Addr, domains []string, machine Config) string {
	var out strings.Builder
	for _, server := range servers {
		out.WriteString("nameserver " + server.String() + "\n")
	}
	search := slices.Concat(domains, slices.DeleteFunc(slices.Clone(machine.Search), func(domain string) bool {
		return domain == "." || slices.Contains(domains, domain)
	}))
	if len(search) > 0 {
		out.WriteString("search " + strings.Join(search[:min(len(search), maxSearch)], " ") + "\n")
	}
	return out.String() + "options ndots:2\n"
}
