package api

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Kind is a kind of object that users know by name, such as Workload.
type Kind struct {
	// Name is the name of the message, and what objects have in their field kind.
	Name string
	// Plural is in lower case, such as "workloads".
	Plural     string
	Namespaced bool
	// Aliases are the short names that commands accept.
	Aliases []string
	Message protoreflect.MessageDescriptor

	// The standard methods, found by their names. Nil if the kind lacks one.
	Get, List, Watch, Create, Apply, Update, Delete *Method
}

// Noun is the name in a sentence or a command, such as "workload".
func (k Kind) Noun() string { return strings.ToLower(k.Name) }

// OneNoun is the noun with its article, such as "an event".
func (k Kind) OneNoun() string {
	if strings.ContainsRune("aeio", rune(k.Noun()[0])) {
		return "an " + k.Noun()
	}
	return "a " + k.Noun()
}

// Kinds returns all kinds of the contract, sorted by name.
func Kinds() []Kind { return slices.Clone(kinds()) }

// KindOf finds a kind by its name, its plural or an alias, whatever their case.
func KindOf(word string) (Kind, bool) {
	word = strings.ToLower(word)
	i := slices.IndexFunc(kinds(), func(k Kind) bool {
		return word == k.Noun() || word == k.Plural || slices.Contains(k.Aliases, word)
	})
	if i < 0 {
		return Kind{}, false
	}
	return kinds()[i], true
}

var kinds = sync.OnceValue(func() []Kind {
	all := slices.Clone(kindNames())
	for i := range all {
		all[i].findMethods()
	}
	return all
})

// kindNames are the kinds without their methods.
var kindNames = sync.OnceValue(func() []Kind {
	var all []Kind
	for file := range files() {
		for message := range each(file.Messages()) {
			declared, _ := proto.GetExtension(message.Options(), v1.E_Kind).(*v1.Kind)
			if declared.GetPlural() != "" {
				all = append(all, newKind(message, declared))
			}
		}
	}
	slices.SortFunc(all, func(a, b Kind) int { return cmp.Compare(a.Name, b.Name) })
	return all
})

func newKind(message protoreflect.MessageDescriptor, declared *v1.Kind) Kind {
	return Kind{
		Name: string(message.Name()), Plural: declared.GetPlural(), Namespaced: declared.GetNamespaced(), Aliases: declared.GetAliases(),
		Message: message,
	}
}

func (k *Kind) findMethods() {
	one, many := k.Name, strings.ToUpper(k.Plural[:1])+k.Plural[1:]
	for name, method := range map[string]**Method{
		"Get" + one: &k.Get, "List" + many: &k.List, "Watch" + many: &k.Watch, "Create" + one: &k.Create,
		"Apply" + one: &k.Apply, "Update" + one: &k.Update, "Delete" + one: &k.Delete,
	} {
		*method = methodNamed(k.Message.ParentFile().Package(), name)
	}
}

// methodNamed finds a method in any service of a package, or returns nil. Case does not count: the plural of RoleBinding is
// rolebindings.
func methodNamed(in protoreflect.FullName, name string) *Method {
	for m := range Methods() {
		if m.Descriptor.ParentFile().Package() == in && strings.EqualFold(string(m.Descriptor.Name()), name) {
			return &m
		}
	}
	return nil
}
