package rules

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// For every message of the API, a proved message is valid by the interpreter. For the
// most frequent messages, every valid one is proved.
func TestProofsAgreeWithTheRules(t *testing.T) {
	always := map[protoreflect.FullName]bool{}
	for _, m := range []proto.Message{
		&v1.CreateWorkloadRequest{}, &v1.ApplyWorkloadRequest{}, &v1.UpdateWorkloadRequest{}, &v1.ScaleWorkloadRequest{},
		&v1.DeleteWorkloadRequest{}, &v1.GetWorkloadRequest{}, &v1.ListWorkloadsRequest{}, &v1.ListReplicasRequest{}, &v1.WhoAmIRequest{},
	} {
		always[m.ProtoReflect().Descriptor().FullName()] = true
	}
	protoregistry.GlobalTypes.RangeMessages(func(kind protoreflect.MessageType) bool {
		if kind.Descriptor().ParentFile().Package() != "cloudless.v1" {
			return true
		}
		t.Run(string(kind.Descriptor().Name()), rapid.MakeCheck(func(t *rapid.T) {
			m := kind.New()
			fillAtRandom(t, m, 4)
			broken, err := Broken(m.Interface())
			if err != nil {
				t.Fatal(err)
			}
			switch proof := Proved(m); {
			case proof && len(broken) > 0:
				t.Fatalf("%v is proved but invalid: %v", m, broken)
			case !proof && len(broken) == 0 && always[kind.Descriptor().FullName()]:
				t.Fatalf("%v is valid but not proved", m)
			}
		}))
		return true
	})
}

// fillAtRandom sets fields to values that are often at the edge of a rule.
func fillAtRandom(t *rapid.T, m protoreflect.Message, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		// Most fields stay unset, so that some messages are valid.
		if rapid.IntRange(0, 2).Draw(t, "set") != 0 && field.Message() == nil || depth == 0 {
			continue
		}
		switch {
		case field.IsMap():
			for range rapid.IntRange(0, 2).Draw(t, "entries") {
				if field.MapValue().Message() == nil {
					m.Mutable(field).Map().Set(atRandom(t, field.MapKey()).MapKey(), atRandom(t, field.MapValue()))
				}
			}
		case field.IsList():
			for range rapid.IntRange(0, 2).Draw(t, "items") {
				list := m.Mutable(field).List()
				if field.Message() != nil {
					fillAtRandom(t, list.AppendMutable().Message(), depth-1)
				} else {
					list.Append(atRandom(t, field))
				}
			}
		case field.Message() != nil:
			if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
				fillAtRandom(t, m.Mutable(field).Message(), depth-1)
			}
		default:
			m.Set(field, atRandom(t, field))
		}
	}
}

func atRandom(t *rapid.T, field protoreflect.FieldDescriptor) protoreflect.Value {
	numbers := rapid.SampledFrom([]int64{-1, 0, 1, 2, 7, 1000, 1001, 65535, 65536, 100000, 100001})
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(words().Draw(t, string(field.Name())))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(words().Draw(t, string(field.Name()))))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, string(field.Name())))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(numbers.Draw(t, string(field.Name()))))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(numbers.Draw(t, string(field.Name())))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(numbers.Draw(t, string(field.Name()))))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(numbers.Draw(t, string(field.Name()))))
	default:
		return field.Default()
	}
}

// words are strings that some rule allows, and strings that none allows.
func words() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "a", "web", "hello:1", "cloudless/v1", "Workload", "container", "node", "host", "tcp", "always", "SIGTERM", "admin",
			"info", "/tmp", "1s", "1h30m", "250m", "1.5Gi", "example.com/a", "-", "Web", "ü", "a\n", "1:1",
		}),
		rapid.Map(rapid.SampledFrom([]int{32, 33, 63, 64, 128, 129, 253, 254, 512, 513, 1024, 1025, 4096, 4097}), func(n int) string {
			return strings.Repeat("a", n)
		}),
		rapid.Map(rapid.SampledFrom([]int{64, 512, 1024, 4095}), func(n int) string { return "/" + strings.Repeat("ü", n) }),
	)
}

// Each function agrees with the regular expression that it replaces.
func TestExpressionsMatchTheContract(t *testing.T) {
	pattern := regexp.MustCompile(`this\.matches\('(.*)'\)`)
	for text, check := range expressions {
		found := pattern.FindStringSubmatch(text)
		if found == nil {
			continue
		}
		matches, orEmpty := regexp.MustCompile(found[1]), strings.Contains(text, "this == ''")
		t.Run(found[1], rapid.MakeCheck(func(t *rapid.T) {
			s := rapid.OneOf(rapid.StringMatching(found[1]), words()).Draw(t, "text")
			if at := rapid.IntRange(0, len(s)).Draw(t, "at"); rapid.Bool().Draw(t, "damaged") {
				s = s[:at] + rapid.SampledFrom([]string{"", "0", "a", "A", ".", "-", "_", "/", ":", "i", "m", "s", "é", "\n", " "}).Draw(t, "with") + s[at:]
			}
			if want := matches.MatchString(s) || orEmpty && s == ""; check(s) != want {
				t.Fatalf("%q: %v, the rule says %v", s, check(s), want)
			}
		}))
	}
}

// An unknown rule proves nothing, whatever rules accompany it.
func TestUnknownRulesAreLeftToTheInterpreter(t *testing.T) {
	field := (&v1.Metadata{}).ProtoReflect().Descriptor().Fields().ByName("name")
	if expression(field, "this == 'whatever'")(protoreflect.ValueOfString("whatever")) {
		t.Error("an expression without a function proved a message")
	}
}

// The proofs are worth their code as long as they are many times faster than the interpreter.
func BenchmarkValidRequest(b *testing.B) {
	request := &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:     &v1.WorkloadSpec{Image: "web:1", Replicas: proto.Int32(3), Env: map[string]string{"A": "b"}},
	}}
	b.Run("compiled", func(b *testing.B) {
		for b.Loop() {
			if !Proved(request.ProtoReflect()) {
				b.Fatal("a valid request is not proved")
			}
		}
	})
	b.Run("interpreted", func(b *testing.B) {
		for b.Loop() {
			if broken, err := Broken(request); err != nil || len(broken) > 0 {
				b.Fatal(broken, err)
			}
		}
	})
}
