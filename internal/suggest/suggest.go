// Package suggest finds the existing name that is closest to a misspelled one.
//
// It suggests nothing rather than something far-fetched. It must not know what the
// names stand for.
package suggest

import (
	"cmp"
	"iter"
	"strings"
	"unicode/utf8"
)

// longest is the length above which names are not compared, because such names are
// not typed by hand.
const longest = 256

// To returns the name among others that is nearest to the given one, the first
// of them if there are several, or nothing if none is near.
func To(name string, others iter.Seq[string]) string {
	if len(name) > longest {
		return ""
	}
	best, distance := "", limit(name)+1
	beginning := ""
	for other := range others {
		if other == name || len(other) > longest {
			continue
		}
		if d := between(strings.ToLower(name), strings.ToLower(other), distance-1); d < distance {
			best, distance = other, d
		}
		if beginning == "" && begins(name, other) {
			beginning = other
		}
	}
	return cmp.Or(best, beginning) // the beginning is the weaker sign
}

// begins reports whether the user may have stopped typing too early.
func begins(name, other string) bool {
	return len(name) >= 3 && strings.HasPrefix(other, name)
}

// limit is how many slips of the finger a name of this length may have.
func limit(name string) int {
	switch n := utf8.RuneCountInString(name); {
	case n <= 4:
		return 1
	case n <= 8:
		return 2
	default:
		return 3
	}
}

// between counts the letters that must be put in, taken out, replaced or
// swapped with their neighbour to make b of a. What is more than most counts as
// one more than that.
func between(a, b string, most int) int {
	from, to := []rune(a), []rune(b)
	if d := len(from) - len(to); d > most || -d > most {
		return most + 1
	}
	before, last, row := make([]int, len(to)+1), make([]int, len(to)+1), make([]int, len(to)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(from); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(to); j++ {
			cost := 1
			if from[i-1] == to[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && from[i-1] == to[j-2] && from[i-2] == to[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least > most {
			return most + 1
		}
		before, last, row = last, row, before
	}
	return min(last[len(to)], most+1)
}
