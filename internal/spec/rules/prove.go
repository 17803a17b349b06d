package rules

import (
	"slices"
	"sync"
	"unicode/utf8"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Nearly every request is valid. Interpreting the validation rules of the .proto files
// to find that out costs more than the rest of a small call. A proof is the same rules
// compiled to functions. It never accepts an invalid message. It may reject a valid one,
// because it does not know every rule; then the interpreter decides and words the error.
//
// Measured with BenchmarkValidRequest: a request that creates a workload takes 2.5 µs instead of 17.5 µs, and 10
// allocations instead of 76. The whole call takes about 200 µs of CPU.

// proof validates messages of one type. The first use of a type compiles it.
type proof struct {
	checks []messageCheck
}

type (
	messageCheck func(protoreflect.Message) bool
	valueCheck   func(protoreflect.Value) bool
)

// proofs caches the compiled proofs of all types seen so far.
var proofs sync.Map // of protoreflect.MessageDescriptor to *proof

// Proved reports whether a message is certainly valid.
func Proved(m protoreflect.Message) bool {
	known, ok := proofs.Load(m.Descriptor())
	if !ok {
		compiling := map[protoreflect.MessageDescriptor]*proof{}
		compile(m.Descriptor(), compiling)
		for described, p := range compiling {
			proofs.LoadOrStore(described, p) // concurrent compilations give equal proofs
		}
		known = compiling[m.Descriptor()]
	}
	return known.(*proof).holds(m)
}

func (p *proof) holds(m protoreflect.Message) bool {
	for _, check := range p.checks {
		if !check(m) {
			return false
		}
	}
	return true
}

func compile(described protoreflect.MessageDescriptor, all map[protoreflect.MessageDescriptor]*proof) *proof {
	if p, ok := all[described]; ok {
		return p
	}
	p := &proof{}
	all[described] = p
	if rules, err := protovalidate.ResolveMessageRules(described); err != nil || !empty(rules) {
		p.checks = []messageCheck{func(protoreflect.Message) bool { return false }}
		return p
	}
	for i := range described.Oneofs().Len() {
		if rules, err := protovalidate.ResolveOneofRules(described.Oneofs().Get(i)); err != nil || !empty(rules) {
			p.checks = []messageCheck{func(protoreflect.Message) bool { return false }}
			return p
		}
	}
	for i := range described.Fields().Len() {
		if check := compileField(described.Fields().Get(i), all); check != nil {
			p.checks = append(p.checks, check)
		}
	}
	return p
}

// compileField returns nil for a field without rules.
func compileField(field protoreflect.FieldDescriptor, all map[protoreflect.MessageDescriptor]*proof) messageCheck {
	rules, err := protovalidate.ResolveFieldRules(field)
	if err != nil {
		return func(protoreflect.Message) bool { return false }
	}
	check := compileValue(field, rules, all)
	required := rules.GetRequired()
	if check == nil && !required {
		return nil
	}
	// Most fields are unset, and the result for an unset field never changes.
	unset := !required && (field.HasPresence() || check(dynamicpb.NewMessage(field.ContainingMessage()).Get(field)))
	return func(m protoreflect.Message) bool {
		if !m.Has(field) {
			return unset
		}
		return check == nil || check(m.Get(field))
	}
}

func compileValue(field protoreflect.FieldDescriptor, rules *validate.FieldRules, all map[protoreflect.MessageDescriptor]*proof) valueCheck {
	switch {
	case field.IsMap():
		return compileMap(field, rules, all)
	case field.IsList():
		return compileList(field, rules, all)
	default:
		return compileSingle(field, rules, all)
	}
}

// compileSingle compiles the rules of a scalar or message, also inside a list or map.
func compileSingle(field protoreflect.FieldDescriptor, rules *validate.FieldRules, all map[protoreflect.MessageDescriptor]*proof) valueCheck {
	if field.Message() != nil {
		if known(rules, "required") {
			embedded := compile(field.Message(), all)
			return func(v protoreflect.Value) bool { return embedded.holds(v.Message()) }
		}
		return unknown
	}
	var checks []valueCheck
	for _, rule := range rules.GetCel() {
		checks = append(checks, expression(field, rule.GetExpression()))
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		checks = append(checks, stringRules(rules.GetString())...)
	case protoreflect.BytesKind:
		checks = append(checks, lengthRules(rules.GetBytes(), func(v protoreflect.Value) int { return len(v.Bytes()) })...)
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		checks = append(checks, rangeRules(anyOf(rules.GetInt32(), rules.GetInt64()), protoreflect.Value.Int)...)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		checks = append(checks, rangeRules(anyOf(rules.GetUint32(), rules.GetUint64()), protoreflect.Value.Uint)...)
	}
	if !known(rules, "required", "cel", "string", "bytes", "int32", "int64", "uint32", "uint64") {
		checks = append(checks, unknown)
	}
	return together(checks)
}

func compileList(field protoreflect.FieldDescriptor, rules *validate.FieldRules, all map[protoreflect.MessageDescriptor]*proof) valueCheck {
	list := rules.GetRepeated()
	checks := lengthRules(list, func(v protoreflect.Value) int { return v.List().Len() })
	if item := compileSingle(field, list.GetItems(), all); item != nil {
		checks = append(checks, func(v protoreflect.Value) bool {
			items := v.List()
			for i := range items.Len() {
				if !item(items.Get(i)) {
					return false
				}
			}
			return true
		})
	}
	if !known(rules, "required", "repeated") {
		checks = append(checks, unknown)
	}
	return together(checks)
}

func compileMap(field protoreflect.FieldDescriptor, rules *validate.FieldRules, all map[protoreflect.MessageDescriptor]*proof) valueCheck {
	entries := rules.GetMap()
	checks := lengthRules(entries, func(v protoreflect.Value) int { return v.Map().Len() })
	key := compileSingle(field.MapKey(), entries.GetKeys(), all)
	value := compileSingle(field.MapValue(), entries.GetValues(), all)
	if key != nil || value != nil {
		checks = append(checks, func(v protoreflect.Value) (right bool) {
			right = true
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				right = (key == nil || key(k.Value())) && (value == nil || value(v))
				return right
			})
			return right
		})
	}
	if !known(rules, "required", "map") {
		checks = append(checks, unknown)
	}
	return together(checks)
}

