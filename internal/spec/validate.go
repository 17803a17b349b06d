package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec/rules"
)

// Validate checks a request or an object against the rules of the contract and,
// if it is or carries an object, against what rules cannot say. What is wrong comes as
// *Error, with the same paths for an object and for a request that carries it.
func Validate(msg proto.Message) error {
	found, err := violationsOf(msg)
	if err != nil {
		return err
	}
	return found.err()
}

func violationsOf(msg proto.Message) (violations, error) {
	var found violations
	if !rules.Proved(msg.ProtoReflect()) {
		var err error
		if found, err = brokenRules(msg); err != nil {
			return nil, err
		}
	}
	for _, check := range checks {
		check(msg, &found)
	}
	checkNode(msg, &found)
	checkExec(msg, &found)
	return found, nil
}

// checks find what the rules of the contract cannot say. The file of each kind adds its own.
var checks []func(proto.Message, *violations)

// checkObjects adds a check of the objects of one kind. It is made for an object itself and for a request that carries
// one.
func checkObjects[T proto.Message](check func(T, *violations)) {
	kind := (*new(T)).ProtoReflect().Descriptor()
	checks = append(checks, func(msg proto.Message, found *violations) {
		if o, ok := msg.(T); ok {
			check(o, found)
			return
		}
		if o := carried(msg.ProtoReflect(), kind); o != nil {
			check(o.(T), found)
		}
	})
}

// carried returns the object of a kind that a request carries in one of its fields, or nil.
func carried(request protoreflect.Message, kind protoreflect.MessageDescriptor) proto.Message {
	fields := request.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() == kind && !f.IsList() && !f.IsMap() && request.Has(f) {
			return request.Get(f).Message().Interface()
		}
	}
	return nil
}

// brokenRules are the API's rules that a message breaks.
func brokenRules(msg proto.Message) (found violations, err error) {
	broken, err := rules.Broken(msg)
	if err != nil {
		return nil, fmt.Errorf("apply the rules of the contract to %s: %w", msg.ProtoReflect().Descriptor().Name(), err)
	}
	for _, v := range broken[:min(len(broken), maxViolations)] {
		found.add(objectPath(msg.ProtoReflect().Descriptor(), v.Proto.GetField()), "%s", plain(v))
	}
	return found, nil
}

// objectPath turns the path of a violation into the author's words: JSON names, without the request's field that
// contains the object.
func objectPath(root protoreflect.MessageDescriptor, path *validate.FieldPath) string {
	steps := path.GetElements()
	if len(steps) > 1 {
		if f := fieldOf(root, steps[0]); f != nil && !f.IsList() && isObject(f.Message()) && !isObject(root) {
			root, steps = f.Message(), steps[1:]
		}
	}
	text := ""
	for _, step := range steps {
		f := fieldOf(root, step)
		if f == nil {
			return protovalidate.FieldPathString(path)
		}
		text = fieldPath(text, f)
		switch step.WhichSubscript() {
		case validate.FieldPathElement_Index_case:
			text = indexPath(text, int(step.GetIndex()))
		case validate.FieldPathElement_StringKey_case:
			text = keyPath(text, clipped(step.GetStringKey()))
		}
		root = f.Message()
		if f.IsMap() {
			root = f.MapValue().Message()
		}
	}
	return text
}

// maxKey is how much of a key an error repeats, in bytes. Valid keys are shorter.
const maxKey = 512

func clipped(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return key[:maxKey] + "…"
}

func fieldOf(msg protoreflect.MessageDescriptor, step *validate.FieldPathElement) protoreflect.FieldDescriptor {
	if msg == nil {
		return nil
	}
	return msg.Fields().ByNumber(protoreflect.FieldNumber(step.GetFieldNumber()))
}

// isObject reports whether a message is a noun of the API.
func isObject(msg protoreflect.MessageDescriptor) bool {
	if msg == nil {
		return false
	}
	f := msg.Fields().ByName("metadata")
	return f != nil && f.Message() != nil && f.Message().FullName() == (*v1.Metadata)(nil).ProtoReflect().Descriptor().FullName()
}

// Sentences for people in place of the standard rules' wording, which speaks of values, lists and items.
var rewordings = []struct {
	rule *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^must be greater than or equal to (\S+) and less than or equal to (\S+)$`), "must be between $1 and $2"},
	{regexp.MustCompile(`^must be greater than or equal to (\S+)$`), "must be at least $1"},
	{regexp.MustCompile(`^must be less than or equal to (\S+)$`), "must be at most $1"},
	{regexp.MustCompile(`^must be at least 1 (characters|bytes)$`), "is missing"},
	{regexp.MustCompile(`^map must be at (least|most) (\d+) entries$`), "must have at $1 $2 entries"},
	{regexp.MustCompile(`^must contain at least 1 item\(s\)$`), "is missing"},
	{regexp.MustCompile(`^must contain at least (\d+) item\(s\)$`), "must have at least $1 entries"},
	{regexp.MustCompile(`^must contain no more than (\d+) item\(s\)$`), "must have at most $1 entries"},
	{regexp.MustCompile(`^value is required$`), "is missing"},
	{regexp.MustCompile(`^value (is|must) `), "$1 "},
}

// plain is the sentence of a violation.
func plain(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() == "string.in" && v.RuleDescriptor != nil && v.RuleDescriptor.IsList() {
		return "must be " + choice(v.RuleValue.List())
	}
	text := v.Proto.GetMessage()
	for _, r := range rewordings {
		if r.rule.MatchString(text) {
			return r.rule.ReplaceAllString(text, r.text)
		}
	}
	return text
}

// choice lists the accepted words; the empty one means omitting the field and is not shown.
func choice(list protoreflect.List) string {
	words := make([]string, 0, list.Len())
	for i := range list.Len() {
		words = append(words, list.Get(i).String())
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
