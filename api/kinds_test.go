package api

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestKindsAreFoundByNamePluralAndAlias(t *testing.T) {
	for _, word := range []string{"Namespace", "namespace", "namespaces", "ns", "NS"} {
		if k, ok := KindOf(word); !ok || k.Name != "Namespace" {
			t.Errorf("%q is kind %q", word, k.Name)
		}
	}
	if k, ok := KindOf("nothing"); ok {
		t.Errorf("nothing is kind %q", k.Name)
	}
	seen := map[string]string{}
	for _, k := range Kinds() {
		for _, word := range append([]string{k.Noun(), k.Plural}, k.Aliases...) {
			if other, taken := seen[word]; taken || word != strings.ToLower(word) {
				t.Errorf("kind %s has the word %q, which kind %s has, or which is not in lower case", k.Name, word, other)
			}
			seen[word] = k.Name
		}
	}
}

func TestStandardMethodsAreFoundByTheirNames(t *testing.T) {
	workload, _ := KindOf("workload")
	for name, m := range map[string]*Method{
		"GetWorkload": workload.Get, "ListWorkloads": workload.List, "WatchWorkloads": workload.Watch, "CreateWorkload": workload.Create,
		"ApplyWorkload": workload.Apply, "UpdateWorkload": workload.Update, "DeleteWorkload": workload.Delete,
	} {
		if m == nil || m.Name != "/cloudless.v1.WorkloadService/"+name {
			t.Errorf("%s of workloads is %+v", name, m)
		}
	}
	event, _ := KindOf("event")
	if event.List == nil || event.Create != nil {
		t.Errorf("events can be listed: %t, created: %t", event.List != nil, event.Create != nil)
	}
}

// Every message with metadata is a kind, and every kind can be read.
func TestKindsAreTheMessagesWithMetadata(t *testing.T) {
	var declared []string
	for _, k := range Kinds() {
		declared = append(declared, k.Name)
		// Names of endpoints are unique only within their service.
		if k.Name != "Endpoint" && (k.Get == nil || k.Get.Descriptor.Input().Fields().ByName("name") == nil) {
			t.Errorf("objects of kind %s cannot be read by name", k.Name)
		}
		for _, m := range []*Method{k.Get, k.List, k.Watch} {
			if m != nil && m.AnsweredBy != v1.Method_ANY_SERVER {
				t.Errorf("%s reads objects, and is not answered by any server", m.Name)
			}
		}
	}
	for file := range files() {
		for message := range each(file.Messages()) {
			field := message.Fields().ByName("metadata")
			isObject := field != nil && !field.IsMap() && message.Fields().ByName("api_version") != nil
			if isObject != slices.Contains(declared, string(message.Name())) && file.Package() == "cloudless.v1" {
				t.Errorf("%s is an object: %t, and declares a kind: %t", message.FullName(), isObject, !isObject)
			}
		}
	}
}
