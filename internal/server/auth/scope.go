package auth

import (
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// scope is how the requests of a method say which namespace they are about.
type scope struct {
	need core.Need
	// path leads to the field with the namespace; empty if there is none.
	path []protoreflect.FieldDescriptor
	// byName says that the path leads to a name that includes the namespace.
	byName func(name string) string
	// lists says that an empty namespace stands for all that the caller may see, and not for the default one.
	lists bool
}

// needOf returns what a request needs; false for requests whose methods need no role, or whose handlers authorize the
// objects in them.
func needOf(method string, request any) (core.Need, bool) {
	s, ok := scopes()[method]
	message, isMessage := request.(proto.Message)
	if !ok || !isMessage {
		return core.Need{}, false
	}
	need := s.need
	if len(s.path) == 0 {
		need.Somewhere = s.lists
		return need, true
	}
	value := textAt(message.ProtoReflect(), s.path)
	switch {
	case s.byName != nil:
		need.Namespace = s.byName(value)
	case value != "":
		need.Namespace = value
	case s.lists:
		need.Somewhere = true
	default:
		need.Namespace = spec.DefaultNamespace
	}
	return need, true
}

func textAt(m protoreflect.Message, path []protoreflect.FieldDescriptor) string {
	for _, field := range path[:len(path)-1] {
		if !m.Has(field) {
			return ""
		}
		m = m.Get(field).Message()
	}
	return m.Get(path[len(path)-1]).String()
}

// scopes are those of all methods for roles, by the names of the methods.
var scopes = sync.OnceValue(func() map[string]scope {
	all := map[string]scope{}
	for m := range api.Methods() {
		if !m.IsForRoles() || m.Kind == api.AnyKind {
			continue
		}
		s := scope{need: core.Need{Verbs: m.Verbs, Kind: m.Kind}, lists: lists(m)}
		switch {
		case m.Kind == "namespace" && m.Reads:
			s.path, s.byName = nameIn(m), func(name string) string { return name }
		case m.Kind == "image":
			s.path, s.byName = nameIn(m), roles.NamespaceOfImage
		case roles.Scoped(m.Verbs[0], m.Kind):
			s.path = namespaceIn(m)
		default:
			s.lists = false
		}
		all[m.Name] = s
	}
	return all
})

// lists reports whether a method shows the objects of all namespaces if the request names none.
func lists(m api.Method) bool {
	name := string(m.Descriptor.Name())
	if m.Kind == "object" { // they are in a bucket, which is in one namespace
		return false
	}
	return m.Reads && (strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Watch")) || m.Name == v1.WorkloadService_GetUsage_FullMethodName
}

func nameIn(m api.Method) []protoreflect.FieldDescriptor {
	if name := m.Descriptor.Input().Fields().ByName("name"); name != nil {
		return []protoreflect.FieldDescriptor{name}
	}
	return nil
}

// namespaceIn finds the namespace in a request: a field of its own, that of a selection, or of the first message of a
// stream, or that in the metadata of the object that the request holds.
func namespaceIn(m api.Method) []protoreflect.FieldDescriptor {
	fields := m.Descriptor.Input().Fields()
	if own := fields.ByName("namespace"); own != nil {
		return []protoreflect.FieldDescriptor{own}
	}
	for _, around := range []protoreflect.Name{"selection", "start", "header", protoreflect.Name(m.Kind)} {
		field := fields.ByName(around)
		if field == nil || field.Message() == nil {
			continue
		}
		inside := field.Message().Fields()
		if own := inside.ByName("namespace"); own != nil {
			return []protoreflect.FieldDescriptor{field, own}
		}
		if metadata := inside.ByName("metadata"); metadata != nil {
			return []protoreflect.FieldDescriptor{field, metadata, metadata.Message().Fields().ByName("namespace")}
		}
	}
	return nil
}
