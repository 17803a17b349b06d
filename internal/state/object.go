package state

import (
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Object is a message of one of the stored kinds.
type Object interface {
	proto.Message
	GetMetadata() *v1.Metadata
}

// Path returns "namespace/name", or only the name for an object outside of namespaces. Lists of a [Snapshot] can start
// after a path.
func Path(o Object) string {
	return path(o.GetMetadata().GetNamespace(), o.GetMetadata().GetName())
}

func path(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

func splitPath(path string) (namespace, name string) {
	if namespace, name, found := strings.Cut(path, "/"); found {
		return namespace, name
	}
	return "", path
}

// appendText appends a text to a composite key. The zero byte at its end keeps keys in the order of their texts and keeps
// a key from being a prefix of another. Validate refuses texts that contain a zero byte.
func appendText(key []byte, text string) []byte { return append(append(key, text...), 0) }

// The first byte of a UUID that is encoded in binary, and of any other id that begins with one of these bytes.
const (
	binaryID  = 1
	escapedID = 2
)

// appendID appends an id to a composite key. Keys of ids have no particular order. UUIDs are encoded in binary, because
// with millions of objects the keys take much of the memory.
func appendID(key []byte, id string) []byte {
	var binary [16]byte
	switch {
	case parseID(id, &binary):
	case id != "" && id[0] <= escapedID:
		return appendText(append(key, escapedID), id)
	default:
		return appendText(key, id)
	}
	return append(append(key, binaryID), binary[:]...)
}

// parseID parses a UUID in its canonical form only, because different ids must have different keys.
func parseID(id string, to *[16]byte) bool {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return false
	}
	wrong := byte(0)
	for i, at := range pairs {
		high, low := digits[id[at]], digits[id[at+1]]
		wrong |= high | low
		to[i] = high<<4 | low
	}
	return wrong <= 0xf
}

// pairs are the positions of the two digits of each byte in a UUID. digits are the values of hexadecimal digits, 0xff
// for other characters.
var (
	pairs  = [16]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}
	digits = func() (all [256]byte) {
		for c := range all {
			all[c] = 0xff
		}
		for value, c := range []byte("0123456789abcdef") {
			all[c] = byte(value)
		}
		return all
	}()
)

func nameKey(o Object) string {
	return nameKeyOf(o.GetMetadata().GetNamespace(), o.GetMetadata().GetName())
}

func appendNameKey(key []byte, o Object) []byte {
	return append(appendText(key, o.GetMetadata().GetNamespace()), o.GetMetadata().GetName()...)
}

// nameKeyOf returns a key that is ordered by namespace and name.
func nameKeyOf(namespace, name string) string { return namespace + "\x00" + name }
