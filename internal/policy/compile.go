package policy

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/suggest"
)

// The modes of policies.
const (
	Enforce = "enforce"
	Warn    = "warn"
	Record  = "record"
)

// The verbs of policies.
const (
	Create = "create"
	Update = "update"
	Delete = "delete"
)

const kindWorkload = "workload"

// Policy is a compiled policy. It may be used by several goroutines.
type Policy struct {
	Name, Mode         string
	kinds, verbs       []string
	namespaces, except []string
	selector           spec.Selector
	rules              []rule
	// broken says why the policy cannot be used. It was refused when it was written, unless another release wrote it.
	broken error
}

type rule struct {
	name, field, message, fix, about string
	programs                         map[string]cel.Program // by kind
}

// Judged reports whether policies may be about a kind: users write its objects. Policies themselves are not judged, so that
// no policy keeps others from being corrected; nor are tokens, which roles limit.
func Judged(kind string) bool {
	declared, known := api.KindOf(kind)
	return known && declared.Noun() == kind && kind != "policy" && kind != "token" &&
		(declared.Create != nil || declared.Apply != nil || declared.Update != nil)
}

// JudgedKinds are the kinds that policies may be about.
func JudgedKinds() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, kind := range api.Kinds() {
			if Judged(kind.Noun()) && !yield(kind.Noun()) {
				return
			}
		}
	}
}

// Check returns what is wrong with a policy, as a *spec.Error: expressions that do not compile, that are not true or false,
// or that could take too long.
func Check(p *v1.Policy) error {
	_, found := compile(p, true)
	if len(found) == 0 {
		return nil
	}
	return &spec.Error{Violations: found}
}

// Compile compiles a policy that was checked when it was written. If it does not compile any more, every object that it
// is about breaks it.
func Compile(p *v1.Policy) *Policy {
	made, found := compile(p, false)
	if len(found) > 0 {
		made.broken = &spec.Error{Violations: found}
	}
	return made
}

func compile(p *v1.Policy, try bool) (*Policy, []spec.Violation) {
	s, match := p.GetSpec(), p.GetSpec().GetMatch()
	made := &Policy{
		Name: p.GetMetadata().GetName(), Mode: or(s.GetMode(), Enforce),
		kinds: slices.Clone(match.GetKinds()), verbs: slices.Clone(match.GetVerbs()),
		namespaces: match.GetNamespaces(), except: match.GetExceptNamespaces(),
	}
	if len(made.kinds) == 0 {
		made.kinds = []string{kindWorkload}
	}
	if len(made.verbs) == 0 {
		made.verbs = []string{Create, Update}
	}
	var found []spec.Violation
	add := func(field, format string, args ...any) {
		found = append(found, spec.Violation{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	for i, kind := range made.kinds {
		made.kinds[i] = strings.ToLower(kind)
		if kind = made.kinds[i]; !Judged(kind) {
			add(fmt.Sprintf("spec.match.kinds[%d]", i), "%s", unknownKind(kind))
		}
	}
	var err error
	if made.selector, err = spec.ParseSelector(match.GetLabels()); err != nil {
		add("spec.match.labels", "%v", err)
	}
	if len(found) > 0 {
		return made, found
	}
	names := map[string]bool{}
	for i, given := range s.GetRules() {
		path := fmt.Sprintf("spec.rules[%d]", i)
		if names[given.GetName()] {
			add(path+".name", "%s is the name of another rule of this policy, too; choose another", given.GetName())
		}
		names[given.GetName()] = true
		r := rule{
			name: given.GetName(), field: given.GetField(), message: given.GetMessage(), fix: given.GetFix(),
			about: or(given.GetAbout(), aboutObject), programs: map[string]cel.Program{},
		}
		if r.about == aboutNode {
			switch {
			case !slices.Equal(made.kinds, []string{kindWorkload}):
				add(path+".about", "must not be node: only workloads are placed on nodes, and the policy is about other kinds, too; make a policy of its own for it")
				continue
			case made.Mode != Enforce:
				add(path+".about", "must not be node in a policy of mode %s: a node is refused or it is not; make a policy of mode enforce for it", made.Mode)
				continue
			}
		}
		if words := unknownField(made.kinds, r.field); words != "" {
			add(path+".field", "%s", words)
		}
		for _, kind := range made.kinds {
			program, err := compileRule(subject{kind, r.about}, given.GetExpression(), try)
			if err != nil {
				words := err.Error()
				if len(made.kinds) > 1 {
					words = "for a " + kind + ": " + words
				}
				add(path+".expression", "%s", words)
				continue
			}
			r.programs[kind] = program
		}
		made.rules = append(made.rules, r)
	}
	return made, found
}

func or(given, otherwise string) string {
	if given == "" {
		return otherwise
	}
	return given
}

func unknownKind(kind string) string {
	if kind == "policy" {
		return "must not have policy: a policy that keeps others from being changed could not be corrected"
	}
	words := fmt.Sprintf("there is no kind %q that policies can judge", kind)
	if near := suggest.To(kind, JudgedKinds()); near != "" {
		return words + "; did you mean " + near + "?"
	}
	return words + "; use one of: " + strings.Join(slices.Collect(JudgedKinds()), ", ")
}

// compileRule compiles one expression, and with try makes sure that it cannot take long.
func compileRule(of subject, expression string, try bool) (cel.Program, error) {
	env, err := environment(of)
	if err != nil {
		return nil, err
	}
	parsed, issues := env.Parse(expression)
	if err := issues.Err(); err != nil {
		return nil, readable(of, nil, issues)
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, readable(of, parsed.NativeRep().Expr(), issues)
	}
	if checked.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("is of type %s, and must be true or false: it is true if the rule is fulfilled", checked.OutputType())
	}
	if calls(checked.NativeRep().Expr(), "replace") {
		return nil, errors.New("must not call replace, which can make texts of any length; compare with contains, startsWith or matches")
	}
	if try {
		if err := cheap(env, checked); err != nil {
			return nil, err
		}
	}
	program, err := env.Program(checked,
		cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit), cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, err
	}
	if try {
		if err := tried(of, program); err != nil {
			return nil, err
		}
	}
	return program, nil
}

// calls reports whether an expression calls a function.
func calls(e ast.Expr, function string) bool {
	found := false
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.CallKind && e.AsCall().FunctionName() == function
	}))
	return found
}

