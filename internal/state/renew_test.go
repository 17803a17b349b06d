package state

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Fails if a field is added to the API that RenewReplica does not copy.
func TestRenewedReplicaDiffersOnlyInItsStatus(t *testing.T) {
	stored := &v1.Replica{}
	fill(stored.ProtoReflect())
	fill(stored.Metadata.ProtoReflect())
	status := &v1.ReplicaStatus{Phase: "running"}
	want := proto.CloneOf(stored)
	want.Status = status
	got := RenewReplica(stored, status)
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got.GetMetadata() == stored.GetMetadata() {
		t.Error("the version of the stored replica would change with the new one")
	}
}

// fill sets every field of a message.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
		case f.IsList():
			m.Mutable(f).List().AppendMutable()
		case f.Message() != nil:
			m.Mutable(f)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("text of "+f.TextName()))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(7))
		default:
			panic("fill does not know the kind " + f.Kind().String())
		}
	}
}
