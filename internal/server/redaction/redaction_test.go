package redaction

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

const marker = "hunter2"

func caller(role, namespace string) core.Principal {
	return core.Principal{TokenUID: "t", Permissions: roles.Of(roles.Subject{Role: role, Namespace: namespace},
		func(string) *v1.Role { return nil }, slices.Values[[]*v1.RoleBinding](nil))}
}

func workload(namespace string) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Namespace: namespace, Name: "web"},
		Spec:     &v1.WorkloadSpec{Image: "web:1", Env: map[string]string{"PASSWORD": marker}},
	}
}

func TestValuesAreHiddenFromCallersWhoMayNotUpdateThem(t *testing.T) {
	for _, answer := range []proto.Message{
		workload("shop"),
		&v1.ListWorkloadsResponse{Items: []*v1.Workload{workload("shop")}},
		&v1.WorkloadChange{Workload: workload("shop")},
		&v1.Revision{Metadata: &v1.Metadata{Namespace: "shop"}, Spec: &v1.RevisionSpec{Workload: workload("shop").GetSpec()}},
		&v1.Plan{Changes: []*v1.PlanChange{{Namespace: "shop", Fields: []*v1.FieldChange{{Path: "spec.env[PASSWORD]", Before: marker, After: marker + "3"}}}}},
		&v1.ApplyPlanResponse{Objects: []*v1.Manifest{{Object: &v1.Manifest_Workload{Workload: workload("shop")}}}},
	} {
		before := proto.Clone(answer)
		for _, who := range []struct {
			principal core.Principal
			sees      bool
		}{
			{caller(roles.Viewer, ""), false},
			{caller(roles.Operator, "other"), false},
			{caller(roles.Operator, "shop"), true},
			{caller(roles.Operator, ""), true},
			{core.Principal{Role: core.RoleNode}, true}, // which runs the workload
		} {
			shown := Hide(who.principal, answer).(proto.Message).ProtoReflect().Interface().(interface{ String() string }).String()
			if sees := strings.Contains(shown, marker); sees != who.sees || !sees && !strings.Contains(shown, spec.HiddenValue) || !strings.Contains(shown, "PASSWORD") {
				t.Errorf("%s as %v: %s", answer.ProtoReflect().Descriptor().Name(), who.principal.Permissions.Grants(), shown)
			}
		}
		if !proto.Equal(before, answer) {
			t.Errorf("%s was changed in place", answer.ProtoReflect().Descriptor().Name())
		}
	}
}

// Errors carry objects in their details: an outdated update is refused with the newest version.
func TestDetailsOfErrorsAreHiddenLikeAnswers(t *testing.T) {
	refusal := func() error {
		st, err := status.New(codes.Aborted, "has changed").WithDetails(workload("shop"), &errdetails.ErrorInfo{Reason: "X"}, &v1.Namespace{Metadata: &v1.Metadata{Name: "shop"}})
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	for _, who := range []struct {
		principal core.Principal
		details   int
		sees      bool
	}{
		{caller(roles.Viewer, ""), 3, false},
		{caller(roles.Viewer, "shop"), 3, false},
		{caller(roles.Operator, "other"), 1, false}, // no objects, only the reason
		{caller(roles.Operator, "shop"), 3, true},
		{core.Principal{Role: core.RoleServer}, 3, true},
	} {
		shown := status.Convert(HideInError(who.principal, refusal()))
		text := fmt.Sprint(shown.Details())
		if shown.Code() != codes.Aborted || shown.Message() != "has changed" || len(shown.Details()) != who.details || strings.Contains(text, marker) != who.sees {
			t.Errorf("%v sees %v with %s", who.principal.Permissions.Grants(), shown, text)
		}
	}
	if err := HideInError(caller(roles.Viewer, ""), nil); err != nil {
		t.Errorf("success became %v", err)
	}
}

func TestVictimsInOtherNamespacesAreHidden(t *testing.T) {
	plan := &v1.Plan{Preemptions: []*v1.Preemption{{Namespace: "bank", Workload: "vault", Replica: "vault-1", Node: "n1"}, {Namespace: "shop", Workload: "web", Replica: "web-1"}}}
	shown := Hide(caller(roles.Operator, "shop"), plan).(*v1.Plan)
	if text := shown.String(); strings.Contains(text, "vault") || strings.Contains(text, "bank") || !strings.Contains(text, "web-1") || !strings.Contains(text, "n1") {
		t.Errorf("a tenant sees %s", text)
	}
	if shown := Hide(caller(roles.Viewer, ""), plan); !proto.Equal(shown.(proto.Message), plan) {
		t.Errorf("a viewer sees %v", shown)
	}
}

// An answer in which no rule finds the values of a new field would show them.
func TestEveryPathToAVariableIsKnown(t *testing.T) {
	for m := range api.Methods() {
		if !strings.HasPrefix(m.Name, "/cloudless.") {
			continue
		}
		answer, err := protoregistry.GlobalTypes.FindMessageByName(m.Descriptor.Output().FullName())
		if err != nil {
			t.Fatal(err)
		}
		filled := answer.New()
		fill(filled, 0)
		shown := Hide(caller(roles.Viewer, ""), filled.Interface()).(proto.Message)
		if m.IsForRoles() && strings.Contains(shown.ProtoReflect().Interface().(interface{ String() string }).String(), marker) {
			t.Errorf("%s shows the values of variables to viewers", m.Name)
		}
	}
}

// fill sets the variables of all workload specs in a message.
func fill(m protoreflect.Message, depth int) {
	if w, ok := m.Interface().(*v1.WorkloadSpec); ok {
		w.Env = map[string]string{"PASSWORD": marker}
		return
	}
	if depth > 6 {
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		if field.IsMap() || field.Message() == nil || !strings.HasPrefix(string(field.Message().FullName()), "cloudless.") {
			continue
		}
		if field.IsList() {
			fill(m.Mutable(field).List().AppendMutable().Message(), depth+1)
		} else {
			fill(m.Mutable(field).Message(), depth+1)
		}
	}
}
