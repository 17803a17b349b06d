package spec

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// VersionRange is a set of versions, such as ">=1.2, <2".
type VersionRange struct {
	bounds []versionBound
}

type versionBound struct {
	operator string
	version  []int64
}

// ParseVersionRange reads conditions that must all hold, separated by commas: "=1.2",
// ">1.2", ">=1.2", "<2", "<=2" or "!=1.3"; without a sign it is "=". Versions are numbers
// with points between them, with or without a leading v; what follows the numbers is
// ignored, and missing numbers are 0.
func ParseVersionRange(s string) (VersionRange, error) {
	var r VersionRange
	for text := range strings.SplitSeq(s, ",") {
		text = strings.TrimSpace(text)
		bound := versionBound{operator: "="}
		for _, operator := range []string{">=", "<=", "!=", ">", "<", "="} {
			if rest, ok := strings.CutPrefix(text, operator); ok {
				bound.operator, text = operator, strings.TrimSpace(rest)
				break
			}
		}
		var ok bool
		if bound.version, ok = parseVersion(text); !ok {
			return VersionRange{}, fmt.Errorf("%q is not a range of versions such as >=1.2, <2", s)
		}
		r.bounds = append(r.bounds, bound)
	}
	return r, nil
}

// Contains reports whether a version is in the range. Invalid versions are in none.
func (r VersionRange) Contains(version string) bool {
	v, ok := parseVersion(version)
	if !ok {
		return false
	}
	for _, b := range r.bounds {
		if !b.allows(compareVersions(v, b.version)) {
			return false
		}
	}
	return true
}

// allows reports whether a version with this comparison result is within the bound.
func (b versionBound) allows(order int) bool {
	switch b.operator {
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case "!=":
		return order != 0
	default:
		return order == 0
	}
}

func parseVersion(s string) ([]int64, bool) {
	s = strings.TrimPrefix(s, "v")
	end := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end >= 0 {
		s = s[:end]
	}
	var version []int64
	for part := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, false
		}
		version = append(version, n)
	}
	return version, true
}

func compareVersions(a, b []int64) int {
	for i := range max(len(a), len(b)) {
		var x, y int64
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if order := cmp.Compare(x, y); order != 0 {
			return order
		}
	}
	return 0
}
