// Package table finds the route of a request by its host and path.
//
// It guarantees that requests for one resource find one route, however its path is written: with dots, doubled slashes or
// escapes. It is pure, and must not know what a route is.
package table

import (
	"slices"
	"strings"
)

// Table leads from hosts and paths to routes. It does not change once it is used.
type Table[R any] struct {
	exact map[string][]entry[R]
	// under has the routes of hosts such as *.example.org by what follows the star.
	under map[string][]entry[R]
}

type entry[R any] struct {
	path  string // without a slash at the end
	route R
}

// Add adds a route. Of two with the same host and path, the first counts.
func (t *Table[R]) Add(host, path string, route R) {
	if t.exact == nil {
		t.exact, t.under = map[string][]entry[R]{}, map[string][]entry[R]{}
	}
	hosts, key := t.exact, Host(host)
	if suffix, wildcard := strings.CutPrefix(key, "*."); wildcard {
		hosts, key = t.under, suffix
	}
	path = strings.TrimRight(Clean(path), "/")
	// The longest path first; among equal ones the order of Add.
	at, _ := slices.BinarySearchFunc(hosts[key], len(path), func(e entry[R], length int) int {
		if len(e.path) >= length {
			return -1
		}
		return 1
	})
	hosts[key] = slices.Insert(hosts[key], at, entry[R]{path: path, route: route})
}

// Find returns the route for a host as [Host] returns it, and a path without its query. Without one it says whether the
// host has routes for other paths.
func (t *Table[R]) Find(host, path string) (route R, found, known bool) {
	routes := t.of(host)
	if len(routes) == 0 {
		return route, false, false
	}
	path = Clean(path)
	for _, e := range routes {
		if strings.HasPrefix(path, e.path) && (len(path) == len(e.path) || path[len(e.path)] == '/') {
			return e.route, true, true
		}
	}
	return route, false, true
}

// First returns the route of a host with the longest path that fits says yes to.
func (t *Table[R]) First(host string, fits func(R) bool) (route R, found bool) {
	for _, e := range t.of(host) {
		if fits(e.route) {
			return e.route, true
		}
	}
	return route, false
}

func (t *Table[R]) of(host string) []entry[R] {
	if routes := t.exact[host]; len(routes) > 0 {
		return routes
	}
	if dot := strings.IndexByte(host, '.'); dot > 0 {
		return t.under[host[dot+1:]]
	}
	return nil
}

// Host returns the name in a Host field: without the port and a dot at the end, in lower case. It is empty if the field
// is no host.
func Host(field string) string {
	host := field
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 || !isPort(host[end+1:]) {
			return ""
		}
		host = host[1:end]
		for i := range len(host) {
			if c := host[i]; c != ':' && c != '.' && !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return ""
			}
		}
		return lower(host)
	}
	if colon := strings.IndexByte(host, ':'); colon >= 0 {
		if !isPort(host[colon:]) {
			return ""
		}
		host = host[:colon]
	}
	host = strings.TrimSuffix(host, ".")
	for i := range len(host) {
		c := host[i]
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') && c != '-' && c != '.' && c != '_' && (c != '*' || i > 0) {
			return ""
		}
	}
	return lower(host)
}

// isPort reports whether s is empty or a colon with a number, which may be missing.
func isPort(s string) bool {
	if s == "" {
		return true
	}
	if s[0] != ':' || len(s) > 6 {
		return false
	}
	for i := 1; i < len(s); i++ {
		if !isDigit(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func lower(s string) string {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'Z' {
			return strings.ToLower(s)
		}
	}
	return s
}

// Ambiguous reports whether programs disagree about which resource a path is for: its dots or slashes are escaped, have
// parameters, or lead back over such. A backend gets the path as it is, and might not see what Clean sees.
func Ambiguous(path string) bool {
	var odd []bool // for each segment up to here, whether programs divide it differently
	for segment := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		switch segment {
		case ".":
			continue
		case "..":
			if n := len(odd); n > 0 {
				if odd[n-1] {
					return true
				}
				odd = odd[:n-1]
			}
			continue
		}
		divided := segment == ""
		if strings.ContainsAny(segment, `%;\`) {
			plain := unescape(segment)
			for part := range strings.FieldsFuncSeq(plain, isSlash) {
				if part, _, _ = strings.Cut(part, ";"); part == "." || part == ".." {
					return true
				}
			}
			if _, parameters, _ := strings.Cut(plain, ";"); strings.ContainsFunc(parameters, isSlash) {
				return true
			}
			divided = strings.ContainsFunc(plain, isSlash)
		}
		odd = append(odd, divided)
	}
	return false
}

func isSlash(c rune) bool { return c == '/' || c == '\\' }

// Clean returns the path that a request is for: without escapes, doubled slashes, dots, and the parameters of segments
// (what follows a semicolon). It begins with a slash.
func Clean(path string) string {
	if isClean(path) {
		return path
	}
	path = unescape(path)
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		part, _, _ = strings.Cut(part, ";")
		switch part {
		case "", ".":
		case "..":
			parts = parts[:max(0, len(parts)-1)]
		default:
			parts = append(parts, part)
		}
	}
	clean := "/" + strings.Join(parts, "/")
	if len(parts) > 0 && (strings.HasSuffix(path, "/") || strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..")) {
		clean += "/"
	}
	return clean
}

// isClean is quick, and right when it says yes.
func isClean(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	for i := range len(path) {
		switch path[i] {
		case '%', ';':
			return false
		case '/', '.':
			if i > 0 && path[i-1] == '/' {
				return false
			}
		}
	}
	return true
}

// unescape decodes escapes, and keeps those that are none.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			high, low := hex(s[i+1]), hex(s[i+2])
			if high >= 0 && low >= 0 {
				b.WriteByte(byte(high<<4 | low))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func hex(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}
