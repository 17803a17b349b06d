package state

import (
	"slices"
	"strings"
)

// keys are the sorted keys of one tree node. The texts are scattered in memory, and every cache miss costs more than
// the rest of a search. Therefore an abbreviation of each key lies beside it, and decides most comparisons.
type keys struct {
	texts []string
	// abbreviations are the eight bytes of each key that follow the common prefix, as big-endian numbers.
	abbreviations []uint64
	// prefix is a length that all keys have in common. They may share more.
	prefix int
}

// abbreviate returns the first eight bytes of a key's rest after the common prefix, as a number. Keys are in the order
// of their abbreviations; keys with equal abbreviations must be compared as texts.
func abbreviate(rest string) (number uint64) {
	if len(rest) >= 8 {
		return uint64(rest[7]) | uint64(rest[6])<<8 | uint64(rest[5])<<16 | uint64(rest[4])<<24 |
			uint64(rest[3])<<32 | uint64(rest[2])<<40 | uint64(rest[1])<<48 | uint64(rest[0])<<56
	}
	for i := range len(rest) {
		number |= uint64(rest[i]) << (56 - 8*i)
	}
	return number
}

// rebuild computes the prefix and the abbreviations of all keys from first on. Keys before first have none.
func (k *keys) rebuild(first int) {
	if k.prefix = 0; cap(k.abbreviations) < len(k.texts) {
		k.abbreviations = make([]uint64, 0, fanout+1)
	}
	k.abbreviations = k.abbreviations[:len(k.texts)]
	if first == len(k.texts) {
		return
	}
	k.prefix = commonPrefix(k.texts[first], k.texts[len(k.texts)-1]) // the keys between them share it too
	for i, text := range k.texts[first:] {
		k.abbreviations[first+i] = abbreviate(text[k.prefix:])
	}
}

// commonPrefix returns the length of the prefix that two keys share.
func commonPrefix(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// find returns the position of a key among those from first on, or the position at which it would be inserted.
func (k *keys) find(first int, key string) (at int, found bool) {
	if first >= len(k.texts) {
		return len(k.texts), false
	}
	prefix := k.texts[first][:k.prefix]
	if !strings.HasPrefix(key, prefix) {
		if key < prefix {
			return first, false
		}
		return len(k.texts), false
	}
	return k.findPrefixed(first, key)
}

// findPrefixed is find for a key with the common prefix. It never finds any other key, but then the position is
// meaningless.
func (k *keys) findPrefixed(first int, key string) (at int, found bool) {
	if len(key) < k.prefix {
		return first, false
	}
	wanted := abbreviate(key[k.prefix:])
	low, high := first, len(k.abbreviations)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if k.abbreviations[middle] < wanted {
			low = middle + 1
		} else {
			high = middle
		}
	}
	for high < len(k.abbreviations) && k.abbreviations[high] == wanted {
		high++
	}
	if low == high {
		return low, false
	}
	at, found = slices.BinarySearch(k.texts[low:high], key)
	return low + at, found
}

// insert inserts a key at its position, which is at or after first.
func (k *keys) insert(first, at int, key string) {
	fits := first < len(k.texts) && strings.HasPrefix(key, k.texts[first][:k.prefix])
	k.texts = slices.Insert(k.texts, at, key)
	if !fits {
		k.rebuild(first)
		return
	}
	k.abbreviations = slices.Insert(k.abbreviations, at, abbreviate(key[k.prefix:]))
}

func (k *keys) remove(at int) {
	k.texts, k.abbreviations = slices.Delete(k.texts, at, at+1), slices.Delete(k.abbreviations, at, at+1)
}

// truncate removes all keys from end on.
func (k *keys) truncate(first, end int) {
	k.texts = slices.Delete(k.texts, end, len(k.texts))
	if end > first && commonPrefix(k.texts[first], k.texts[end-1]) == k.prefix {
		k.abbreviations = k.abbreviations[:end]
		return
	}
	k.rebuild(first) // the remaining keys share a longer prefix
}

func (k *keys) clone() keys {
	return keys{texts: cloneWithRoom(k.texts), abbreviations: cloneWithRoom(k.abbreviations), prefix: k.prefix}
}
