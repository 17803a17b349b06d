package api

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Roles grant methods by verbs on a kind. A method whose name does not say them declares them.
func TestEveryMethodForRolesHasVerbsAndAKind(t *testing.T) {
	for service := range services() {
		for method := range each(service.Methods()) {
			m, _ := MethodOf("/" + string(service.FullName()) + "/" + string(method.Name()))
			t.Logf("%-28s %-24s %s", method.Name(), strings.Join(m.Verbs, ","), m.Kind)
			if !m.IsForRoles() {
				if m.Verbs != nil || m.Kind != "" {
					t.Errorf("%s has verbs, and no role can grant it", method.FullName())
				}
				continue
			}
			if !slices.Contains(GrantableKinds(), m.Kind) && m.Kind != AnyKind {
				t.Errorf("%s is about kind %q, which does not exist: declare kind in its option (cloudless.v1.method)", method.FullName(), m.Kind)
			}
			for _, verb := range m.Verbs {
				if !slices.Contains(Verbs(), verb) {
					t.Errorf("%s needs verb %q, which does not exist", method.FullName(), verb)
				}
				if reads := verb == VerbGet || verb == VerbLogs; reads != m.Reads {
					t.Errorf("%s needs verb %q and reads: %t; declare verbs in its option (cloudless.v1.method)", method.FullName(), verb, m.Reads)
				}
			}
		}
	}
}

// The roles viewer, operator and admin grant a verb on a kind or do not: two methods with the same verb and kind cannot be
// for different roles.
func TestMethodsWithTheSameVerbAndKindAreForTheSameRoles(t *testing.T) {
	type pair struct{ verb, kind string }
	first := map[pair]Method{}
	for m := range Methods() {
		if m.Kind == AnyKind {
			continue
		}
		for _, verb := range m.Verbs {
			if other, ok := first[pair{verb, m.Kind}]; ok && other.Caller != m.Caller {
				t.Errorf("%s on %s is for %s by %s, and for %s by %s: declare other verbs", verb, m.Kind, m.Caller, m.Name, other.Caller, other.Name)
			}
			first[pair{verb, m.Kind}] = m
		}
	}
}

func TestVerbsAndKindsFollowFromNames(t *testing.T) {
	for name, want := range map[string]string{
		v1.WorkloadService_ListReplicas_FullMethodName:       "get replica",
		v1.WorkloadService_ApplyWorkload_FullMethodName:      "create,update workload",
		v1.WorkloadService_Logs_FullMethodName:               "logs workload",
		v1.WorkloadService_Copy_FullMethodName:               "exec workload",
		v1.RoleService_GetRoleBinding_FullMethodName:         "get rolebinding",
		v1.ServerService_TransferLeader_FullMethodName:       "update server",
		v1.SecretService_ListSecretDeliveries_FullMethodName: "get secret",
		v1.AgentService_Session_FullMethodName:               " ",
	} {
		m, _ := MethodOf(name)
		if got := strings.Join(m.Verbs, ",") + " " + m.Kind; got != want {
			t.Errorf("%s needs %q, want %q", name, got, want)
		}
	}
}
