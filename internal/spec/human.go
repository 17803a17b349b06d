package spec

import (
	"strconv"
	"strings"
)

// HumanBytes formats an amount of bytes for people: exactly if that is short, as for amounts that people chose, else
// rounded down to one decimal, so that it never promises more than there is. Programs read FormatBytes.
func HumanBytes(n int64) string {
	const short = 4 // digits
	exact := FormatBytes(n)
	if len(strings.TrimRight(exact, "KMGTPi")) <= short || n < 0 {
		return exact
	}
	for _, u := range byteUnits[:binaryUnits] {
		unit := int64(u.factor)
		if n < unit {
			continue
		}
		whole, tenth := n/unit, n%unit*10/unit
		if tenth == 0 || whole >= 100 {
			return strconv.FormatInt(whole, 10) + u.suffix
		}
		return strconv.FormatInt(whole, 10) + "." + strconv.FormatInt(tenth, 10) + u.suffix
	}
	return exact
}

// Count is a number of things in words, such as "3 replicas".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
