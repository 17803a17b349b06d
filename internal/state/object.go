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

// key joins parts so that keys are in the order of their parts and no key is the beginning of another one with as
// many parts. No part contains a zero byte, which Validate sees to.
func key(parts ...string) []byte {
	size := len(parts)
	for _, part := range parts {
		size += len(part)
	}
	joined := make([]byte, 0, size)
	for _, part := range parts {
		joined = append(joined, part...)
		joined = append(joined, 0)
	}
	return joined
}

func nameKey(o Object) string {
	return nameKeyOf(o.GetMetadata().GetNamespace(), o.GetMetadata().GetName())
}

// nameKeyOf orders by namespace and then by name.
func nameKeyOf(namespace, name string) string { return namespace + "\x00" + name }
