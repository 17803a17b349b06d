package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// escape is a known way out of containers that runc had.
type escape struct {
	cve string
	// since is the first version that has it; fixed are the first versions without it, one for each branch.
	since string
	fixed []string
}

// escapes are the known ones.
var escapes = []escape{
	{"CVE-2019-5736", "", []string{"1.0.0-rc7"}},
	{"CVE-2021-30465", "", []string{"1.0.0-rc95"}},
	{"CVE-2024-21626", "1.0.0-rc93", []string{"1.1.12"}},
	{"CVE-2024-45310", "", []string{"1.1.14", "1.2.0-rc3"}},
	{"CVE-2025-31133", "", []string{"1.2.8", "1.3.3", "1.4.0-rc3"}},
	{"CVE-2025-52565", "1.0.0-rc3", []string{"1.2.8", "1.3.3", "1.4.0-rc3"}},
	{"CVE-2025-52881", "", []string{"1.2.8", "1.3.3", "1.4.0-rc3"}},
}

// patchedPackages are packages of distributions that fix an escape in an older version, for machines whose packages come
// without their changelogs.
var patchedPackages = []struct {
	cve, prefix string
	number      int // that follows the prefix, at least
}{
	{"CVE-2024-21626", "1.1.5+ds1-1+deb12u", 1},
	{"CVE-2024-21626", "1.0.0~rc93+ds1-5+deb11u", 3},
	{"CVE-2024-21626", "1.1.7-0ubuntu1~22.04.", 2},
	{"CVE-2024-21626", "1.1.7-0ubuntu1~20.04.", 2},
}

// runcVersion is a version as numbers; the last one is that of a release candidate.
type runcVersion [4]int

// released is greater than the number of every release candidate.
const released = 1 << 30

var runcVersionPattern = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[-~]rc\.?(\d{1,6}))?`)

// parseVersion reads "1.1.5+ds1", "1.2.0-rc.3" and "1.0.0~rc93+ds1".
func parseVersion(text string) (v runcVersion, ok bool) {
	m := runcVersionPattern.FindStringSubmatch(text)
	if m == nil {
		return v, false
	}
	for i, part := range m[1:] {
		if part == "" {
			if i == 3 {
				v[i] = released
			}
			continue
		}
		v[i], _ = strconv.Atoi(part) // few digits
	}
	return v, true
}

func (v runcVersion) before(other runcVersion) bool { return slices.Compare(v[:], other[:]) < 0 }

// open reports whether a version of runc's authors has the escape.
func (e escape) open(v runcVersion) bool {
	if since, ok := parseVersion(e.since); ok && v.before(since) {
		return false
	}
	last := runcVersion{}
	for _, text := range e.fixed {
		fixed, _ := parseVersion(text)
		if fixed[0] == v[0] && fixed[1] == v[1] {
			return v.before(fixed)
		}
		last = fixed
	}
	return v.before(last)
}

// OpenEscapes are the known escapes that this runc has, as far as its package tells. A package that names them in its
// changelog has fixed them. Unknown are those of which nothing tells whether the distribution has fixed them.
func (r Runc) OpenEscapes() (open, unknown []string) {
	v, ok := parseVersion(r.Version)
	if !ok {
		return nil, []string{"all of them"}
	}
	for _, e := range escapes {
		switch {
		case !e.open(v), slices.Contains(r.Patched, e.cve), r.patchedByDistribution(e.cve):
		case r.Package != "" && !r.ChangelogRead:
			unknown = append(unknown, e.cve)
		default:
			open = append(open, e.cve)
		}
	}
	return open, unknown
}

func (r Runc) patchedByDistribution(cve string) bool {
	for _, p := range patchedPackages {
		rest, found := strings.CutPrefix(r.Package, p.prefix)
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		if n, err := strconv.Atoi(digits); found && p.cve == cve && err == nil && n >= p.number {
			return true
		}
	}
	return false
}

// escapeProof judges a runc that works.
func escapeProof(v View) []Finding {
	r := v.Runc
	open, unknown := r.OpenEscapes()
	name := "runc " + r.Version
	if r.Package != "" {
		name += " (package " + r.Package + ")"
	}
	mend := v.install("runc") + ", or version 1.3.3 or newer from https://github.com/opencontainers/runc/releases; replicas use it when they start again"
	switch {
	case len(open) > 0:
		return warn(fmt.Sprintf("%s has no fix for %s, by which a program can leave its container", name, strings.Join(open, ", ")), mend)
	case len(unknown) > 0:
		return []Finding{{Level: Unknown, Text: fmt.Sprintf("nothing tells whether %s has the fixes for %s", name, strings.Join(unknown, ", ")), Mend: "ask your distribution; or " + mend}}
	}
	return ok(name + " has the fixes for all known ways out of containers")
}
