package api

import (
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The verbs that roles grant.
const (
	VerbGet        = "get" // also lists and watches
	VerbCreate     = "create"
	VerbUpdate     = "update"
	VerbDelete     = "delete"
	VerbLogs       = "logs"
	VerbExec       = "exec" // also copies files
	VerbForward    = "forward"
	VerbPrivileged = "privileged" // what gives power over the machine, such as the host's network
)

// Verbs are all verbs that roles can grant.
func Verbs() []string {
	return []string{VerbGet, VerbCreate, VerbUpdate, VerbDelete, VerbLogs, VerbExec, VerbForward, VerbPrivileged}
}

// partKinds are the kinds that roles grant verbs on and that are no kinds of objects.
var partKinds = []string{"authority", "network", "object", "storage"}

// GrantableKinds are all kinds that roles can grant verbs on, in lower case and sorted.
var GrantableKinds = sync.OnceValue(func() []string {
	all := slices.Clone(partKinds)
	for _, k := range kindNames() {
		all = append(all, k.Noun())
	}
	slices.Sort(all)
	return all
})

// IsForRoles reports whether a role must grant the method to its caller.
func (m Method) IsForRoles() bool {
	return m.Caller == v1.Method_VIEWER || m.Caller == v1.Method_OPERATOR || m.Caller == v1.Method_ADMIN
}

// verbsByName are the verbs of methods whose names begin with a word. All others update.
var verbsByName = []struct {
	prefix string
	verbs  []string
}{
	{"Get", []string{VerbGet}},
	{"List", []string{VerbGet}},
	{"Watch", []string{VerbGet}},
	{"Create", []string{VerbCreate}},
	{"Apply", []string{VerbCreate, VerbUpdate}},
	{"Delete", []string{VerbDelete}},
}

func verbsOf(method protoreflect.MethodDescriptor, declared *v1.Method) []string {
	if !(Method{Caller: declared.GetCaller()}).IsForRoles() {
		return nil
	}
	if declared.GetVerbs() != "" {
		return strings.Split(declared.GetVerbs(), ",")
	}
	for _, named := range verbsByName {
		if strings.HasPrefix(string(method.Name()), named.prefix) {
			return named.verbs
		}
	}
	return []string{VerbUpdate}
}

// kindOf returns the kind that the name of a method ends with, in the singular or the plural, or else the kind that its
// service is named after. It is empty if there is none.
func kindOf(method protoreflect.MethodDescriptor, declared *v1.Method) string {
	if !(Method{Caller: declared.GetCaller()}).IsForRoles() {
		return ""
	}
	if declared.GetKind() != "" {
		return declared.GetKind()
	}
	name, found := strings.ToLower(string(method.Name())), Kind{}
	for _, k := range kindNames() {
		if (strings.HasSuffix(name, k.Noun()) || strings.HasSuffix(name, k.Plural)) && len(k.Name) > len(found.Name) {
			found = k
		}
	}
	if found.Name != "" {
		return found.Noun()
	}
	service := strings.ToLower(strings.TrimSuffix(string(method.Parent().Name()), "Service"))
	for _, k := range kindNames() {
		if k.Noun() == service {
			return service
		}
	}
	return ""
}
