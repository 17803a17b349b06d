package rules

import (
	"errors"
	"fmt"
	"sync"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The interpreter of the rules keeps every violation that it finds, at about 2 KB each. A message of a few megabytes
// could have a million of them. So violations are collected in an excerpt of the message; the whole message is checked
// only until the first violation.

// interpreter is built when it is first needed: it compiles the rules, which
// programs that validate nothing must not pay for. It has no state but a cache.
var interpreter = sync.OnceValues(func() (protovalidate.Validator, error) { return protovalidate.New() })

// excerptEntries is how many entries of lists and maps an excerpt has in all. It is more than any rule allows for one
// list, so that a list that is too long is detected.
const excerptEntries = 2000

// Broken returns violations of the API's rules: those of an excerpt, or else the first one.
func Broken(msg proto.Message) ([]*protovalidate.Violation, error) {
	validator, err := interpreter()
	if err != nil {
		return nil, fmt.Errorf("prepare the rules of the contract: %w", err)
	}
	left := excerptEntries
	part := excerpt(msg.ProtoReflect(), &left).Interface()
	found, err := violations(validator.Validate(part))
	if err != nil || len(found) > 0 || left > 0 { // with entries left, the excerpt is the message
		return found, err
	}
	return violations(validator.Validate(msg, protovalidate.WithFailFast()))
}

func violations(err error) ([]*protovalidate.Violation, error) {
	if err == nil {
		return nil, nil
	}
	if found, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		return found.Violations, nil
	}
	return nil, err
}

// excerpt copies a message with the first entries of its lists and maps, as many as are left. Every list keeps its
// first entry: a rule may require one.
func excerpt(m protoreflect.Message, left *int) protoreflect.Message {
	part := m.New()
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			entries := part.Mutable(field).Map()
			v.Map().Range(func(key protoreflect.MapKey, entry protoreflect.Value) bool {
				entries.Set(key, excerptValue(field.MapValue(), entry, left))
				return *left > 0
			})
		case field.IsList():
			items := part.Mutable(field).List()
			for i := 0; i < v.List().Len() && (i == 0 || *left > 0); i++ {
				items.Append(excerptValue(field, v.List().Get(i), left))
			}
		case field.Message() != nil:
			part.Set(field, protoreflect.ValueOfMessage(excerpt(v.Message(), left)))
		default:
			part.Set(field, v)
		}
		return true
	})
	return part
}

// excerptValue is one entry of a list or map.
func excerptValue(field protoreflect.FieldDescriptor, v protoreflect.Value, left *int) protoreflect.Value {
	*left--
	if field.Message() == nil {
		return v
	}
	return protoreflect.ValueOfMessage(excerpt(v.Message(), left))
}
