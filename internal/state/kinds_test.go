package state_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Fails when kinds_gen.go is older than state.proto.
func TestEveryKindIsStored(t *testing.T) {
	for _, field := range storedKinds() {
		kind, object := state.Kind(field.Name()), newObject(field, "u1", "a")
		if kind == state.KindMark {
			continue // see marks_test.go
		}
		store := state.New()
		create(t, store, 1, object)
		if state.KindOf(object) != kind || store.Snapshot().Get(kind, "u1") != object || store.Snapshot().Count(kind) != 1 {
			t.Errorf("the kind %q is not stored", kind)
		}
	}
}

// Fails when kinds_gen.go is older than state.proto, or when a kind with own_getters has none.
func TestEveryKindHasGetters(t *testing.T) {
	returned := map[reflect.Type]bool{}
	snapshot := reflect.TypeFor[*state.Snapshot]()
	for i := range snapshot.NumMethod() {
		result := snapshot.Method(i).Type.Out(0)
		if result.Kind() == reflect.Func && result.CanSeq() { // a list
			result = result.In(0).In(0)
		}
		returned[result] = true
	}
	for _, field := range storedKinds() {
		if !returned[reflect.TypeOf(newObject(field, "u1", "a"))] {
			t.Errorf("no method of state.Snapshot returns a %s: run make generate", field.Name())
		}
	}
}

func TestOptionsOfKindsAreEnforced(t *testing.T) {
	for _, field := range storedKinds() {
		if state.Kind(field.Name()) == state.KindMark {
			continue // transactions cannot put one
		}
		isSet := func(option protoreflect.ExtensionType) bool {
			return proto.GetExtension(field.Options(), option).(bool)
		}
		for _, c := range []struct {
			what    string
			second  state.Object
			refused bool
		}{
			{"a second object", newObject(field, "u2", "b"), isSet(statev1.E_Single)},
			{"a second object with the same name", newObject(field, "u2", "a"), isSet(statev1.E_Single) || isSet(statev1.E_Named)},
			{"an object without a name", newObject(field, "u2", ""), isSet(statev1.E_Single) || isSet(statev1.E_Named)},
		} {
			store := state.New()
			create(t, store, 1, newObject(field, "u1", "a"))
			var b state.Batch
			b.Create(c.second)
			if _, err := store.Apply(2, b.Transaction(noon)); (err != nil) != c.refused {
				t.Errorf("%s: %s: got the error %v, want one: %t", field.Name(), c.what, err, c.refused)
			}
		}
	}
}

// storedKinds are the fields of statev1.Object, one for each kind.
func storedKinds() []protoreflect.FieldDescriptor {
	fields := (&statev1.Object{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	kinds := make([]protoreflect.FieldDescriptor, fields.Len())
	for i := range kinds {
		kinds[i] = fields.Get(i)
	}
	return kinds
}

func newObject(field protoreflect.FieldDescriptor, uid, name string) state.Object {
	message := (&statev1.Object{}).ProtoReflect().Mutable(field).Message()
	metadata := &v1.Metadata{Uid: uid, Name: name}
	message.Set(message.Descriptor().Fields().ByName("metadata"), protoreflect.ValueOfMessage(metadata.ProtoReflect()))
	return message.Interface().(state.Object)
}
