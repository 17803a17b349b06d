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

// Path returns "namespace/name", or the name alone for an object outside of namespaces. The lists of a [Snapshot]
// are in the order of namespace and name and can start after a path.
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

// appendText adds a part to a key so that keys are in the order of their parts and no key is the beginning of another one
// with as many parts. No part contains a zero byte, which Validate sees to.
func appendText(key []byte, text string) []byte { return append(append(key, text...), 0) }

// What an id begins with that is written as its sixteen bytes, and what any other that could be taken for one.
const (
	idMark   = 1
	idNoMark = 2
)

// appendID does the same for an id, whose order among others nobody cares about. Those of this cluster are UUIDs, which
// are written shorter: keys of millions of objects are much of what they take.
func appendID(key []byte, id string) []byte {
	var binary [16]byte
	switch {
	case parseID(id, &binary):
	case id != "" && id[0] <= idNoMark:
		return appendText(append(key, idNoMark), id)
	default:
		return appendText(key, id)
	}
	return append(append(key, idMark), binary[:]...)
}

// parseID reads a UUID in the one form in which it is written here: what differs in text must differ in a key.
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

// pairs are where in a UUID the two digits of each byte begin, and digits what they stand for, or 0xff.
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

// nameKeyOf orders by namespace and then by name.
func nameKeyOf(namespace, name string) string { return namespace + "\x00" + name }
