package names

import "bytes"

// Strings inside of keys end with a terminator, so that the fields behind them do not mix with their bytes. A zero byte
// of the string is escaped. Keys then have the order of the strings, and the keys of all strings with one prefix are
// next to each other.
const (
	escape     = 0x00
	terminator = 0x01
	escapedNUL = 0xff
)

// appendString appends a whole string.
func appendString(key []byte, s string) []byte {
	return append(appendPrefix(key, s), escape, terminator)
}

// appendPrefix appends the beginning of a string: all strings that begin with it have keys that begin so.
func appendPrefix(key []byte, s string) []byte {
	for i := range len(s) {
		if s[i] == escape {
			key = append(key, escape, escapedNUL)
			continue
		}
		key = append(key, s[i])
	}
	return key
}

// cutString returns the string that a key begins with, and what is behind it.
func cutString(key []byte) (s string, rest []byte, ok bool) {
	end := bytes.IndexByte(key, escape)
	if end < 0 || end+1 == len(key) {
		return "", nil, false
	}
	if key[end+1] == terminator { // no zero byte in it, as nearly always
		return string(key[:end]), key[end+2:], true
	}
	var unescaped []byte
	for i := 0; i+1 < len(key); i++ {
		switch {
		case key[i] != escape:
			unescaped = append(unescaped, key[i])
			continue
		case key[i+1] == terminator:
			return string(unescaped), key[i+2:], true
		case key[i+1] != escapedNUL:
			return "", nil, false
		}
		unescaped = append(unescaped, escape)
		i++
	}
	return "", nil, false
}

// after returns the first key behind all keys that begin with a prefix.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
