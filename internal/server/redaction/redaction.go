// Package redaction hides in answers and in refusals what callers may not see. Who may not update a workload sees that a variable is set,
// and not its value. Who may not see a namespace learns that replicas would make room for another one, and not which.
//
// It works on whole answers of any type, by their descriptors, so that no method can forget it. It knows no method, and it
// never changes an answer in place, because answers share their parts with the state.
package redaction

import (
	"strings"
	"sync"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// Hide returns an answer as a caller may see it.
func Hide(p core.Principal, answer any) any {
	message, ok := answer.(proto.Message)
	if !ok || !p.IsUser() || p.Can(api.VerbUpdate, "workload", "") && p.Can(api.VerbGet, "workload", "") || !holdsValues(message.ProtoReflect().Descriptor()) {
		return answer
	}
	hidden := false
	each(message.ProtoReflect(), "", func(namespace string, part proto.Message) {
		hidden = hidden || hasValues(part) && !p.Can(verbFor(part), "workload", namespace)
	})
	if !hidden {
		return answer
	}
	message = proto.Clone(message)
	each(message.ProtoReflect(), "", func(namespace string, part proto.Message) {
		if !p.Can(verbFor(part), "workload", namespace) {
			hide(part)
		}
	})
	return message
}

// HideInError returns an error as a caller may see it: objects in its details are as in answers, and those that the caller
// may not get are left out.
func HideInError(p core.Principal, err error) error {
	if err == nil || !p.IsUser() {
		return err
	}
	st := status.Convert(err).Proto()
	if len(st.GetDetails()) == 0 {
		return err
	}
	kept := st.Details[:0]
	for _, detail := range st.GetDetails() {
		message, unknown := detail.UnmarshalNew()
		if unknown != nil || !mayGet(p, message) {
			continue
		}
		if packed, failed := anypb.New(Hide(p, message).(proto.Message)); failed == nil {
			kept = append(kept, packed)
		}
	}
	st.Details = kept
	return status.FromProto(st).Err()
}

// mayGet reports whether a caller may see a detail of an error. Only objects are limited by roles.
func mayGet(p core.Principal, detail proto.Message) bool {
	object, ok := detail.(interface{ GetMetadata() *v1.Metadata })
	if !ok {
		return true
	}
	kind, namespace := strings.ToLower(string(detail.ProtoReflect().Descriptor().Name())), object.GetMetadata().GetNamespace()
	if kind == "namespace" {
		namespace = object.GetMetadata().GetName()
	}
	return p.Can(api.VerbGet, kind, namespace)
}

// verbFor is what a caller must be permitted to do with workloads to see a part of an answer.
func verbFor(part proto.Message) string {
	switch part.(type) {
	case *v1.Preemption, *v1.Displaced:
		return api.VerbGet
	}
	return api.VerbUpdate
}

// hiddenName stands for a workload or a replica in a namespace that the caller may not see.
const hiddenName = "(another)"

func hasValues(part proto.Message) bool {
	switch part := part.(type) {
	case *v1.WorkloadSpec:
		return len(part.GetEnv()) > 0
	case *v1.PlanChange:
		for _, field := range part.GetFields() {
			if spec.IsVariable(field.GetPath()) {
				return true
			}
		}
	case *v1.Preemption, *v1.Displaced:
		return true
	}
	return false
}

func hide(part proto.Message) {
	switch part := part.(type) {
	case *v1.WorkloadSpec:
		for name := range part.GetEnv() {
			part.Env[name] = spec.HiddenValue
		}
	case *v1.Preemption:
		part.Namespace, part.Workload, part.Replica = hiddenName, hiddenName, hiddenName
	case *v1.Displaced:
		part.Namespace, part.Workload, part.Replica = hiddenName, hiddenName, hiddenName
	case *v1.PlanChange:
		for _, field := range part.GetFields() {
			if !spec.IsVariable(field.GetPath()) {
				continue
			}
			for _, value := range []*string{&field.Before, &field.After} {
				if *value != "" {
					*value = spec.HiddenValue
				}
			}
		}
	}
}

// each calls f with the parts of a message that hold values of variables, and the namespaces that they are in.
func each(m protoreflect.Message, namespace string, f func(namespace string, part proto.Message)) {
	if o, ok := m.Interface().(interface{ GetMetadata() *v1.Metadata }); ok && o.GetMetadata() != nil {
		namespace = o.GetMetadata().GetNamespace()
	}
	switch part := m.Interface().(type) {
	case *v1.WorkloadSpec:
		f(namespace, part)
		return
	case interface{ GetNamespace() string }:
		if isPart(m.Descriptor()) {
			f(part.GetNamespace(), m.Interface())
			return
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if inside := field.MapValue().Message(); inside != nil && holdsValues(inside) {
				value.Map().Range(func(_ protoreflect.MapKey, one protoreflect.Value) bool {
					each(one.Message(), namespace, f)
					return true
				})
			}
		case field.Message() == nil || !holdsValues(field.Message()):
		case field.IsList():
			for i := range value.List().Len() {
				each(value.List().Get(i).Message(), namespace, f)
			}
		default:
			each(value.Message(), namespace, f)
		}
		return true
	})
}

var known sync.Map // from the full names of messages to whether they can hold values

// holdsValues reports whether messages of a type can hold values of variables, themselves or in their parts.
func holdsValues(d protoreflect.MessageDescriptor) bool {
	if found, ok := known.Load(d.FullName()); ok {
		return found.(bool)
	}
	found := reaches(d, map[protoreflect.FullName]bool{})
	known.Store(d.FullName(), found)
	return found
}

// isPart reports whether messages of a type hold themselves what may have to be hidden.
func isPart(d protoreflect.MessageDescriptor) bool {
	switch d.FullName() {
	case "cloudless.v1.WorkloadSpec", "cloudless.v1.PlanChange", "cloudless.v1.Preemption", "cloudless.v1.Displaced":
		return true
	}
	return false
}

func reaches(d protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	if isPart(d) {
		return true
	}
	if seen[d.FullName()] {
		return false
	}
	seen[d.FullName()] = true
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		if field.IsMap() {
			field = field.MapValue()
		}
		if field.Message() != nil && reaches(field.Message(), seen) {
			return true
		}
	}
	return false
}
