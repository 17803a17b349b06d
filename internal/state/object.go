package state

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Object is a message of one of the stored kinds.
type Object interface {
	proto.Message
	GetMetadata() *v1.Metadata
}

// kindOneof is the choice in statev1.Object of which every alternative is a kind.
var kindOneof = (&statev1.Object{}).ProtoReflect().Descriptor().Oneofs().ByName("kind")

// kindFields are the alternatives by the type of their message.
var kindFields = func() map[protoreflect.FullName]protoreflect.FieldDescriptor {
	fields := kindOneof.Fields()
	byType := make(map[protoreflect.FullName]protoreflect.FieldDescriptor, fields.Len())
	for i := range fields.Len() {
		byType[fields.Get(i).Message().FullName()] = fields.Get(i)
	}
	return byType
}()

// KindOf returns the kind of an object, or "" if objects of its type are not stored.
func KindOf(o Object) Kind {
	field := kindFields[o.ProtoReflect().Descriptor().FullName()]
	if field == nil {
		return ""
	}
	return Kind(field.Name())
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

// wrap puts an object into its alternative; the result is empty if objects of its type are not stored.
func wrap(o Object) *statev1.Object {
	wrapped := &statev1.Object{}
	if field := kindFields[o.ProtoReflect().Descriptor().FullName()]; field != nil {
		wrapped.ProtoReflect().Set(field, protoreflect.ValueOfMessage(o.ProtoReflect()))
	}
	return wrapped
}

// unwrap takes an object out of its alternative; kind is "" if there is none or one that is not known here.
func unwrap(wrapped *statev1.Object) (Kind, Object) {
	message := wrapped.ProtoReflect()
	field := message.WhichOneof(kindOneof)
	if field == nil {
		return "", nil
	}
	object, ok := message.Get(field).Message().Interface().(Object)
	if _, known := ordinals[Kind(field.Name())]; !ok || !known {
		return "", nil
	}
	return Kind(field.Name()), object
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

func uidKey(o Object) []byte { return key(o.GetMetadata().GetUid()) }

func nameKey(o Object) []byte {
	return key(o.GetMetadata().GetNamespace(), o.GetMetadata().GetName())
}
