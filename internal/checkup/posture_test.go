package checkup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/doctor"
)

var today = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func in(days int) *timestamppb.Timestamp { return timestamppb.New(today.AddDate(0, 0, days)) }

// goodPosture is a cluster that follows the guide.
func goodPosture() *posture {
	return &posture{
		now: today, unread: map[string]error{},
		settings: &cloudlessv1.ClusterSpec{
			Oidc: &cloudlessv1.Oidc{Issuer: "https://accounts.example.org"}, Security: &cloudlessv1.ClusterSecurity{Profile: "restricted"},
		},
		authority: &cloudlessv1.AuthorityReport{
			Certificates: []*cloudlessv1.AuthorityCertificate{{State: "active", ExpireTime: in(1000)}}, RotateTime: in(-20), KekRotateTime: in(-20),
		},
		namespaces: []*cloudlessv1.Namespace{{
			Metadata: &cloudlessv1.Metadata{Name: "shop"}, Spec: &cloudlessv1.NamespaceSpec{Quota: &cloudlessv1.Quota{Cpu: "8", Memory: "16Gi"}},
		}},
		workloads: []*cloudlessv1.Workload{{
			Metadata: &cloudlessv1.Metadata{Namespace: "shop", Name: "web"},
			Spec: &cloudlessv1.WorkloadSpec{
				User: "1000:1000", Network: "node", Egress: &cloudlessv1.Egress{}, Env: map[string]string{"TOKENS": "7", "PASSWORD_FILE": "/run/secrets/x"},
				Resources: &cloudlessv1.Resources{Limits: &cloudlessv1.ResourceAmounts{Memory: "64Mi"}},
			},
		}},
		tokens: []*cloudlessv1.Token{{
			Metadata: &cloudlessv1.Metadata{Name: "ci", CreateTime: in(-40)}, Spec: &cloudlessv1.TokenSpec{Role: "admin", ExpireTime: in(10)},
			Status: &cloudlessv1.TokenStatus{LastUseTime: in(-1)},
		}},
		policies: []*cloudlessv1.Policy{{Spec: &cloudlessv1.PolicySpec{}}},
	}
}

func TestHardenedClusterHasNothingToMend(t *testing.T) {
	found := goodPosture().judge()
	for _, f := range found {
		if f.Level != doctor.OK || f.Check == "" || f.Mend != "" {
			t.Errorf("%+v", f)
		}
	}
	if len(found) != len(postureItems) {
		t.Errorf("%d findings of %d items", len(found), len(postureItems))
	}
}

