package spec

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/suggest"
)

type position struct{ line, column int }

// decoder fills a message from a YAML tree and remembers the position of every field, for
// error messages.
type decoder struct {
	// kinds are those of the objects that the file may hold, the usual one first.
	kinds     []string
	positions map[string]position
	found     violations
	// strict is whether strings must be quoted or look like strings.
	strict bool
}

func (d *decoder) refuse(node *yaml.Node, path, format string, args ...any) {
	if d.found.full() {
		return
	}
	d.found = append(d.found, Violation{
		Field: path, Message: fmt.Sprintf(format, args...), Line: node.Line, Column: node.Column,
	})
}

// locate gives a violation the position of its field or, if that is not in the file, of the
// closest enclosing one.
func (d *decoder) locate(v *Violation) {
	if v.Line > 0 {
		return
	}
	for path := v.Field; ; path = parentPath(path) {
		if p, ok := d.positions[path]; ok {
			v.Line, v.Column = p.line, p.column
			return
		}
	}
}

// object chooses the message by kind and fills it.
func (d *decoder) object(node *yaml.Node) proto.Message {
	if node.Kind != yaml.MappingNode {
		d.refuse(node, "", "must be an object with kind, metadata and spec, not %s", nodeName(node))
		return nil
	}
	kind, version := scalarAt(node, "kind"), scalarAt(node, "apiVersion")
	if kind == nil || kind.Value == "" {
		d.refuse(node, "kind", "is missing: write kind: %s", d.kinds[0])
		return nil
	}
	if version != nil && version.Value != "" && version.Value != APIVersion {
		d.refuse(version, "apiVersion", "%.60q is not known; this version of cloudless reads %s", version.Value, APIVersion)
		return nil
	}
	msg := newObject(kind.Value)
	if msg == nil || !slices.Contains(d.kinds, kind.Value) {
		d.refuse(kind, "kind", "%s", d.unknownKind(kind.Value))
		return nil
	}
	d.message("", msg.ProtoReflect(), node, 0)
	return msg
}

// unknownKind says what is wrong with a kind that the file may not hold.
func (d *decoder) unknownKind(given string) string {
	if of := strings.ToLower(given); slices.Contains(workloadKinds, of) && slices.Contains(d.kinds, KindWorkload) {
		return fmt.Sprintf("%q is a kind of workload; write kind: %s with spec.kind: %s", given, KindWorkload, of)
	}
	meant := suggest.To(given, slices.Values(d.kinds))
	if known, ok := api.KindOf(given); ok { // what is a kind is no misspelling of another one
		meant = ""
		if slices.Contains(d.kinds, known.Name) {
			meant = known.Name
		}
	}
	if meant != "" {
		return fmt.Sprintf("%.60q is not known; did you mean %s?", given, meant)
	}
	return fmt.Sprintf("%.60q cannot be in a file; a file may hold %s", given, listing(d.kinds))
}

// listing is a phrase such as "a, b and c".
func listing(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// scalarAt looks up a key of a mapping, nil if it is not a scalar.
func scalarAt(node *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key && node.Content[i+1].Kind == yaml.ScalarNode {
			return node.Content[i+1]
		}
	}
	return nil
}

// plainNode refuses YAML features that files do not need and that can do harm.
func (d *decoder) plainNode(path string, node *yaml.Node, depth int) bool {
	switch {
	case depth > maxDepth:
		d.refuse(node, path, "%v", errTooDeep)
	case node.Kind == yaml.AliasNode, node.Anchor != "":
		d.refuse(node, path, "anchors and aliases are not read; write the value out")
	case strings.HasPrefix(node.Tag, "!") && !slices.Contains(knownTags, node.ShortTag()):
		d.refuse(node, path, "the tag %s is not read; write a plain value", node.Tag)
	default:
		return true
	}
	return false
}

var knownTags = []string{"!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!map", "!!seq"}

