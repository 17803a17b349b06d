package server

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The contract declares what the tables of the server say.
func TestMethodOptionsAgreeWithTheTables(t *testing.T) {
	roles := map[v1.Method_Caller][]string{
		v1.Method_VIEWER: readers, v1.Method_OPERATOR: writers, v1.Method_ADMIN: admins, v1.Method_ANY_IDENTITY: everyone,
		v1.Method_NODE: agents, v1.Method_SERVER: servers, v1.Method_MEMBER_SERVER: servers, v1.Method_ANYONE: anyone,
	}
	for name, permitted := range permissions {
		m, ok := api.MethodOf(name)
		if !ok {
			t.Errorf("%s declares no caller", name)
			continue
		}
		if !slices.Equal(roles[m.Caller], permitted) || m.IsForMembers() != membersOnly[name] || m.IsOpen() != open(name) {
			t.Errorf("%s declares caller %s, but the tables say %v, members only %t, open %t", name, m.Caller, permitted, membersOnly[name], open(name))
		}
		if got := m.AnsweredBy == v1.Method_CALLED_SERVER; got != answeredHere(name) {
			t.Errorf("%s declares %s, but the router answers it here: %t", name, m.AnsweredBy, answeredHere(name))
		}
		if !strings.HasPrefix(name, "/cloudless.") {
			continue
		}
		if got, want := m.Reads, api.Reads(name) || name == v1.PeerService_LocateServer_FullMethodName; got != want {
			t.Errorf("%s declares reads %t, want %t", name, got, want)
		}
		if got, want := m.AnsweredBy == v1.Method_ANY_SERVER, mayBeStale(name) && !answeredHere(name); got != want {
			t.Errorf("%s declares %s, but may be stale: %t", name, m.AnsweredBy, want)
		}
		in, _, err := messagesOf(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"", "k"} {
			request := in.New()
			if field := request.Descriptor().Fields().ByName("idempotency_key"); field != nil {
				request.Set(field, protoreflect.ValueOfString(key))
			}
			want := harmless(name, request.Interface()) || name == v1.PeerService_LocateServer_FullMethodName
			if got := m.MayRetry(request.Interface()); got != want {
				t.Errorf("%s with key %q may be retried: %t, want %t", name, key, got, want)
			}
		}
	}
	for m := range api.Methods() {
		if _, ok := permissions[m.Name]; !ok {
			t.Errorf("%s is declared and not in the table", m.Name)
		}
	}
}
