package api_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloudless/cloudless/api"
	_ "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func sample() *v1.Workload {
	w := &v1.Workload{
		ApiVersion: "cloudless/v1", Kind: "Workload",
		Metadata: &v1.Metadata{
			Uid: "u", Name: "web", Version: 1 << 60, Labels: map[string]string{"app": "shop", "tier": ""},
			CreateTime: &timestamppb.Timestamp{Seconds: -1, Nanos: 5},
		},
		Spec:   &v1.WorkloadSpec{Image: "web:1", Replicas: proto.Int32(0), Args: []string{"", "ä"}},
		Status: &v1.WorkloadStatus{Revision: 3, Unplaced: []*v1.NodeReason{{}, {Node: "n"}}},
	}
	w.ProtoReflect().SetUnknown(protoreflect.RawFields{0xfa, 0x7f, 1, 'x'}) // of a later release
	return w
}

// Messages can be exchanged with gRPC's own codec in both directions.
func TestCodecsAreCompatibleWithGRPC(t *testing.T) {
	usual := encoding.GetCodecV2("proto")
	large := sample()
	for range 1000 {
		large.Spec.Args = append(large.Spec.Args, "a long list goes through a pool of buffers")
	}
	codecs := map[string]encoding.CodecV2{"server": api.ServerCodec(), "client": api.ClientCodec()}
	for name, codec := range codecs {
		if codec.Name() != usual.Name() {
			t.Errorf("the %s codec is called %s", name, codec.Name())
		}
		for _, message := range []proto.Message{sample(), large, &v1.Workload{}, &healthv1.HealthCheckRequest{Service: "s"}} {
			for from, to := range map[encoding.CodecV2]encoding.CodecV2{codec: usual, usual: codec} {
				data, err := from.Marshal(message)
				if err != nil {
					t.Fatal(err)
				}
				got := message.ProtoReflect().New().Interface()
				if err := to.Unmarshal(data, got); err != nil || !proto.Equal(got, message) {
					t.Errorf("with the %s codec, %v became %v (%v)", name, message, got, err)
				}
				data.Free()
			}
		}
	}
}

// Strings from clients must be valid UTF-8, because they are stored and shown as JSON.
func TestServerRefusesInvalidUTF8(t *testing.T) {
	broken, err := (&v1.Workload{Kind: "\xff"}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if err := api.ServerCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(broken)}, &v1.Workload{}); err == nil {
		t.Error("a string that is not valid UTF-8 was accepted")
	}
}

// The generated code encodes every field of every message. A missing field would be
// lost in the log. If this fails, run make generate.
func TestGeneratedCodeKnowsEveryField(t *testing.T) {
	messages := 0
	protoregistry.GlobalTypes.RangeMessages(func(about protoreflect.MessageType) bool {
		if !strings.HasPrefix(string(about.Descriptor().FullName()), "cloudless.") {
			return true
		}
		messages++
		for i := range about.Descriptor().Fields().Len() { // one at a time, because only one field of a oneof can be set
			want := about.New()
			fill(want, about.Descriptor().Fields().Get(i))
			data, err := api.ServerCodec().Marshal(want.Interface())
			if err != nil {
				t.Fatal(err)
			}
			byProtobuf, byCode := about.New().Interface(), about.New().Interface()
			if err := api.ServerCodec().Unmarshal(data, byProtobuf); err != nil || !proto.Equal(byProtobuf, want.Interface()) {
				t.Errorf("encoded, %v is %v (%v)", want, byProtobuf, err)
			}
			if err := api.ClientCodec().Unmarshal(data, byCode); err != nil || !proto.Equal(byCode, want.Interface()) {
				t.Errorf("decoded, %v is %v (%v)", want, byCode, err)
			}
		}
		return true
	})
	if messages < 100 {
		t.Errorf("only %d messages were checked", messages)
	}
}

// fill sets a field to a value other than its default.
func fill(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsMap():
		entries := m.Mutable(field).Map()
		value := entries.NewValue()
		if field.MapValue().Message() == nil {
			value = single(field.MapValue())
		}
		entries.Set(single(field.MapKey()).MapKey(), value)
	case field.IsList() && field.Message() != nil:
		m.Mutable(field).List().AppendMutable()
	case field.IsList():
		m.Mutable(field).List().Append(single(field))
	case field.Message() != nil:
		m.Mutable(field)
	default:
		m.Set(field, single(field))
	}
}

func single(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1.5)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1.5)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(-1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(1)
	default:
		return protoreflect.ValueOfInt64(-1)
	}
}
