package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Object is an object of any kind.
type Object interface {
	proto.Message
	GetMetadata() *v1.Metadata
}

// Request is a change of an object that policies judge. One goroutine uses it.
type Request struct {
	// Kind is in lower case, such as "workload". Verb is one of Create, Update and Delete.
	Kind, Verb string
	// Object is the object after the change; when it is deleted, the object until then. Before is nil for a new one.
	Object, Before Object
	Caller         *v1.PolicyCaller
	Now            time.Time

	// values are the variables, read once for all policies.
	values map[string]any
}

// variables returns the values of the variables of expressions.
func (r *Request) variables() map[string]any {
	if r.values != nil {
		return r.values
	}
	r.values = map[string]any{varObject: r.Object, varBefore: null, varVerb: r.Verb, varCaller: r.Caller, varNow: r.Now}
	if r.Before != nil {
		r.values[varBefore] = r.Before
	}
	if r.Caller == nil {
		r.values[varCaller] = &v1.PolicyCaller{}
	}
	if env, err := environment(subject{r.Kind, aboutObject}); err == nil {
		for name, value := range r.values {
			r.values[name] = env.CELTypeAdapter().NativeToValue(value)
		}
	}
	return r.values
}

// Judge returns the rules that an object breaks.
func (p *Policy) Judge(ctx context.Context, r *Request) []*v1.PolicyFinding {
	if !slices.Contains(p.verbs, r.Verb) || !p.matches(r.Kind, r.Object.GetMetadata()) {
		return nil
	}
	finding := func(rule, field, message, fix string) *v1.PolicyFinding {
		m := r.Object.GetMetadata()
		return &v1.PolicyFinding{
			Policy: p.Name, Rule: rule, Mode: p.Mode, Kind: r.Kind, Namespace: m.GetNamespace(), Name: m.GetName(),
			Field: field, Message: message, Fix: fix,
		}
	}
	if p.broken != nil {
		return []*v1.PolicyFinding{finding("", "", "the policy cannot be used by this release: "+p.broken.Error(), "correct the policy: cloudless policy edit "+p.Name)}
	}
	values := r.variables()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var found []*v1.PolicyFinding
	for i := range p.rules {
		one := &p.rules[i]
		if one.about != aboutObject {
			continue
		}
		if words := one.broken(ctx, r.Kind, values); words != "" {
			found = append(found, finding(one.name, one.field, words, one.fix))
		}
	}
	return found
}

// broken says in which way the values break the rule, empty if they do not.
func (r *rule) broken(ctx context.Context, kind string, values map[string]any) string {
	fulfilled, err := evaluate(ctx, r.programs[kind], values)
	switch {
	case err != nil:
		return fmt.Sprintf("%s (the rule cannot be evaluated: %v)", r.message, err)
	case !fulfilled:
		return r.message
	}
	return ""
}

func evaluate(ctx context.Context, program cel.Program, values map[string]any) (bool, error) {
	if program == nil {
		return false, errors.New("it is not about this kind")
	}
	result, _, err := program.ContextEval(ctx, values)
	switch {
	case err != nil && exceeds(err):
		return false, errors.New("it takes too long with so large an object")
	case err != nil:
		return false, errors.New(strings.TrimPrefix(err.Error(), "evaluation error: "))
	}
	fulfilled, ok := result.Value().(bool)
	if !ok {
		return false, fmt.Errorf("it is neither true nor false but %v", result.Type())
	}
	return fulfilled, nil
}

// matches reports whether the policy is about an object.
func (p *Policy) matches(kind string, m *v1.Metadata) bool {
	return slices.Contains(p.kinds, kind) && !slices.Contains(p.except, m.GetNamespace()) &&
		(len(p.namespaces) == 0 || slices.Contains(p.namespaces, m.GetNamespace())) && p.selector.Matches(m.GetLabels())
}

