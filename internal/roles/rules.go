package roles

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/suggest"
)

// verbs is a set of verbs, one bit each.
type verbs uint32

const allVerbs verbs = 1<<32 - 1

var bitOf = func() map[string]verbs {
	all := map[string]verbs{Any: allVerbs}
	for i, verb := range api.Verbs() {
		all[verb] = 1 << i
	}
	return all
}()

// Any stands for all verbs, or for all kinds.
const Any = "*"

// rules is what a role grants wherever it counts.
type rules struct {
	any   verbs // on every kind
	kinds map[string]verbs
}

// compile returns what a role grants, in all namespaces or in one. In one, "*" does not include "privileged", which gives
// power over the machines of all: there, a role must name it.
func compile(spec *v1.RoleSpec, inOne bool) *rules {
	r := &rules{kinds: map[string]verbs{}}
	for _, rule := range spec.GetRules() {
		var granted verbs
		for _, verb := range rule.GetVerbs() {
			if verb == Any && inOne {
				granted |= allVerbs &^ bitOf[api.VerbPrivileged]
			} else {
				granted |= bitOf[verb] // an unknown verb, of a later release, grants nothing
			}
		}
		for _, kind := range rule.GetKinds() {
			if kind == Any {
				r.any |= granted
			} else {
				r.kinds[kind] |= granted
			}
		}
	}
	return r
}

// on returns the verbs on a kind.
func (r *rules) on(kind string) verbs {
	if r == nil {
		return 0
	}
	return r.any | r.kinds[kind]
}

// includes reports whether a verb is granted on a kind, or on any if the kind is [Any].
func (r *rules) includes(bit verbs, kind string) bool {
	if kind == Any {
		return slices.ContainsFunc(api.GrantableKinds(), func(one string) bool { return r.includes(bit, one) })
	}
	return r.on(kind)&bit == bit
}

func (r *rules) add(more *rules) {
	r.any |= more.any
	for kind, granted := range more.kinds {
		r.kinds[kind] |= granted
	}
}

// size counts the pairs of verbs and kinds that are granted.
func (r *rules) size() int {
	known, n := verbs(1<<len(api.Verbs())-1), 0
	for _, kind := range api.GrantableKinds() {
		n += bits.OnesCount32(uint32(r.on(kind) & known))
	}
	if r.any == allVerbs { // includes what later releases add
		n++
	}
	return n
}

// Check says what is wrong with the rules of a role; empty if nothing is. The field is that of the wrong word.
func Check(spec *v1.RoleSpec) (field, problem string) {
	for i, rule := range spec.GetRules() {
		for j, verb := range rule.GetVerbs() {
			if bitOf[verb] == 0 {
				return fmt.Sprintf("spec.rules[%d].verbs[%d]", i, j), UnknownVerb(verb)
			}
		}
		for j, kind := range rule.GetKinds() {
			if kind != Any && !slices.Contains(api.GrantableKinds(), kind) {
				return fmt.Sprintf("spec.rules[%d].kinds[%d]", i, j), UnknownKind(kind)
			}
		}
	}
	return "", ""
}

// UnknownVerb says that there is no such verb, and which one was meant; empty if there is one.
func UnknownVerb(verb string) string {
	if bitOf[verb] != 0 {
		return ""
	}
	if verb == "list" || verb == "watch" {
		return fmt.Sprintf("%q is not a verb of its own: %q includes it", verb, api.VerbGet)
	}
	return unknown("verb", verb, append(api.Verbs(), Any))
}

// UnknownKind says the same of a kind.
func UnknownKind(kind string) string {
	if kind == Any || slices.Contains(api.GrantableKinds(), kind) {
		return ""
	}
	if meant, ok := api.KindOf(kind); ok {
		return fmt.Sprintf("%q is not the name of a kind; did you mean %s?", kind, meant.Noun())
	}
	return unknown("kind", kind, append(api.GrantableKinds(), Any))
}

func unknown(what, word string, all []string) string {
	if near := suggest.To(word, slices.Values(all)); near != "" {
		return fmt.Sprintf("%q is not a %s; did you mean %s?", word, what, near)
	}
	return fmt.Sprintf("%q is not a %s; there are %s", word, what, strings.Join(all, ", "))
}

// Scoped reports whether a role that counts in one namespace may grant a verb on a kind at all. Everything else is in no
// namespace and needs a role that counts in all of them.
//
// A namespace itself can be read by roles in it, but not changed: its quota binds them. An image is in the namespace that
// its name begins with, as shop/web is in shop. An object is in the namespace of its bucket.
func Scoped(verb, kind string) bool {
	switch kind {
	case "namespace":
		return verb == api.VerbGet
	case "image", "object", Any:
		return true
	}
	return namespaced()[kind]
}

// NamespaceOfImage returns the namespace that a repository of the cluster's registry is in: what its name begins with, as
// shop of shop/web. It is empty for repositories that are in none.
func NamespaceOfImage(repository string) string {
	namespace, _, inside := strings.Cut(repository, "/")
	if !inside {
		return ""
	}
	return namespace
}

// namespaced are the kinds of objects in namespaces. They are read late, when all of the contract is linked.
var namespaced = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, k := range api.Kinds() {
		all[k.Noun()] = k.Namespaced
	}
	return all
})
