package api

import (
	"fmt"
	"iter"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Method is what the contract declares about a method. Servers and clients both
// decide by it what they may do with a call.
type Method struct {
	// Name is the name that gRPC uses, such as /cloudless.v1.NodeService/GetNode.
	Name       string
	Descriptor protoreflect.MethodDescriptor
	Caller     v1.Method_Caller
	// Reads says that the method changes nothing.
	Reads      bool
	AnsweredBy v1.Method_AnsweredBy
	// Retry says that the method may be called again after a call that may have
	// taken effect, if the request sets its idempotency key, where it has one.
	Retry bool
	// Verbs are what a role must grant on the kind for the call, such as "update"; one of them is sufficient for a call to be
	// looked at. They are empty for methods that no role grants: those for machines, for everyone, and for every identity.
	Verbs []string
	// Kind is a kind in lower case, such as "workload", or AnyKind. It is empty if Verbs are.
	Kind string
}

// AnyKind is the kind of methods whose requests hold objects of several kinds: their handlers authorize each object.
const AnyKind = "*"

// MethodOf returns the method with a name as gRPC uses it. It is false for
// methods that do not exist and for those that declare no caller: no caller may call
// either.
func MethodOf(name string) (Method, bool) {
	m, ok := methods()[name]
	return m, ok
}

// Methods are all methods that at least one role may call.
func Methods() iter.Seq[Method] {
	return func(yield func(Method) bool) {
		for _, m := range methods() {
			if !yield(m) {
				return
			}
		}
	}
}

// IsOpen reports whether the method is called without an identity.
func (m Method) IsOpen() bool { return m.Caller == v1.Method_ANYONE }

// IsForMembers reports whether servers may call the method only as members.
func (m Method) IsForMembers() bool {
	return m.Caller == v1.Method_MEMBER_SERVER || m.Caller == v1.Method_ANYONE
}

// HasKey reports whether requests have an idempotency key.
func (m Method) HasKey() bool {
	return m.Descriptor.Input().Fields().ByName("idempotency_key") != nil
}

// MayRetry reports whether the same request may be sent again after it may have
// taken effect.
func (m Method) MayRetry(request proto.Message) bool {
	if keyed, ok := request.(interface{ GetIdempotencyKey() string }); ok && !m.Reads {
		return m.Retry && keyed.GetIdempotencyKey() != ""
	}
	return m.Retry
}

// foreignServices are the services of gRPC itself that servers offer. Every
// caller with an identity may use them, and the called server answers.
var foreignServices = []protoreflect.FullName{
	"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
}

// methods reads the declarations of all services that are linked into the program.
var methods = sync.OnceValue(func() map[string]Method {
	all := map[string]Method{}
	add := func(method protoreflect.MethodDescriptor, declared *v1.Method) {
		name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
		all[name] = Method{
			Name: name, Descriptor: method, Caller: declared.GetCaller(), Reads: declared.GetReads(),
			AnsweredBy: declared.GetAnsweredBy(), Retry: declared.GetReads() || declared.GetRetry(),
			Verbs: verbsOf(method, declared), Kind: kindOf(method, declared),
		}
	}
	for service := range services() {
		for method := range each(service.Methods()) {
			if declared := declaration(method); declared.GetCaller() != v1.Method_NOBODY {
				add(method, declared)
			}
		}
	}
	for _, name := range foreignServices {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			continue // this program is no server
		}
		for method := range each(found.(protoreflect.ServiceDescriptor).Methods()) {
			add(method, &v1.Method{Caller: v1.Method_ANY_IDENTITY, AnsweredBy: v1.Method_CALLED_SERVER})
		}
	}
	return all
})

// declaration returns the method's option, which is empty if it has none.
func declaration(method protoreflect.MethodDescriptor) *v1.Method {
	declared, _ := proto.GetExtension(method.Options(), v1.E_Method).(*v1.Method)
	return declared
}

// services are all services of the contract.
func services() iter.Seq[protoreflect.ServiceDescriptor] {
	return func(yield func(protoreflect.ServiceDescriptor) bool) {
		for file := range files() {
			for service := range each(file.Services()) {
				if !yield(service) {
					return
				}
			}
		}
	}
}

// files are the .proto files of the contract.
func files() iter.Seq[protoreflect.FileDescriptor] {
	return func(yield func(protoreflect.FileDescriptor) bool) {
		protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
			return !strings.HasPrefix(string(file.Package()), "cloudless.") || yield(file)
		})
	}
}

// each iterates over a list of descriptors.
func each[D any](list interface {
	Len() int
	Get(i int) D
},
) iter.Seq[D] {
	return func(yield func(D) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}
