package server

import (
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// A revision keeps the filter of system calls that its workload names, whatever becomes of the configuration.
func TestRevisionsKeepTheirFilters(t *testing.T) {
	const first, second = `{"defaultAction": "SCMP_ACT_ALLOW"}`, `{"defaultAction": "SCMP_ACT_LOG"}`
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	strict := func(w *v1.Workload) { w.Spec.Security = &v1.Security{Seccomp: "strict"} }
	filters := func(filter string) func(*v1.ClusterSpec) {
		return func(s *v1.ClusterSpec) {
			s.Security = &v1.ClusterSecurity{SeccompProfiles: map[string]string{"strict": filter}}
		}
	}
	filterOf := func(w *v1.Workload) string {
		t.Helper()
		return c.Store.Snapshot().Revision(w.GetStatus().GetRevisionUid()).GetSpec().GetSeccompProfile()
	}

	_, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", strict)})
	wantCode(t, err, codes.FailedPrecondition, `security.seccomp "strict" is neither "default", "unconfined" nor a filter in security.seccompProfiles`)
	_, err = c.set(admin, filters(`{"defaultAction": "NO"}`))
	wantCode(t, err, codes.InvalidArgument, `has the default action "NO"`)

	c.mustSet(admin, filters(first))
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", strict)})
	must(t, err)
	if got := filterOf(made); got != first {
		t.Errorf("the first revision has %q", got)
	}
	c.mustSet(admin, filters(second))
	if got := filterOf(made); got != first {
		t.Errorf("after a change of the configuration it has %q", got)
	}
	restarted, err := admin.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	if got := filterOf(restarted); got != second {
		t.Errorf("the restarted one has %q", got)
	}
	c.mustSet(admin, func(s *v1.ClusterSpec) { s.Security = nil })
	restarted, err = admin.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "web"})
	must(t, err)
	if got := filterOf(restarted); got != second {
		t.Errorf("restarted without the configuration's filter it has %q", got)
	}
}
