package state

import (
	"slices"
	"strings"
)

// keys are those of a node of a tree, in their order. They lie far apart in memory, where each look at one costs more
// than all else, so that beside each stands what tells it from most others.
type keys struct {
	texts []string
	// marks are the eight bytes of each key that follow what all keys have in common, as a number.
	marks []uint64
	// shared is how many bytes at least all keys have in common.
	shared int
}

// markOf is the number that a key's bytes make behind those that it shares with others. Keys are in the order of
// their marks; those with the same one may be in any.
func markOf(rest string) (mark uint64) {
	if len(rest) >= 8 {
		return uint64(rest[7]) | uint64(rest[6])<<8 | uint64(rest[5])<<16 | uint64(rest[4])<<24 |
			uint64(rest[3])<<32 | uint64(rest[2])<<40 | uint64(rest[1])<<48 | uint64(rest[0])<<56
	}
	for i := range len(rest) {
		mark |= uint64(rest[i]) << (56 - 8*i)
	}
	return mark
}

// mark makes the marks of all keys from first on. Those before it have none of their own.
func (k *keys) mark(first int) {
	if k.shared = 0; cap(k.marks) < len(k.texts) {
		k.marks = make([]uint64, 0, fanout+1)
	}
	k.marks = k.marks[:len(k.texts)]
	if first == len(k.texts) {
		return
	}
	k.shared = common(k.texts[first], k.texts[len(k.texts)-1]) // and so all between them
	for i, text := range k.texts[first:] {
		k.marks[first+i] = markOf(text[k.shared:])
	}
}

// common is how many bytes two keys begin with alike.
func common(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// find returns where a key is among those from first on, or where it would be.
func (k *keys) find(first int, key string) (at int, found bool) {
	if first >= len(k.texts) {
		return len(k.texts), false
	}
	prefix := k.texts[first][:k.shared]
	if !strings.HasPrefix(key, prefix) {
		if key < prefix {
			return first, false
		}
		return len(k.texts), false
	}
	return k.among(first, key)
}

// among is find for a key that begins as all do. Of one that does not it only says that it is not there.
func (k *keys) among(first int, key string) (at int, found bool) {
	if len(key) < k.shared {
		return first, false
	}
	mark := markOf(key[k.shared:])
	low, high := first, len(k.marks)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if k.marks[middle] < mark {
			low = middle + 1
		} else {
			high = middle
		}
	}
	for high < len(k.marks) && k.marks[high] == mark {
		high++
	}
	if low == high {
		return low, false
	}
	at, found = slices.BinarySearch(k.texts[low:high], key)
	return low + at, found
}

// insert puts a key at its place, which is not before first.
func (k *keys) insert(first, at int, key string) {
	fits := first < len(k.texts) && strings.HasPrefix(key, k.texts[first][:k.shared])
	k.texts = slices.Insert(k.texts, at, key)
	if !fits {
		k.mark(first)
		return
	}
	k.marks = slices.Insert(k.marks, at, markOf(key[k.shared:]))
}

func (k *keys) remove(at int) {
	k.texts, k.marks = slices.Delete(k.texts, at, at+1), slices.Delete(k.marks, at, at+1)
}

// cut takes away all keys from an end on.
func (k *keys) cut(first, end int) {
	k.texts = slices.Delete(k.texts, end, len(k.texts))
	if end > first && common(k.texts[first], k.texts[end-1]) == k.shared {
		k.marks = k.marks[:end]
		return
	}
	k.mark(first) // those that are left have more in common
}

// copied are keys of their own that are the same.
func (k *keys) copied() keys {
	return keys{texts: roomy(k.texts), marks: roomy(k.marks), shared: k.shared}
}
