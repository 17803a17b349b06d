package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func secured(edit func(*v1.WorkloadSpec, *v1.Security)) *v1.Workload {
	s := &v1.WorkloadSpec{Image: "hello", Security: &v1.Security{}}
	edit(s, s.Security)
	return &v1.Workload{ApiVersion: APIVersion, Kind: KindWorkload, Metadata: &v1.Metadata{Name: "web"}, Spec: s}
}

func add(s *v1.Security, names ...string) { s.Capabilities = &v1.Capabilities{Add: names} }

func TestSecurityThatContradictsItselfIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*v1.WorkloadSpec, *v1.Security)
		want string // empty if it is accepted
	}{
		"nothing":                 {func(*v1.WorkloadSpec, *v1.Security) {}, ""},
		"a capability":            {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "NET_RAW") }, ""},
		"with its prefix":         {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "CAP_NET_RAW") }, ""},
		"a misspelled one":        {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "NET_BIND_SERVCE") }, "did you mean NET_BIND_SERVICE?"},
		"one that does not exist": {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "FLY") }, "is no capability of Linux"},
		"one that reaches out":    {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "SYS_ADMIN") }, `needs the profile "privileged"`},
		"all of them":             {func(_ *v1.WorkloadSpec, s *v1.Security) { add(s, "ALL") }, `must not be ALL unless the profile is "privileged"`},
		"privileged with all":     {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Profile = ProfilePrivileged; add(s, "ALL", "SYS_ADMIN") }, ""},
		"added and dropped": {func(_ *v1.WorkloadSpec, s *v1.Security) {
			s.Capabilities = &v1.Capabilities{Add: []string{"CHOWN"}, Drop: []string{"CAP_CHOWN"}}
		}, "is also added"},
		"only one": {func(_ *v1.WorkloadSpec, s *v1.Security) {
			s.Capabilities = &v1.Capabilities{Add: []string{"CHOWN"}, Drop: []string{"ALL"}}
		}, ""},
		"restricted":                {func(w *v1.WorkloadSpec, s *v1.Security) { s.Profile, w.User = ProfileRestricted, "1000" }, ""},
		"restricted with low ports": {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Profile = ProfileRestricted; add(s, "NET_BIND_SERVICE") }, ""},
		"restricted with another":   {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Profile = ProfileRestricted; add(s, "CHOWN") }, "must be NET_BIND_SERVICE"},
		"restricted as root":        {func(w *v1.WorkloadSpec, s *v1.Security) { s.Profile, w.User = ProfileRestricted, "0:1000" }, "spec.user"},
		"restricted on the host":    {func(w *v1.WorkloadSpec, s *v1.Security) { s.Profile, w.Network = ProfileRestricted, "host" }, "spec.network"},
		"restricted and escalating": {func(_ *v1.WorkloadSpec, s *v1.Security) {
			s.Profile, s.AllowPrivilegeEscalation = ProfileRestricted, proto.Bool(true)
		}, "spec.security.allowPrivilegeEscalation"},
		"unconfined":            {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Seccomp = "unconfined" }, "spec.security.seccomp"},
		"AppArmor unconfined":   {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Apparmor = "unconfined" }, "spec.security.apparmor"},
		"privileged unconfined": {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Profile, s.Seccomp = ProfilePrivileged, "unconfined" }, ""},
		"users on the host": {func(w *v1.WorkloadSpec, s *v1.Security) {
			w.Network, s.UserNamespace = "host", proto.Bool(true)
		}, "spec.security.userNamespace"},
		"privileged users": {func(_ *v1.WorkloadSpec, s *v1.Security) {
			s.Profile, s.UserNamespace = ProfilePrivileged, proto.Bool(true)
		}, "contradicts"},
		"no users on the host":   {func(w *v1.WorkloadSpec, s *v1.Security) { w.Network, s.UserNamespace = "host", proto.Bool(false) }, ""},
		"a device":               {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Devices = []string{"/dev/fuse"} }, ""},
		"a device elsewhere":     {func(_ *v1.WorkloadSpec, s *v1.Security) { s.Devices = []string{"/dev/../etc/passwd"} }, "write /etc/passwd"},
		"gvisor":                 {func(w *v1.WorkloadSpec, _ *v1.Security) { w.Sandbox = "gvisor" }, ""},
		"another sandbox":        {func(w *v1.WorkloadSpec, _ *v1.Security) { w.Sandbox = "box" }, "spec.sandbox"},
		"gvisor privileged":      {func(w *v1.WorkloadSpec, s *v1.Security) { w.Sandbox, s.Profile = "gvisor", ProfilePrivileged }, "kept in"},
		"gvisor on the host":     {func(w *v1.WorkloadSpec, _ *v1.Security) { w.Sandbox, w.Network = "gvisor", "host" }, "spec.network"},
		"gvisor with a filter":   {func(w *v1.WorkloadSpec, s *v1.Security) { w.Sandbox, s.Seccomp = "gvisor", "strict" }, "spec.security.seccomp"},
		"gvisor with a device":   {func(w *v1.WorkloadSpec, s *v1.Security) { w.Sandbox, s.Devices = "gvisor", []string{"/dev/fuse"} }, "spec.security.devices"},
		"a folder of the kernel": {func(w *v1.WorkloadSpec, _ *v1.Security) { w.WorkingDir = "/proc/self/fd/7" }, "must not be in /proc"},
		"by another spelling":    {func(w *v1.WorkloadSpec, _ *v1.Security) { w.WorkingDir = "/tmp/..//./sys/" }, "must not be in /sys"},
	} {
		err := Validate(secured(test.edit))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestKernelFolder(t *testing.T) {
	for dir, want := range map[string]string{
		"": "", "/": "", "/app": "", "/process": "", "/system": "", "/app/proc": "", "/var/sys": "",
		"/proc": "/proc", "/proc/self/cwd": "/proc", "//proc//1": "/proc", "/proc/..": "/proc", "/./proc": "/proc",
		"/a/../proc/self/fd/8": "/proc", "/../sys/fs": "/sys", "/sys/.": "/sys", "proc": "/proc",
	} {
		if got := KernelFolder(dir); got != want {
			t.Errorf("%q: got %q, want %q", dir, got, want)
		}
	}
}

func TestEqualSecurityHasOneForm(t *testing.T) {
	a := Normalized(&v1.WorkloadSpec{Security: &v1.Security{
		Capabilities: &v1.Capabilities{Add: []string{"CAP_NET_RAW", "CHOWN", "NET_RAW"}}, Devices: []string{"/dev/b", "/dev/a", "/dev/b"},
	}})
	b := Normalized(&v1.WorkloadSpec{Security: &v1.Security{
		Capabilities: &v1.Capabilities{Add: []string{"CHOWN", "NET_RAW"}}, Devices: []string{"/dev/a", "/dev/b"},
	}})
	if !proto.Equal(a, b) {
		t.Errorf("got %v and %v", a, b)
	}
	if empty := Normalized(&v1.WorkloadSpec{Security: &v1.Security{Capabilities: &v1.Capabilities{}}}); empty.GetSecurity() != nil {
		t.Errorf("nothing became %v", empty.GetSecurity())
	}
	if ReplacesNone(a, Normalized(&v1.WorkloadSpec{})) {
		t.Error("a change of what replicas may do replaces none")
	}
}

const goodFilter = `{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
	{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"},
	{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]}]}`

func TestFiltersOfSystemCallsAreReadWhenTheyAreWritten(t *testing.T) {
	for filter, want := range map[string]string{
		goodFilter: "",
		``:         "is not a filter in the format of OCI runtimes",
		`{}`:       `has the default action ""`,
		`{"defaultAction": "SCMP_ACT_ALLOW", "archMap": []}`:                                     `unknown field "archMap"`,
		`{"defaultAction": "SCMP_ACT_ALLOW"} {}`:                                                 "has more after its end",
		`{"defaultAction": "SCMP_ACT_NOTIFY"}`:                                                   "has the default action",
		`{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}`:                              "names a listener",
		`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_LOG"}]}`:          "syscalls[0] names no system call",
		`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "NO"}]}`: `has the action "NO"`,
		`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_LOG", "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]}]}`: "compares argument 6",
	} {
		err := Validate(NewConfiguration("", 1, "", &v1.ClusterSpec{Security: &v1.ClusterSecurity{SeccompProfiles: map[string]string{"strict": filter}}}))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", filter, err, want)
		}
	}
}

func TestNamedFilterIsThatOfTheConfiguration(t *testing.T) {
	c := &v1.ClusterSpec{Security: &v1.ClusterSecurity{SeccompProfiles: map[string]string{"strict": goodFilter}}}
	named := func(name string) *v1.WorkloadSpec { return &v1.WorkloadSpec{Security: &v1.Security{Seccomp: name}} }
	if got, err := SeccompOf(named("strict"), c); got != goodFilter || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, name := range []string{"", "default", "unconfined"} {
		if got, err := SeccompOf(named(name), c); got != "" || err != nil {
			t.Errorf("%q: got %q, %v", name, got, err)
		}
	}
	if _, err := SeccompOf(named("stritc"), c); err == nil || !strings.Contains(err.Error(), `did you mean "strict"?`) {
		t.Errorf("got %v", err)
	}
}

func FuzzParseSeccomp(f *testing.F) {
	f.Add(goodFilter)
	f.Add(`{"defaultAction": "SCMP_ACT_ALLOW"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if filter, err := ParseSeccomp(text); err == nil && filter.DefaultAction == "" {
			t.Errorf("%q has no default action", text)
		}
	})
}
