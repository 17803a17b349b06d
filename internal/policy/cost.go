package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"weak"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// costLimit is how much work an evaluation may be, in the units of CEL: about the number of steps. It is about ten
	// milliseconds.
	costLimit = 200_000
	// interruptEvery is after how many steps of a loop the time is checked.
	interruptEvery = 64
	// patience is for a machine that does nothing else at the moment; the limit of the cost comes long before.
	patience = time.Second

	// What is assumed of objects: how many items lists and maps have, and how long texts are.
	largeList = 64
	largeText = 256
)

// cheap refuses an expression that could take too long, by its structure.
func cheap(env *cel.Env, checked *cel.Ast) error {
	estimate, err := env.EstimateCost(checked, sizes{})
	if err != nil {
		return err
	}
	if estimate.Max > costLimit {
		return fmt.Errorf("could take too long: with lists of %d items and texts of %d characters it takes up to %d steps, and %d are allowed; use fewer loops inside of loops",
			largeList, largeText, estimate.Max, uint64(costLimit))
	}
	return nil
}

// sizes are those of the parts of objects, for the estimate.
type sizes struct{}

func (sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	switch element.Type().Kind() {
	case types.ListKind, types.MapKind:
		return &checker.SizeEstimate{Max: largeList}
	case types.StringKind, types.BytesKind:
		return &checker.SizeEstimate{Max: largeText}
	}
	return nil
}

// EstimateCallCost knows the functions that CEL does not: their cost and size are that of the text.
func (sizes) EstimateCallCost(function, _ string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	text := &checker.SizeEstimate{Max: largeText}
	switch function {
	case "registry", "repository", "tag", "digest":
		return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Min: 1, Max: 20}, ResultSize: text}
	case "cpu", "memory", "charAt", "indexOf", "lastIndexOf":
		return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Min: 1, Max: 10}}
	case "lowerAscii", "upperAscii", "trim", "substring", "join":
		return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Min: 1, Max: largeText}, ResultSize: text}
	case "split":
		return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Min: 1, Max: largeText}, ResultSize: text}
	}
	return nil
}

// tried refuses an expression that takes too long on a large object.
func tried(of subject, program cel.Program) error {
	found, err := trialOf(of)
	if err != nil {
		return err
	}
	for _, values := range found.values {
		if err := takesLong(program, values); err != nil {
			return err
		}
	}
	return nil
}

// trial are the values of the variables with which an expression is tried.
type trial struct{ values []map[string]any }

// trials are kept as long as the memory is not needed: several rules are tried with the same.
var trials sync.Map // of weak.Pointer[trial], by subject

func trialOf(of subject) (*trial, error) {
	if kept, ok := trials.Load(of); ok {
		if found := kept.(weak.Pointer[trial]).Value(); found != nil {
			return found, nil
		}
	}
	empty, err := emptyObject(of.kind)
	if err != nil {
		return nil, err
	}
	made := &trial{}
	object := large(empty)
	if of.about == aboutNode {
		made.values = []map[string]any{{varObject: object, varNode: large(&v1.Node{})}}
	} else {
		caller := large(&v1.PolicyCaller{})
		for _, before := range []any{object, null} {
			made.values = append(made.values, map[string]any{varObject: object, varBefore: before, varVerb: Update, varCaller: caller, varNow: time.Unix(0, 0)})
		}
	}
	trials.Store(of, weak.Make(made))
	return made, nil
}

func takesLong(program cel.Program, values map[string]any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, _, err := program.ContextEval(ctx, values); err != nil && (exceeds(err) || ctx.Err() != nil) {
		return fmt.Errorf("takes too long: with lists of %d items it takes more than %d steps; use fewer loops inside of loops", largeList, uint64(costLimit))
	}
	return nil
}

// exceeds reports whether an evaluation ended because it was too much work.
func exceeds(err error) bool {
	return strings.Contains(err.Error(), "cost limit exceeded") || errors.Is(err, context.DeadlineExceeded)
}

// large fills an object: every list and map has many items. Those inside of others have fewer, so that the object stays of a
// size that could be sent.
func large[T proto.Message](empty T) T {
	made := proto.CloneOf(empty)
	fill(made.ProtoReflect(), largeList, 6)
	return made
}

func fill(m protoreflect.Message, items, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.ContainingOneof() != nil && !field.HasOptionalKeyword() && m.WhichOneof(field.ContainingOneof()) != nil {
			continue
		}
		switch {
		case field.IsMap():
			fillMap(m, field, items, depth)
		case field.IsList():
			list := m.Mutable(field).List()
			for range items {
				if field.Message() == nil {
					list.Append(scalar(field))
				} else if depth > 0 {
					fill(list.AppendMutable().Message(), max(2, items/16), depth-1)
				}
			}
		case field.Message() == nil:
			m.Set(field, scalar(field))
		case depth > 0:
			fill(m.Mutable(field).Message(), items, depth-1)
		}
	}
}

func fillMap(m protoreflect.Message, field protoreflect.FieldDescriptor, items, depth int) {
	of := m.Mutable(field).Map()
	for i := range items {
		var key protoreflect.MapKey
		switch field.MapKey().Kind() {
		case protoreflect.StringKind:
			key = protoreflect.ValueOfString(fmt.Sprintf("key-%d", i)).MapKey()
		case protoreflect.Int32Kind:
			key = protoreflect.ValueOfInt32(int32(i)).MapKey()
		case protoreflect.Int64Kind:
			key = protoreflect.ValueOfInt64(int64(i)).MapKey()
		case protoreflect.Uint64Kind:
			key = protoreflect.ValueOfUint64(uint64(i)).MapKey()
		default:
			return
		}
		value := of.NewValue()
		if field.MapValue().Message() == nil {
			value = scalar(field.MapValue())
		} else if depth > 0 {
			fill(value.Message(), max(2, items/16), depth-1)
		}
		of.Set(key, value)
	}
}

func scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat("a", largeText))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(strings.Repeat("a", largeText)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(0)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1)
	default:
		return protoreflect.ValueOfFloat64(1)
	}
}