// pairs calls use for every entry of a mapping, without duplicates.
func (d *decoder) pairs(path string, node *yaml.Node, use func(key, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		d.refuse(node, path, "must have fields, not be %s", nodeName(node))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content) && !d.found.full(); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode || isNull(key) || key.Anchor != "" {
			d.refuse(key, path, "every key must be a plain word")
			continue
		}
		if line, again := seen[key.Value]; again {
			d.refuse(key, path, "%q is given twice, first in line %d", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		use(key, value)
	}
}

func (d *decoder) message(path string, msg protoreflect.Message, node *yaml.Node, depth int) {
	fields := msg.Descriptor().Fields()
	given := map[protoreflect.FieldNumber]bool{}
	d.pairs(path, node, func(key, value *yaml.Node) {
		f := fields.ByJSONName(key.Value)
		if f == nil {
			f = fields.ByName(protoreflect.Name(key.Value))
		}
		switch {
		case f == nil:
			d.refuse(key, namePath(path, key.Value), "is not a known field; %s", suggestion(key.Value, fields))
		case given[f.Number()]:
			d.refuse(key, fieldPath(path, f), "is given twice, as %s and as %s", f.JSONName(), f.Name())
		default:
			given[f.Number()] = true
			d.field(fieldPath(path, f), msg, f, key, value, depth+1)
		}
	})
}

func (d *decoder) field(path string, msg protoreflect.Message, f protoreflect.FieldDescriptor, key, value *yaml.Node, depth int) {
	if !d.plainNode(path, value, depth) {
		return
	}
	d.positions[path] = position{key.Line, key.Column}
	switch {
	case isNull(value): // As in JSON: not given.
	case f.IsList():
		d.list(path, msg.Mutable(f).List(), f, value, depth)
	case f.IsMap():
		d.mapping(path, msg.Mutable(f).Map(), f, value, depth)
	default:
		if v, ok := d.value(path, f, msg.NewField(f), value, depth); ok {
			msg.Set(f, v)
		}
	}
}

func (d *decoder) list(path string, list protoreflect.List, f protoreflect.FieldDescriptor, node *yaml.Node, depth int) {
	if node.Kind != yaml.SequenceNode {
		d.refuse(node, path, "must be a list, not %s", nodeName(node))
		return
	}
	for i, item := range node.Content {
		at := indexPath(path, i)
		d.positions[at] = position{item.Line, item.Column}
		if v, ok := d.entry(at, f, list.NewElement, item, depth+1); ok {
			list.Append(v)
		}
	}
}

func (d *decoder) mapping(path string, m protoreflect.Map, f protoreflect.FieldDescriptor, node *yaml.Node, depth int) {
	d.pairs(path, node, func(key, value *yaml.Node) {
		at := keyPath(path, key.Value)
		d.positions[at] = position{key.Line, key.Column}
		if v, ok := d.entry(at, f.MapValue(), m.NewValue, value, depth+1); ok {
			m.Set(protoreflect.ValueOfString(key.Value).MapKey(), v)
		}
	})
}

// entry reads a required value.
func (d *decoder) entry(path string, f protoreflect.FieldDescriptor, empty func() protoreflect.Value, node *yaml.Node, depth int) (protoreflect.Value, bool) {
	if !d.plainNode(path, node, depth) {
		return protoreflect.Value{}, false
	}
	if isNull(node) {
		d.refuse(node, path, `is empty; write "" for an empty text`)
		return protoreflect.Value{}, false
	}
	return d.value(path, f, empty(), node, depth)
}

// value reads one value, into the given one if it is a message.
func (d *decoder) value(path string, f protoreflect.FieldDescriptor, empty protoreflect.Value, node *yaml.Node, depth int) (protoreflect.Value, bool) {
	if node.Kind == yaml.ScalarNode {
		d.positions[path] = position{node.Line, node.Column}
	}
	if f.Message() != nil && f.Message().FullName() != timestampName {
		d.message(path, empty.Message(), node, depth)
		return empty, true
	}
	if node.Kind != yaml.ScalarNode {
		d.refuse(node, path, "must be a single value, not %s", nodeName(node))
		return protoreflect.Value{}, false
	}
	v, want := scalar(f, node)
	if d.strict && f.Kind() == protoreflect.StringKind && node.ShortTag() != "!!str" {
		want = "a text in quotes"
	}
	if want != "" {
		d.refuse(node, path, "must be %s", want)
		return protoreflect.Value{}, false
	}
	return v, true
}

var timestampName = (*timestamppb.Timestamp)(nil).ProtoReflect().Descriptor().FullName()

// wholeNumber describes the numbers that a field accepts.
func wholeNumber(f protoreflect.FieldDescriptor) string {
	rules, err := protovalidate.ResolveFieldRules(f)
	if own := rules.GetInt32(); err == nil && own.HasGte() && own.HasLte() {
		return fmt.Sprintf("a whole number between %d and %d", own.GetGte(), own.GetLte())
	}
	return fmt.Sprintf("a whole number up to %d", math.MaxInt32)
}

// scalar reads a plain value, or says what it must be.
func scalar(f protoreflect.FieldDescriptor, node *yaml.Node) (v protoreflect.Value, want string) {
	switch f.Kind() {
	case protoreflect.StringKind:
		// cpu: 1 and env: {DEBUG: true} mean the literal text.
		return protoreflect.ValueOfString(node.Value), ""
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(node.Value)
		if err != nil || node.ShortTag() != "!!bool" {
			return v, "true or false"
		}
		return protoreflect.ValueOfBool(b), ""
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(node.Value, 10, 32)
		if err != nil {
			return v, wholeNumber(f)
		}
		return protoreflect.ValueOfInt32(int32(n)), ""
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(node.Value, 10, 64)
		if err != nil {
			return v, "a whole number"
		}
		return protoreflect.ValueOfInt64(n), ""
	case protoreflect.Uint64Kind:
		n, err := strconv.ParseUint(node.Value, 10, 64)
		if err != nil {
			return v, "a whole number from 0"
		}
		return protoreflect.ValueOfUint64(n), ""
	case protoreflect.DoubleKind:
		n, err := strconv.ParseFloat(node.Value, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return v, "a number such as 0.25"
		}
		return protoreflect.ValueOfFloat64(n), ""
	case protoreflect.BytesKind:
		b, err := base64.StdEncoding.DecodeString(node.Value)
		if err != nil {
			return v, "bytes in base64"
		}
		return protoreflect.ValueOfBytes(b), ""
	case protoreflect.MessageKind:
		t, err := time.Parse(time.RFC3339Nano, node.Value)
		if err != nil || timestamppb.New(t).CheckValid() != nil {
			return v, "a time such as 2006-01-02T15:04:05Z"
		}
		return protoreflect.ValueOfMessage(timestamppb.New(t).ProtoReflect()), ""
	default:
		return v, "left out: a file cannot give it"
	}
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

func nodeName(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "fields"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Kind == yaml.AliasNode:
		return "an alias"
	case isNull(node):
		return "empty"
	default:
		return "a single value"
	}
}

// suggestion names the field that was probably meant, or all existing ones.
func suggestion(name string, fields protoreflect.FieldDescriptors) string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	if near := suggest.To(name, slices.Values(names)); near != "" {
		return "did you mean " + near + "?"
	}
	slices.Sort(names)
	return "there are " + strings.Join(names, ", ")
}
