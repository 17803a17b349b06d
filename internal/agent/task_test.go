package agent

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

func TestUnreadableStopFallsBackToDefaults(t *testing.T) {
	for _, c := range []struct {
		asked  *v1.Stop
		signal string
		grace  time.Duration
	}{
		{nil, "SIGTERM", 10 * time.Second},
		{&v1.Stop{Signal: "SIGQUIT", Grace: "0s"}, "SIGQUIT", 0},
		{&v1.Stop{Signal: "SIGQIUT", Grace: "1m"}, "SIGTERM", time.Minute},
		{&v1.Stop{Signal: "99", Grace: "soon"}, "SIGTERM", 10 * time.Second},
	} {
		a := assignment("a", func(w *v1.WorkloadSpec) { w.Stop = c.asked })
		if signal, grace := stopOf(a); signal != c.signal || grace != c.grace {
			t.Errorf("%v: stopped by %s within %s", c.asked, signal, grace)
		}
	}
}

func TestReplicaMayHaveAGracePeriodOfItsOwn(t *testing.T) {
	a := assignment("a", func(w *v1.WorkloadSpec) { w.Stop = &v1.Stop{Grace: "1m"} })
	a.Replica.Spec.StopGrace = "2s"
	if _, grace := stopOf(a); grace != 2*time.Second {
		t.Errorf("its grace period is %s", grace)
	}
}

func TestHostnameFitsAndKeepsTheUniquePart(t *testing.T) {
	long := strings.Repeat("w", 63)
	for name, want := range map[string]string{
		"web-0a1b2c3d":                           "web-0a1b2c3d",
		strings.Repeat("w", 54) + "-0a1b2c3d":    strings.Repeat("w", 54) + "-0a1b2c3d",
		long + "-0a1b2c3d":                       strings.Repeat("w", 54) + "-0a1b2c3d",
		strings.Repeat("w-", 31) + "w-0a1b2c3d":  strings.Repeat("w-", 26) + "w-0a1b2c3d",
		"w" + strings.Repeat("-", 70) + "0a1b2c": "w-0a1b2c",
		long + "wwww":                            long,
	} {
		if got := hostname(name); got != want {
			t.Errorf("%s became %s, want %s", name, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		workload := rapid.StringMatching(`[a-z]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, "workload")
		suffix := rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "suffix")
		got := hostname(workload + "-" + suffix)
		if len(got) > maxHostname || !strings.HasSuffix(got, "-"+suffix) || strings.Contains(got, "--") && !strings.Contains(workload, "--") {
			t.Errorf("%s-%s became %s", workload, suffix, got)
		}
	})
}

func TestReplicaMayDoWhatItsRevisionSays(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		asked  *v1.Security
		filter string // of the revision
		want   driver.Security
	}{
		"nothing":    {nil, "", driver.Security{}},
		"restricted": {&v1.Security{Profile: "restricted"}, "", driver.Security{Profile: driver.Restricted}},
		"everything": {
			&v1.Security{
				Profile: "privileged", Capabilities: &v1.Capabilities{Add: []string{"ALL"}, Drop: []string{"SYS_TIME"}}, Seccomp: "default",
				Apparmor: "own", AllowPrivilegeEscalation: &yes, UserNamespace: &yes,
			}, "",
			driver.Security{
				Profile: driver.Privileged, AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"SYS_TIME"}, Seccomp: "default",
				AppArmor: "own", NewPrivileges: &yes, UserNamespace: &yes,
			},
		},
		"a filter of the revision": {&v1.Security{Seccomp: "strict"}, "{}", driver.Security{Seccomp: "{}"}},
		// A driver refuses a name, so that no replica runs without the filter.
		"a filter that is missing": {&v1.Security{Seccomp: "strict"}, "", driver.Security{Seccomp: "strict"}},
	} {
		a := assignment("a", func(w *v1.WorkloadSpec) { w.Security, w.Sandbox = c.asked, "gvisor" })
		a.Revision.Spec.SeccompProfile = c.filter
		task, err := describe(a, 1, "/logs", driver.LogLimits{})
		if err != nil || !reflect.DeepEqual(task.Security, c.want) || task.Sandbox != "gvisor" {
			t.Errorf("%s: got %+v, %v", name, task.Security, err)
		}
	}
}

func TestFilesInTheMemoryOfASandboxAreNotCopied(t *testing.T) {
	root := driver.Root{Hidden: []string{"/tmp", "/proc"}}
	for path, seen := range map[string]bool{
		"/": true, "/tmpfile": true, "/data/tmp": true, "data": true,
		"/tmp": false, "/tmp/x": false, "tmp/x": false, "/data/../tmp/x": false, "//proc/1/": false,
	} {
		if err := visible("web-1", root, path); (err == nil) != seen {
			t.Errorf("%s: %v", path, err)
		}
	}
}
