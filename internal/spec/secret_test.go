package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestSecretsOfAWorkloadAreRefusedWithAWayOut(t *testing.T) {
	for _, c := range []struct {
		want string
		refs []*v1.SecretRef
	}{
		{"spec.secrets[0]: says not how the program gets secret db", []*v1.SecretRef{{Name: "db"}}},
		{"spec.secrets[0].name: must be", []*v1.SecretRef{{Name: "No Name", Env: "A"}}},
		{"spec.secrets[0].env: must be the name of an environment variable", []*v1.SecretRef{{Name: "db", Env: "1A"}}},
		{"spec.secrets[1].env: A is the variable of spec.secrets[0] too", []*v1.SecretRef{{Name: "db", Env: "A"}, {Name: "x", Env: "A"}}},
		{"spec.secrets[0].env: TAKEN is set in spec.env too", []*v1.SecretRef{{Name: "db", Env: "TAKEN"}}},
		{"spec.secrets[0].mode: is for a file: give path too", []*v1.SecretRef{{Name: "db", Env: "A", Mode: "0400"}}},
		{"spec.secrets[0].onChange: is for a file", []*v1.SecretRef{{Name: "db", Env: "A", OnChange: "restart"}}},
		{"spec.secrets[0].mode: must be a mode of a file in octal", []*v1.SecretRef{{Name: "db", Path: "/s/a", Mode: "0755"}}},
		{"spec.secrets[0].owner: must be a user number", []*v1.SecretRef{{Name: "db", Path: "/s/a", Owner: "root"}}},
		{"spec.secrets[0].signal: is for onChange signal", []*v1.SecretRef{{Name: "db", Path: "/s/a", Signal: "SIGHUP"}}},
		{"spec.secrets[0].signal: must be SIGHUP", []*v1.SecretRef{{Name: "db", Path: "/s/a", OnChange: "signal", Signal: "SIGKILL"}}},
		{`spec.secrets[0].path: "run/a" must be the absolute path`, []*v1.SecretRef{{Name: "db", Path: "run/a"}}},
		{`spec.secrets[0].path: "/s/../etc/a" must be the absolute path`, []*v1.SecretRef{{Name: "db", Path: "/s/../etc/a"}}},
		{`spec.secrets[0].path: "/s/a/" must be the absolute path`, []*v1.SecretRef{{Name: "db", Path: "/s/a/"}}},
		{"spec.secrets[0].path: has a control character", []*v1.SecretRef{{Name: "db", Path: "/s/a\n"}}},
		{"spec.secrets[0].path: /proc/self/environ is among the files of the kernel", []*v1.SecretRef{{Name: "db", Path: "/proc/self/environ"}}},
		{"spec.secrets[0].path: /dev/shm/a is among the files of the kernel", []*v1.SecretRef{{Name: "db", Path: "/dev/shm/a"}}},
		{"spec.secrets[0].path: would replace /etc: the folder of a secret holds secrets only", []*v1.SecretRef{{Name: "db", Path: "/etc/a"}}},
		{"spec.secrets[0].path: would replace /: ", []*v1.SecretRef{{Name: "db", Path: "/a"}}},
		{"spec.secrets[1].path: is the path of spec.secrets[0] too", []*v1.SecretRef{{Name: "db", Path: "/s/a"}, {Name: "x", Path: "/s/a"}}},
		{"spec.secrets[1].path: cannot be a folder and a file at once", []*v1.SecretRef{{Name: "db", Path: "/s/a"}, {Name: "x", Path: "/s/a/b"}}},
		{"spec.secrets[1].path: and that of spec.secrets[0] are in folders of which one is inside", []*v1.SecretRef{{Name: "db", Path: "/s/a"}, {Name: "x", Path: "/s/b/c"}}},
	} {
		w := &v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "web:1", Env: map[string]string{"TAKEN": "1"}, Secrets: c.refs}}
		if err := Validate(w); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.refs, err, c.want)
		}
	}
}

func TestSecretsOfAWorkloadHaveOneForm(t *testing.T) {
	long := &v1.WorkloadSpec{Secrets: []*v1.SecretRef{
		{Name: "db", Env: "DB"}, {Name: "tls", Path: "/run/secrets/tls", Mode: "400", OnChange: "signal", Signal: "SIGHUP"}, {Name: "db", Path: "/run/secrets/db", OnChange: "none"},
	}}
	short := &v1.WorkloadSpec{Secrets: []*v1.SecretRef{
		{Name: "db", Env: "DB"}, {Name: "tls", Path: "/run/secrets/tls", OnChange: "signal"}, {Name: "db", Path: "/run/secrets/db"},
	}}
	if !Equal(long, short) {
		t.Errorf("they differ in %v", Diff(long, short))
	}
	if err := Validate(&v1.Workload{Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: "web:1", Secrets: short.GetSecrets()}}); err != nil {
		t.Error(err)
	}
	other := proto.CloneOf(short)
	other.Secrets[1].Mode = "0440"
	if ReplacesNone(short, other) {
		t.Error("another mode of a file makes no revision")
	}
	if changes := Diff(short, other); len(changes) != 1 || changes[0] != (FieldChange{Field: "spec.secrets[1].mode", Old: "0400", New: "0440"}) {
		t.Errorf("the difference is %v", changes)
	}
}

func TestSecretHasOneForm(t *testing.T) {
	got := NormalSecret(&v1.SecretSpec{Audience: []string{"b", "a"}, Ttl: "60m"})
	if !proto.Equal(got, &v1.SecretSpec{Audience: []string{"a", "b"}, Ttl: "1h"}) {
		t.Errorf("it is %v", got)
	}
}
