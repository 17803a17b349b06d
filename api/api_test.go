package api_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	_ "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The part of the OpenAPI document that is written by hand is of messages as they
// are, and every message that something refers to is there.
func TestOpenAPIIsComplete(t *testing.T) {
	var document struct {
		Info        struct{ Title, Version string }
		Security    []any
		Definitions map[string]struct{ Properties map[string]any }
		Paths       map[string]map[string]struct{ Tags []string }
	}
	if err := json.Unmarshal(api.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	if document.Info.Title != "Cloudless" || document.Info.Version != "v1" || len(document.Security) == 0 {
		t.Errorf("the document says of itself %+v, security %v", document.Info, document.Security)
	}
	if _, ok := document.Paths["/v1/namespaces/{namespace}/workloads/{name}:exec"]["get"]; !ok {
		t.Error("exec is missing")
	}
	for _, name := range []string{"ExecRequest", "ExecStart", "TerminalSize", "ExecResponse", "ExecStarted", "ExecExit"} {
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("cloudless.v1." + name))
		if err != nil {
			t.Fatal(err)
		}
		fields := found.(protoreflect.MessageDescriptor).Fields()
		properties := document.Definitions["v1"+name].Properties
		if len(properties) != fields.Len() {
			t.Errorf("%s has %d properties and %d fields", name, len(properties), fields.Len())
		}
		for i := range fields.Len() {
			if _, ok := properties[fields.Get(i).JSONName()]; !ok {
				t.Errorf("%s has no property %s", name, fields.Get(i).JSONName())
			}
		}
	}
	var missing []string
	for _, part := range strings.Split(string(api.OpenAPI), `"#/definitions/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, ok := document.Definitions[name]; !ok && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("there is no definition of %v", missing)
	}
}

// OpenAPI readers treat paths that differ only in the names of variables as equal, and
// refuse duplicates.
func TestOpenAPIHasEveryPathOnce(t *testing.T) {
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	if err := json.Unmarshal(api.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`\{[^}]*\}`)
	seen := map[string]string{}
	for path, calls := range document.Paths {
		bare := variable.ReplaceAllString(path, "{}")
		if other, twice := seen[bare]; twice {
			t.Errorf("%s and %s are the same path", path, other)
		}
		seen[bare] = path
		for method, call := range calls {
			named, stale := 0, false
			for _, parameter := range call.Parameters {
				if parameter.In == "path" && strings.Contains(path, "{"+parameter.Name+"}") {
					named++
				}
				stale = stale || parameter.Name == "consistency"
			}
			if named != strings.Count(path, "{") {
				t.Errorf("%s %s describes %d of the variables in its path: %v", method, path, named, call.Parameters)
			}
			if reads := method == "get" && !strings.HasSuffix(path, ":exec"); stale != reads {
				t.Errorf("%s %s has the parameter consistency: %t", method, path, stale)
			}
		}
	}
}
