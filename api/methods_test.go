package api

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const contract = "/cloudless."

func TestEveryMethodDeclaresItsCaller(t *testing.T) {
	for service := range services() {
		for method := range each(service.Methods()) {
			if declaration(method).GetCaller() == v1.Method_NOBODY {
				t.Errorf("%s lacks the option (cloudless.v1.method): add it, with a caller", method.FullName())
			}
		}
	}
}

func TestMethodOf(t *testing.T) {
	m, ok := MethodOf("/cloudless.v1.WorkloadService/GetWorkload")
	if !ok || m.Caller != v1.Method_VIEWER || !m.Reads || !m.Retry || m.AnsweredBy != v1.Method_ANY_SERVER {
		t.Errorf("GetWorkload is declared as %+v", m)
	}
	for _, name := range []string{"/cloudless.v1.WorkloadService/Nothing", "/grpc.health.v1.Health/Nothing", ""} {
		if m, ok := MethodOf(name); ok {
			t.Errorf("%q is a method: %+v", name, m)
		}
	}
}

// Names promise what a method does.
func TestMethodsThatAreNamedLikeReadsOnlyRead(t *testing.T) {
	for m := range Methods() {
		if !strings.HasPrefix(m.Name, contract) {
			continue
		}
		name := string(m.Descriptor.Name())
		for _, verb := range []string{"Get", "List", "Watch"} {
			if strings.HasPrefix(name, verb) && !m.Reads {
				t.Errorf("%s is named like a read, and does not declare reads", m.Name)
			}
		}
		for _, verb := range []string{"Create", "Apply", "Update", "Delete", "Set"} {
			if strings.HasPrefix(name, verb) && m.Reads {
				t.Errorf("%s is named like a write, and declares reads", m.Name)
			}
		}
	}
}

// Every bearer of a token may renew and revoke that one.
func TestOnlyOperatorsAndAdminsWrite(t *testing.T) {
	own := []string{v1.LoginService_RenewToken_FullMethodName, v1.LoginService_Logout_FullMethodName}
	for m := range Methods() {
		if strings.HasPrefix(m.Name, contract) && !m.Reads && !slices.Contains(own, m.Name) && (m.Caller == v1.Method_VIEWER || m.Caller == v1.Method_ANY_IDENTITY) {
			t.Errorf("%s writes, and %s may call it", m.Name, m.Caller)
		}
	}
}

// These methods authenticate their caller by what the request holds, or tell what everyone may know.
func TestOnlyFewMethodsAreOpen(t *testing.T) {
	opened := []string{
		v1.EnrollmentService_Enroll_FullMethodName, v1.LoginService_LoginOidc_FullMethodName,
		v1.LoginService_GetLoginMethods_FullMethodName, v1.IdentityService_GetWorkloadKeys_FullMethodName,
	}
	for m := range Methods() {
		if m.IsOpen() != slices.Contains(opened, m.Name) {
			t.Errorf("%s is open: %t", m.Name, m.IsOpen())
		}
	}
}

func TestOnlyReadsMayBeStale(t *testing.T) {
	for m := range Methods() {
		if m.AnsweredBy == v1.Method_ANY_SERVER && !m.Reads {
			t.Errorf("%s writes, and any server may answer it", m.Name)
		}
	}
}

// A write is recognized by its key. Machines that enroll are recognized by their
// token and their own key.
func TestWritesMayBeRetriedIfTheyHaveAKey(t *testing.T) {
	// The authority is recognized by its rotation that is in progress.
	enrolling := []string{
		v1.EnrollmentService_Enroll_FullMethodName, v1.EnrollmentService_EnrollOwnNode_FullMethodName, v1.AuthorityService_RotateAuthority_FullMethodName,
	}
	for m := range Methods() {
		if m.Reads {
			continue
		}
		if want := m.HasKey() || slices.Contains(enrolling, m.Name); m.Retry != want {
			t.Errorf("%s has an idempotency key: %t, and declares retry: %t", m.Name, m.HasKey(), m.Retry)
		}
	}
	create, _ := MethodOf(v1.WorkloadService_CreateWorkload_FullMethodName)
	if create.MayRetry(&v1.CreateWorkloadRequest{}) || !create.MayRetry(&v1.CreateWorkloadRequest{IdempotencyKey: "k"}) {
		t.Error("a call without a key may be retried, or one with a key may not")
	}
	scale, _ := MethodOf(v1.WorkloadService_ScaleWorkload_FullMethodName)
	if scale.MayRetry(&v1.ScaleWorkloadRequest{}) {
		t.Error("a write that nothing recognizes may be retried")
	}
}
