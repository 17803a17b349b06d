package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
)

// beStrict makes strictQuery the parser of all gateways of this process. The library has
// one parser for all of them, so setting it with each would be a race between servers that
// start at the same moment.
var beStrict = sync.OnceFunc(func() { runtime.NewServeMux(runtime.SetQueryParameterParser(strictQuery{})) })

// strictQuery refuses unknown parameters, and parameters that the path or the body already
// sets. The library's parser ignores both.
type strictQuery struct{ runtime.DefaultQueryParser }

func (q strictQuery) Parse(target proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	message := target.ProtoReflect().Descriptor()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		field, path := fieldAt(message, key)
		switch {
		case key == relay.Consistency:
			return wrongConsistency(values)
		case field == nil:
			return fmt.Errorf("unknown parameter %q: there are %s", key, strings.Join(parametersOf(message, filter.HasCommonPrefix), ", "))
		case filter.HasCommonPrefix(path):
			return fmt.Errorf("parameter %s: is already set by the path or the body of the request: leave it out", key)
		}
		if err := q.DefaultQueryParser.Parse(target, url.Values{key: values[key]}, filter); err != nil {
			return fmt.Errorf("parameter %s: must be %s, not %q", key, wantedOf(field), strings.Join(values[key], ","))
		}
	}
	return nil
}

// wrongConsistency refuses any consistency but the one that withConsistency accepts.
func wrongConsistency(values url.Values) error {
	return fmt.Errorf("parameter %s: must be %s or left out, not %q", relay.Consistency, relay.Stale, strings.Join(values[relay.Consistency], ","))
}

// parametersOf returns the parameters of a request: all fields except those that its path
// or body sets, as names with dots.
func parametersOf(message protoreflect.MessageDescriptor, said func(path []string) bool) []string {
	var known []string
	var visit func(message protoreflect.MessageDescriptor, prefix string, path []string)
	visit = func(message protoreflect.MessageDescriptor, prefix string, path []string) {
		fields := message.Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			name, path := prefix+field.JSONName(), append(slices.Clone(path), field.TextName())
			switch inner := field.Message(); {
			case said(path):
			case inner == nil || field.IsList() || field.IsMap() || inner.ParentFile().Package() == "google.protobuf":
				known = append(known, name)
			default:
				visit(inner, name+".", path)
			}
		}
	}
	visit(message, "", nil)
	return append(known, relay.Consistency)
}

// fieldAt returns the field of a message at a path such as page.size, and the path in the
// names of the .proto file; nil if there is none.
func fieldAt(message protoreflect.MessageDescriptor, key string) (field protoreflect.FieldDescriptor, path []string) {
	for name := range strings.SplitSeq(key, ".") {
		if message == nil {
			return nil, nil
		}
		if field = message.Fields().ByTextName(name); field == nil {
			field = message.Fields().ByJSONName(name)
		}
		if field == nil {
			return nil, nil
		}
		path, message = append(path, field.TextName()), field.Message()
	}
	return field, path
}

// wantedOf says what value a parameter must have.
func wantedOf(field protoreflect.FieldDescriptor) string {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "a whole number"
	case protoreflect.MessageKind:
		if field.Message().FullName() == "google.protobuf.Timestamp" {
			return "a time such as 2006-01-02T15:04:05Z"
		}
	}
	return "a single value"
}

// refuseParameters refuses parameters of calls that have none. The library would ignore
// them.
func refuseParameters(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		pattern, _ := runtime.HTTPPattern(r.Context())
		why, found := withoutParameters()[routeOf(r.Method, pattern.String())]
		for _, key := range slices.Sorted(maps.Keys(r.URL.Query())) {
			switch {
			case !found:
			case key == relay.Consistency:
				writeError(w, core.StatusOf(core.Refuse(codes.InvalidArgument, "%s", wrongConsistency(r.URL.Query()))))
				return
			default:
				writeError(w, core.StatusOf(core.Refuse(codes.InvalidArgument, "unknown parameter %q: %s", key, why)))
				return
			}
		}
		next(w, r, path)
	}
}

// withoutParameters maps the routes of calls without parameters to the reason why they have
// none.
var withoutParameters = sync.OnceValue(func() map[string]string {
	routes := map[string]string{}
	for method := range api.Methods() {
		addWithout(routes, method.Descriptor)
	}
	return routes
})

func addWithout(routes map[string]string, method protoreflect.MethodDescriptor) {
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	for _, rule := range append(rule.GetAdditionalBindings(), rule) {
		verb, template := verbOf(rule)
		said := func(path []string) bool {
			return path[0] == rule.GetBody() || slices.Contains(variablesOf(template), strings.Join(path, "."))
		}
		switch known := parametersOf(method.Input(), said); {
		case rule.GetBody() != "" && (rule.GetBody() == "*" || len(known) == 1):
			routes[routeOf(verb, template)] = "this call takes its fields from the body"
		case len(known) == 1:
			routes[routeOf(verb, template)] = "there is " + known[0] + " alone"
		}
	}
}

// variable is a part of a path that sets a field.
var variable = regexp.MustCompile(`\{([^}=]*)[^}]*\}`)

// variablesOf returns the fields that a path sets.
func variablesOf(template string) (fields []string) {
	for _, found := range variable.FindAllStringSubmatch(template, -1) {
		fields = append(fields, found[1])
	}
	return fields
}

// routeOf names a route, however its variables are written.
func routeOf(verb, template string) string {
	return verb + " " + variable.ReplaceAllString(template, "{}")
}

func verbOf(rule *annotations.HttpRule) (verb, template string) {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, p.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, p.Post
	case *annotations.HttpRule_Put:
		return http.MethodPut, p.Put
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, p.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, p.Delete
	}
	return "", ""
}