var (
	undefinedField = regexp.MustCompile(`^undefined field '([^']*)'`)
	undeclared     = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
)

// readable turns what the compiler says into sentences, with the name that was probably meant.
func readable(of subject, e ast.Expr, issues *cel.Issues) error {
	var all []string
	for _, issue := range issues.Errors() {
		words := strings.TrimPrefix(issue.Message, "Syntax error: ")
		if words == "reserved identifier: namespace" {
			words = "CEL reserves the word namespace; the namespace of an object is object.metadata.namespace"
		} else if m := undefinedField.FindStringSubmatch(issue.Message); m != nil {
			words = noField(of, e, m[1])
		} else if m := undeclared.FindStringSubmatch(issue.Message); m != nil {
			words = noName(of, m[1])
		}
		at := fmt.Sprintf("column %d: %s", issue.Location.Column()+1, words)
		if line := issue.Location.Line(); line > 1 {
			at = fmt.Sprintf("line %d, %s", line, at)
		}
		if !slices.Contains(all, at) {
			all = append(all, at)
		}
		if len(all) == 8 {
			break
		}
	}
	return errors.New(strings.Join(all, "; "))
}

// variables of expressions, with their messages where they are messages.
func variables(of subject) map[string]protoreflect.MessageDescriptor {
	all := map[string]protoreflect.MessageDescriptor{}
	object, err := emptyObject(of.kind)
	if err != nil {
		return all
	}
	all[varObject] = object.ProtoReflect().Descriptor()
	if of.about == aboutNode {
		all[varNode] = (&v1.Node{}).ProtoReflect().Descriptor()
		return all
	}
	all[varBefore], all[varCaller] = all[varObject], (&v1.PolicyCaller{}).ProtoReflect().Descriptor()
	all[varVerb], all[varNow] = nil, nil
	return all
}

func noName(of subject, name string) string {
	known := variables(of)
	if of.about == aboutNode && slices.Contains([]string{varBefore, varVerb, varCaller, varNow}, name) {
		return name + " is unknown when a node is judged: a rule about nodes has object and node"
	}
	if name == varNode {
		return "node is known in rules about nodes only; set about: node"
	}
	words := "there is neither a variable nor a function " + name
	functions := []string{"registry", "repository", "tag", "digest", "cpu", "memory", "has", "size", "matches", "startsWith", "endsWith", "contains"}
	if near := suggest.To(name, slices.Values(slices.Concat(slices.Sorted(maps.Keys(known)), functions))); near != "" {
		return words + "; did you mean " + near + "?"
	}
	return words + "; variables are " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}