func TestEveryItemOfAClusterFindsItsProblem(t *testing.T) {
	workload := func(edit func(*cloudlessv1.WorkloadSpec)) func(*posture) {
		return func(p *posture) { edit(p.workloads[0].Spec) }
	}
	seen := map[string]bool{}
	for _, test := range []struct {
		item  string
		level doctor.Level
		spoil func(*posture)
		text  string
		mend  string
	}{
		{"authority", doctor.Fail, func(p *posture) { p.authority.Certificates[0].ExpireTime = in(-1) }, "has expired", "cloudless ca rotate"},
		{"authority", doctor.Warn, func(p *posture) { p.authority.Certificates[0].ExpireTime = in(30) }, "expires in 30 days", "cloudless ca rotate"},
		{"authority", doctor.Warn, func(p *posture) { p.authority.RotateTime = nil }, "never been rotated", "cloudless ca rotate"},
		{"authority", doctor.Warn, func(p *posture) { p.authority.Step = "renew" }, "at step renew", "waits for"},
		{"key-encryption key", doctor.Warn, func(p *posture) { p.authority.KekRotateTime = in(-500) }, "last rotated 500 days ago", "cloudless secret rekey"},
		{"login", doctor.Warn, func(p *posture) { p.settings.Oidc = nil }, "no login of their own", "oidc.issuer"},
		{"admins", doctor.Warn, func(p *posture) {
			p.bindings = append(p.bindings, &cloudlessv1.RoleBinding{Spec: &cloudlessv1.RoleBindingSpec{Role: "admin", Users: []string{"a", "b"}, Groups: []string{"ops"}}})
		}, "4 may do everything: group ops, token ci, user a, user b", "cloudless role apply"},
		{"token lifetimes", doctor.Warn, func(p *posture) { p.tokens[0].Spec.ExpireTime = nil }, "1 token is valid for more than 90 days: ci", "--ttl 8h"},
		{"unused tokens", doctor.Warn, func(p *posture) { p.tokens[0].Status = nil }, "1 token is unused for 14 days: ci", "cloudless token rm"},
		{"join tokens", doctor.Warn, func(p *posture) { p.tokens[0].Spec = &cloudlessv1.TokenSpec{Role: "node", Uses: 5, ExpireTime: in(1)} }, "several machines of any name", "cloudless token rm"},
		{"policies", doctor.Warn, func(p *posture) { p.policies[0].Spec.Mode = "warn" }, "no policy is enforced", "cloudless policy apply"},
		{"profile", doctor.Warn, func(p *posture) { p.settings.Security = nil }, "may run as root", "security.profile=restricted"},
		{"profile", doctor.Warn, func(p *posture) { p.namespaces[0].Spec.Profile = "privileged" }, "allowed in shop", "--profile default"},
		{"quotas", doctor.Warn, func(p *posture) { p.namespaces[0].Spec.Quota = nil }, "how much namespace shop may take", "--cpu 8"},
		{"privileged", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Security = &cloudlessv1.Security{Profile: "privileged"} }), "1 of 1 workloads are privileged: shop/web", "profile default"},
		{"host network", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Network = "host" }), "network of their machines", "network node"},
		{"root", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.User = "" }), "run as root", "1000:1000"},
		{"devices", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Security = &cloudlessv1.Security{Devices: []string{"/dev/fuse"}} }), "have devices", "security.devices"},
		{"limits", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Resources = nil }), "no limit of memory", "resources.limits.memory"},
		{"egress", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Egress = nil }), "connect to every address", "egress.allow"},
		{"passwords", doctor.Warn, workload(func(s *cloudlessv1.WorkloadSpec) { s.Env["DB_PASSWORD"] = "hunter2" }), "looks like a password", "cloudless secret set"},
		{"nodes", doctor.Warn, func(p *posture) {
			for _, version := range []string{"1", "2"} {
				p.nodes = append(p.nodes, &cloudlessv1.Node{Status: &cloudlessv1.NodeStatus{Info: &cloudlessv1.NodeInfo{Version: version}}})
			}
		}, "2 versions", "upgrade"},
		{"policies", doctor.Unknown, func(p *posture) {
			p.note(askedPolicies, status.Error(codes.PermissionDenied, "you may not list policies"))
		}, "you may not list policies", "such as admin"},
		{"policies", doctor.Unknown, func(p *posture) { p.note(askedPolicies, status.Error(codes.Unimplemented, "unknown service")) }, "of a version", "upgrade"},
	} {
		p := goodPosture()
		test.spoil(p)
		bad := slices.DeleteFunc(p.judge(), func(f doctor.Finding) bool { return f.Level == doctor.OK })
		if len(bad) != 1 || bad[0].Check != test.item || bad[0].Level != test.level ||
			!strings.Contains(bad[0].Text, test.text) || !strings.Contains(bad[0].Mend, test.mend) {
			t.Errorf("want %s %s %q, mend with %q; got %+v", test.item, test.level, test.text, test.mend, bad)
		}
		for _, f := range bad {
			if strings.Contains(f.Text, "hunter2") {
				t.Errorf("the finding shows the password: %+v", f)
			}
		}
		seen[test.item] = true
	}
	for _, item := range postureItems {
		if !seen[item.name] {
			t.Errorf("the item %q is never seen to find something", item.name)
		}
	}
}
