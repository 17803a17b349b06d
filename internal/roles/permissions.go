package roles

import (
	"iter"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Permissions is what one caller may do. It never changes, and is safe for concurrent use. Nil permits nothing.
type Permissions struct {
	everywhere *rules            // granted by roles that count in all namespaces
	in         map[string]*rules // granted by roles that count in one
	// anywhere is the sum of all.
	anywhere *rules
	granted  []Granted
}

// Granted is a role that a caller has.
type Granted struct {
	Role string
	// Namespace is the only one in which the role counts; empty for all.
	Namespace string
}

// String is the role for people, such as "deployer in shop".
func (g Granted) String() string {
	if g.Namespace == "" {
		return g.Role
	}
	return g.Role + " in " + g.Namespace
}

// Subject is who has roles: the bearer of a token, or a user.
type Subject struct {
	// Role and Namespace are those of the token itself.
	Role, Namespace string
	Token           string
	User            string
	Groups          []string
}

// Of adds up the roles of a subject. Roles that do not exist grant nothing.
func Of(subject Subject, find func(name string) *v1.Role, bindings iter.Seq[*v1.RoleBinding]) *Permissions {
	p := &Permissions{everywhere: &rules{kinds: map[string]verbs{}}, in: map[string]*rules{}, anywhere: &rules{kinds: map[string]verbs{}}}
	if subject.Role != "" {
		p.grant(Granted{subject.Role, subject.Namespace}, find)
	}
	for binding := range bindings {
		if Binds(binding.GetSpec(), subject) {
			p.grant(Granted{binding.GetSpec().GetRole(), binding.GetSpec().GetNamespace()}, find)
		}
	}
	return p
}

// Binds reports whether a binding is about a subject.
func Binds(binding *v1.RoleBindingSpec, s Subject) bool {
	return s.Token != "" && slices.Contains(binding.GetTokens(), s.Token) ||
		s.User != "" && slices.Contains(binding.GetUsers(), s.User) ||
		slices.ContainsFunc(s.Groups, func(group string) bool { return slices.Contains(binding.GetGroups(), group) })
}

func (p *Permissions) grant(g Granted, find func(string) *v1.Role) {
	role := Named(g.Role, find)
	if role == nil || slices.Contains(p.granted, g) {
		return
	}
	p.granted = append(p.granted, g)
	granted := compiled(role, g.Namespace != "")
	p.anywhere.add(granted)
	if g.Namespace == "" {
		p.everywhere.add(granted)
		return
	}
	if p.in[g.Namespace] == nil {
		p.in[g.Namespace] = &rules{kinds: map[string]verbs{}}
	}
	p.in[g.Namespace].add(granted)
}

// Can reports whether a verb on a kind is permitted in a namespace; in all of them, or on a kind that is in none, if it
// is empty.
func (p *Permissions) Can(verb, kind, namespace string) bool {
	if p == nil {
		return false
	}
	bit := bitOf[verb]
	if bit == 0 {
		return false
	}
	if p.everywhere.on(kind)&bit == bit {
		return true
	}
	return namespace != "" && p.in[namespace].on(kind)&bit == bit && Scoped(verb, kind)
}

// CanSomewhere reports whether a verb on a kind is permitted in any namespace. Kind [Any] is any kind.
func (p *Permissions) CanSomewhere(verb, kind string) bool {
	if p == nil {
		return false
	}
	bit := bitOf[verb]
	if kind == Any {
		return slices.ContainsFunc(api.GrantableKinds(), func(one string) bool { return p.CanSomewhere(verb, one) })
	}
	if bit == 0 || p.anywhere.on(kind)&bit != bit {
		return false
	}
	return p.everywhere.on(kind)&bit == bit || Scoped(verb, kind)
}

// Grants lists the roles.
func (p *Permissions) Grants() []Granted {
	if p == nil {
		return nil
	}
	return p.granted
}

// Equal reports whether both permit the same.
func (p *Permissions) Equal(other *Permissions) bool {
	if p == nil || other == nil {
		return p == other
	}
	same := func(a, b *rules) bool { return a.within(b) && b.within(a) }
	if len(p.in) != len(other.in) || !same(p.everywhere, other.everywhere) {
		return false
	}
	for namespace, granted := range p.in {
		if there := other.in[namespace]; there == nil || !same(granted, there) {
			return false
		}
	}
	return true
}

// within reports whether all that is granted is granted by other rules, too.
func (r *rules) within(other *rules) bool {
	if r.any&^other.any != 0 {
		return false
	}
	for kind, granted := range r.kinds {
		if granted&^other.on(kind) != 0 {
			return false
		}
	}
	return true
}

// Lacks returns something that a role would grant in a namespace, or in all if it is empty, and that these permissions do
// not include, such as "delete on node". It is empty if there is nothing: only then may their owner give the role to
// others.
func (p *Permissions) Lacks(role *v1.RoleSpec, namespace string) string {
	given := compile(role, namespace != "")
	held := &rules{kinds: map[string]verbs{}}
	if p != nil {
		held.add(p.everywhere)
		if mine := p.in[namespace]; namespace != "" && mine != nil {
			held.add(mine)
		}
	}
	if missing := given.any &^ held.any; missing != 0 {
		return missing.first() + " on every kind"
	}
	for _, kind := range api.GrantableKinds() {
		if missing := given.kinds[kind] &^ held.on(kind); missing != 0 {
			return missing.first() + " on " + kind
		}
	}
	return ""
}

// first names one verb of a set.
func (v verbs) first() string {
	if v == allVerbs {
		return "every verb"
	}
	for _, verb := range api.Verbs() {
		if v&bitOf[verb] != 0 {
			return verb
		}
	}
	return "every verb"
}

// IsAdmin reports whether everything is permitted, in all namespaces.
func (p *Permissions) IsAdmin() bool { return p != nil && p.everywhere.any == allVerbs }

// Text lists the roles for people.
func Text(granted []Granted) string {
	words := make([]string, len(granted))
	for i, g := range granted {
		words[i] = g.String()
	}
	return strings.Join(words, ", ")
}