// noField explains a field that does not exist.
func noField(of subject, e ast.Expr, name string) string {
	s := scope{messages: variables(of)}
	at, in := s.lacking(e, name)
	if in == nil {
		return "there is no field " + name
	}
	if near := suggest.To(name, fieldNames(in)); near != "" {
		return fmt.Sprintf("%s has no field %s; did you mean %s?", at, name, near)
	}
	return fmt.Sprintf("%s has no field %s; it has %s", at, name, strings.Join(slices.Sorted(fieldNames(in)), ", "))
}

func fieldNames(in protoreflect.MessageDescriptor) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range in.Fields().Len() {
			if !yield(in.Fields().Get(i).JSONName()) {
				return
			}
		}
	}
}

// scope knows the messages that variables stand for.
type scope struct {
	messages map[string]protoreflect.MessageDescriptor
}

// lacking finds the place in an expression where a message lacks a field, in words and as its type.
func (s scope) lacking(e ast.Expr, name string) (at string, in protoreflect.MessageDescriptor) {
	if e == nil {
		return "", nil
	}
	switch e.Kind() {
	case ast.SelectKind:
		if message, words, list := s.typeOf(e.AsSelect().Operand()); e.AsSelect().FieldName() == name && message != nil && !list &&
			message.Fields().ByJSONName(name) == nil {
			return words, message
		}
		return s.lacking(e.AsSelect().Operand(), name)
	case ast.CallKind:
		parts := slices.Clone(e.AsCall().Args())
		if e.AsCall().IsMemberFunction() {
			parts = append(parts, e.AsCall().Target())
		}
		for _, part := range parts {
			if at, in := s.lacking(part, name); in != nil {
				return at, in
			}
		}
	case ast.ListKind:
		for _, part := range e.AsList().Elements() {
			if at, in := s.lacking(part, name); in != nil {
				return at, in
			}
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		if at, in := s.lacking(c.IterRange(), name); in != nil {
			return at, in
		}
		inner := scope{messages: maps.Clone(s.messages)}
		inner.messages[c.IterVar()], _, _ = s.typeOf(c.IterRange())
		for _, part := range []ast.Expr{c.LoopCondition(), c.LoopStep(), c.Result()} {
			if at, in := inner.lacking(part, name); in != nil {
				return at, in
			}
		}
	}
	return "", nil
}

// typeOf returns the message that an expression stands for, nil if it is none, and the expression in words. list is
// whether it stands for several.
func (s scope) typeOf(e ast.Expr) (of protoreflect.MessageDescriptor, words string, list bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return s.messages[e.AsIdent()], e.AsIdent(), false
	case ast.SelectKind:
		in, path, list := s.typeOf(e.AsSelect().Operand())
		words = path + "." + e.AsSelect().FieldName()
		if in == nil || list {
			return nil, words, false
		}
		field := in.Fields().ByJSONName(e.AsSelect().FieldName())
		switch {
		case field == nil:
			return nil, words, false
		case field.IsMap():
			return field.MapValue().Message(), words, true
		}
		return field.Message(), words, field.IsList()
	case ast.CallKind:
		if args := e.AsCall().Args(); e.AsCall().FunctionName() == "_[_]" && len(args) == 2 {
			of, words, _ = s.typeOf(args[0])
			return of, words + "[]", false
		}
	}
	return nil, "", false
}

// unknownField says what is wrong with the path of a field, which one of the kinds must have.
func unknownField(kinds []string, path string) (words string) {
	if path == "" {
		return ""
	}
	for _, kind := range kinds {
		object, err := emptyObject(kind)
		if err != nil {
			continue
		}
		in, at := object.ProtoReflect().Descriptor(), kind
		words = ""
		for part := range strings.SplitSeq(path, ".") {
			name, _, _ := strings.Cut(part, "[")
			if in == nil {
				break // the keys of a map, or too long
			}
			field := in.Fields().ByJSONName(name)
			if field == nil {
				words = fmt.Sprintf("%s has no field %s", at, name)
				if near := suggest.To(name, fieldNames(in)); near != "" {
					words += "; did you mean " + near + "?"
				}
				break
			}
			if in = field.Message(); field.IsMap() {
				in = nil
			}
			at = name
		}
		if words == "" {
			return ""
		}
	}
	return words
}

// null is what before is for a new object.
var null = types.NullValue