func stringRules(rules *validate.StringRules) []valueCheck {
	if rules == nil {
		return nil
	}
	var checks []valueCheck
	rules.ProtoReflect().Range(func(rule protoreflect.FieldDescriptor, limit protoreflect.Value) bool {
		check := unknown
		switch {
		case rule.IsExtension():
			check = predefined(rule, limit)
		case rule.Name() == "in":
			allowed := rules.GetIn()
			check = func(v protoreflect.Value) bool { return slices.Contains(allowed, v.String()) }
		case rule.Name() == "min_len":
			check = func(v protoreflect.Value) bool { return uint64(utf8.RuneCountInString(v.String())) >= limit.Uint() }
		case rule.Name() == "max_len":
			check = func(v protoreflect.Value) bool {
				// No string has more characters than bytes.
				return uint64(len(v.String())) <= limit.Uint() || uint64(utf8.RuneCountInString(v.String())) <= limit.Uint()
			}
		}
		checks = append(checks, check)
		return true
	})
	return append(checks, unlessWhole(rules)...)
}

// predefined compiles one of the rules in rules.proto: an expression that a field
// option enables.
func predefined(rule protoreflect.FieldDescriptor, on protoreflect.Value) valueCheck {
	rules, err := protovalidate.ResolvePredefinedRules(rule)
	if err != nil || rule.Kind() != protoreflect.BoolKind || !on.Bool() || !known(rules, "cel") {
		return unknown
	}
	var checks []valueCheck
	for _, one := range rules.GetCel() {
		checks = append(checks, expression(rule, one.GetExpression()))
	}
	return together(checks)
}

// lengthRules compiles the length limits of lists, maps and bytes.
func lengthRules(rules proto.Message, length func(protoreflect.Value) int) []valueCheck {
	if empty(rules) {
		return nil
	}
	var checks []valueCheck
	rules.ProtoReflect().Range(func(rule protoreflect.FieldDescriptor, limit protoreflect.Value) bool {
		switch rule.Name() {
		case "min_len", "min_items", "min_pairs":
			checks = append(checks, func(v protoreflect.Value) bool { return uint64(length(v)) >= limit.Uint() })
		case "max_len", "max_items", "max_pairs":
			checks = append(checks, func(v protoreflect.Value) bool { return uint64(length(v)) <= limit.Uint() })
		case "items", "keys", "values":
		default:
			checks = append(checks, unknown)
		}
		return true
	})
	return append(checks, unlessWhole(rules)...)
}

// rangeRules compiles the limits of numbers.
func rangeRules[T int64 | uint64](rules proto.Message, number func(protoreflect.Value) T) []valueCheck {
	if empty(rules) {
		return nil
	}
	var checks []valueCheck
	var atLeast, atMost *T
	rules.ProtoReflect().Range(func(rule protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		limit := number(value)
		switch rule.Name() {
		case "gte":
			atLeast = &limit
			checks = append(checks, func(v protoreflect.Value) bool { return number(v) >= limit })
		case "lte":
			atMost = &limit
			checks = append(checks, func(v protoreflect.Value) bool { return number(v) <= limit })
		default:
			checks = append(checks, unknown)
		}
		return true
	})
	if atLeast != nil && atMost != nil && *atLeast > *atMost { // means: outside of this range
		checks = append(checks, unknown)
	}
	return append(checks, unlessWhole(rules)...)
}

// unknown is the check for a rule that has no function. It leaves the value to the
// interpreter.
func unknown(protoreflect.Value) bool { return false }

func together(checks []valueCheck) valueCheck {
	switch len(checks) {
	case 0:
		return nil
	case 1:
		return checks[0]
	}
	return func(v protoreflect.Value) bool {
		for _, check := range checks {
			if !check(v) {
				return false
			}
		}
		return true
	}
}

// known reports whether all rules have one of these names.
func known(rules proto.Message, names ...protoreflect.Name) bool {
	if !rules.ProtoReflect().IsValid() {
		return true
	}
	all := true
	rules.ProtoReflect().Range(func(rule protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		all = slices.Contains(names, rule.Name())
		return all
	})
	return all && len(rules.ProtoReflect().GetUnknown()) == 0
}

func empty(rules proto.Message) bool { return known(rules) }

// unlessWhole leaves the value to the interpreter if some rules could not be read.
func unlessWhole(rules proto.Message) []valueCheck {
	if len(rules.ProtoReflect().GetUnknown()) > 0 {
		return []valueCheck{unknown}
	}
	return nil
}

// anyOf returns the valid one of two messages, if any.
func anyOf(a, b proto.Message) proto.Message {
	if a.ProtoReflect().IsValid() {
		return a
	}
	return b
}
