package auth

import (
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

func TestUndeclaredMethodHasNoCallers(t *testing.T) {
	for _, role := range everyone {
		a := &Authenticator{core: &core.Core{Store: state.New()}}
		if err := a.Authorize(core.Principal{Role: role}, "/cloudless.v1.WorkloadService/Undeclared"); err == nil || !strings.Contains(err.Error(), "no caller may call") {
			t.Errorf("as %s: %v", role, err)
		}
	}
}

// Every declared caller has roles, except nobody and everyone.
func TestEveryCallerHasRoles(t *testing.T) {
	for number, name := range v1.Method_Caller_name {
		caller := v1.Method_Caller(number)
		if has, want := len(rolesOf[caller]) > 0, caller != v1.Method_NOBODY && caller != v1.Method_ANYONE; has != want {
			t.Errorf("%s has roles: %t", name, has)
		}
	}
}
