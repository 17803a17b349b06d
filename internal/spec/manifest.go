package spec

import (
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// manifestObject is the oneof that holds the object of a manifest.
var manifestObject = (&v1.Manifest{}).ProtoReflect().Descriptor().Oneofs().ByName("object")

// manifestObjects yields an empty object of each kind that a manifest can hold.
func manifestObjects() iter.Seq[proto.Message] {
	return func(yield func(proto.Message) bool) {
		fields := manifestObject.Fields()
		for i := range fields.Len() {
			if !yield((&v1.Manifest{}).ProtoReflect().NewField(fields.Get(i)).Message().Interface()) {
				return
			}
		}
	}
}

// ManifestOf puts an object into a manifest. It returns nil for kinds that files cannot hold.
func ManifestOf(o proto.Message) *v1.Manifest {
	fields := manifestObject.Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() == o.ProtoReflect().Descriptor() {
			m := &v1.Manifest{}
			m.ProtoReflect().Set(f, protoreflect.ValueOfMessage(o.ProtoReflect()))
			return m
		}
	}
	return nil
}

// ObjectIn returns the object of a manifest and the name of its field, or nil if the manifest is empty.
func ObjectIn(m *v1.Manifest) (o proto.Message, field string) {
	f := m.ProtoReflect().WhichOneof(manifestObject)
	if f == nil {
		return nil, ""
	}
	return m.ProtoReflect().Get(f).Message().Interface(), f.JSONName()
}

// WorkloadsIn returns the workloads among some manifests.
func WorkloadsIn(all []*v1.Manifest) (workloads []*v1.Workload) {
	for _, m := range all {
		if w := m.GetWorkload(); w != nil {
			workloads = append(workloads, w)
		}
	}
	return workloads
}