// Decides reports whether the policy enforces a rule of some name for an object. Such a rule takes the place of the built-in
// one, see Accesses.
func (p *Policy) Decides(kind string, m *v1.Metadata, name string) bool {
	return p.Mode == Enforce && p.broken == nil && p.matches(kind, m) &&
		slices.ContainsFunc(p.rules, func(r rule) bool { return r.about == aboutObject && r.name == name })
}

// JudgesNodes reports whether the policy has rules about the nodes of a workload.
func (p *Policy) JudgesNodes(m *v1.Metadata) bool {
	return p.Mode == Enforce && p.matches(kindWorkload, m) &&
		(p.broken != nil || slices.ContainsFunc(p.rules, func(r rule) bool { return r.about == aboutNode }))
}

// AboutNodes reports whether a stored policy has rules about nodes.
func AboutNodes(p *v1.Policy) bool {
	return slices.ContainsFunc(p.GetSpec().GetRules(), func(r *v1.PolicyRule) bool { return r.GetAbout() == aboutNode })
}

// RefusesNode says why a node may not take replicas of a workload, continuing the node's name; empty if it may.
func (p *Policy) RefusesNode(w *v1.Workload, node *v1.Node) string {
	if p.broken != nil {
		return "" // objects are refused already; replicas of admitted ones have to go somewhere
	}
	values := map[string]any{varObject: w, varNode: node}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range p.rules {
		one := &p.rules[i]
		if one.about != aboutNode {
			continue
		}
		if words := one.broken(ctx, kindWorkload, values); words != "" {
			return fmt.Sprintf("is refused by rule %s of policy %s: %s", one.name, p.Name, words)
		}
	}
	return ""
}

// Compiled returns a stored policy compiled. Compiling takes a thousand times as long as judging, so the result is kept until
// the policy changes.
func Compiled(p *v1.Policy) *Policy { return compiled.of(p) }

// compiled is shared by everything that judges in this process: the same policy compiles to the same.
var compiled memory

type memory struct {
	mu    sync.Mutex
	known map[string]cached // by uid
}

type cached struct {
	from *v1.Policy
	made *Policy
}

// maxCached bounds what deleted policies leave behind.
const maxCached = 4096

func (c *memory) of(p *v1.Policy) *Policy {
	uid := p.GetMetadata().GetUid()
	c.mu.Lock()
	defer c.mu.Unlock()
	// Forks of the state give versions that others get, too: only the content says whether it is the same.
	known, ok := c.known[uid]
	if ok && (known.from == p || known.made.Name == p.GetMetadata().GetName() && proto.Equal(known.from.GetSpec(), p.GetSpec())) {
		return known.made
	}
	made := Compile(p)
	if c.known == nil || len(c.known) >= maxCached {
		c.known = map[string]cached{}
	}
	c.known[uid] = cached{p, made}
	return made
}

// Sorted returns findings without duplicates, those that are enforced first.
func Sorted(found []*v1.PolicyFinding) []*v1.PolicyFinding {
	rank := map[string]int{Enforce: 0, Warn: 1, Record: 2}
	seen := map[string]*v1.PolicyFinding{}
	for _, f := range found {
		key := strings.Join([]string{fmt.Sprint(rank[f.GetMode()]), f.GetKind(), f.GetNamespace(), f.GetName(), f.GetPolicy(), f.GetRule(), f.GetField(), f.GetMessage()}, "\x00")
		seen[key] = f
	}
	all := make([]*v1.PolicyFinding, 0, len(seen))
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		all = append(all, seen[key])
	}
	return all
}

// Words says in a sentence which rule is broken, what is wrong and what to do about it.
func Words(f *v1.PolicyFinding) string {
	words := f.GetMessage()
	switch {
	case f.GetPolicy() == BuiltIn:
	case f.GetRule() == "":
		words = fmt.Sprintf("policy %s: %s", f.GetPolicy(), words)
	default:
		words = fmt.Sprintf("breaks rule %s of policy %s: %s", f.GetRule(), f.GetPolicy(), words)
	}
	if f.GetFix() != "" {
		words += "; " + f.GetFix()
	}
	return words
}
