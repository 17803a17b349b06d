package cli

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestRunAProgram(t *testing.T) {
	c := newCluster(t)
	var seen []string
	images := registry.New()
	c.registry = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		seen = append(seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		c.mu.Unlock()
		images.ServeHTTP(w, r)
	})
	program := buildProgram(t, "arm64")
	c.run(t.Context(), "", "run", program, "--name", "web", "--", "-v").
		expect(t, 0, "workload web created\nweb: 1 of 1 running\n", "")
	if got := c.workloads["web"].GetSpec().GetImage(); got != "hello:latest" {
		t.Errorf("image %s, want that of the program", got)
	}
	if want := "PUT /v2/hello/manifests/latest Bearer clapi_secret"; seen[len(seen)-1] != want {
		t.Errorf("the registry last saw %q, want %q", seen[len(seen)-1], want)
	}

	// Running the same program again changes nothing; an invalid one is refused before
	// anything is sent.
	c.run(t.Context(), "", "run", program, "--name", "web", "--update", "--", "-v").
		expect(t, 0, "workload web unchanged\nweb: 1 of 1 running\n", "")
	sent := len(seen)
	if got := c.run(t.Context(), "", "run", program, "--name", "web", "--network", "wifi"); got.code != 1 || !strings.Contains(got.stderr, "spec.network") {
		t.Errorf("%+v", got)
	}
	if len(seen) != sent {
		t.Errorf("sent for nothing: %q", seen[sent:])
	}
}

// buildProgram builds for an architecture. The node has arm64.
func buildProgram(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "hello.go"), filepath.Join(dir, "hello")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"hello\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func TestRunTakesTheEnvironmentFromFiles(t *testing.T) {
	t.Setenv("HOME_CITY", "Bern")
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.env"), filepath.Join(dir, "second.env")
	for path, text := range map[string]string{
		first:  "# a comment\n\nA=1\r\n  B = two words # and no comment\nHOME_CITY\nC=\"quoted\"\n",
		second: "\ufeffA=2\nEMPTY=\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t)
	c.run(t.Context(), "", "run", "-d", "hello:1", "--env-file", first, "--env-file", second, "-e", "C=flag").expect(t, 0, "workload hello created\n", "")
	got := c.workloads["hello"].GetSpec().GetEnv()
	for key, want := range map[string]string{"A": "2", "B": " two words # and no comment", "HOME_CITY": "Bern", "C": "flag", "EMPTY": ""} {
		if value, found := got[key]; !found || value != want {
			t.Errorf("%s is %q, want %q", key, value, want)
		}
	}
	if len(got) != 5 {
		t.Errorf("the environment is %v", got)
	}
	if err := os.WriteFile(second, []byte("A=1\nNOT_SET_ANYWHERE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{second: second + ", line 2: ", filepath.Join(dir, "none"): "no such file"} {
		refused := newCluster(t).run(t.Context(), "", "run", "hello:1", "--env-file", path)
		if refused.code != 2 || !strings.Contains(refused.stderr, want) {
			t.Errorf("%s: %+v", path, refused)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("# comment\nA=1\nB\n")
	f.Fuzz(func(t *testing.T, text string) {
		values, err := parseEnvFile("file", text, func(string) (string, bool) { return "looked up", true })
		if err != nil && values != nil {
			t.Errorf("got both %v and %v", values, err)
		}
		for key, value := range values {
			if key == "" || strings.ContainsAny(key, "=\n ") || strings.ContainsAny(value, "\n\r") {
				t.Errorf("%q has %q=%q", text, key, value)
			}
		}
	})
}

// Run shows the output of a job whether it completes or fails.
func TestRunShowsTheOutputOfAJob(t *testing.T) {
	for phase, code := range map[string]int{"completed": 0, "failed": 1} {
		c := kinds(t, phase)
		c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1), entry("hello-a", "two", 2)}
		got := c.run(t.Context(), "", "run", "hello:1", "--kind", "job")
		if got.code != code || !strings.HasSuffix(got.stdout, "one\ntwo\n") || !c.lastLogs.GetEnded() || c.lastLogs.GetWorkload() != "hello" {
			t.Errorf("%s: %+v; it asks for the output %v", phase, got, c.lastLogs)
		}
		if c.workloads["hello"] == nil {
			t.Errorf("%s: the job was removed without --rm", phase)
		}
	}
	c := kinds(t, "completed")
	c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1)}
	c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--detach").expect(t, 0, "workload hello created\n", "")
}

func TestRunRemovesAJobThatHasEnded(t *testing.T) {
	for phase, code := range map[string]int{"completed": 0, "failed": 1} {
		c := kinds(t, phase)
		c.entries = []*cloudlessv1.LogEntry{entry("hello-a", "one", 1)}
		got := c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--rm")
		if got.code != code || !strings.Contains(got.stdout, "one\n") || c.workloads["hello"] != nil {
			t.Errorf("%s: %+v; %v is left", phase, got, c.workloads["hello"])
		}
		if strings.Contains(got.stderr, "cloudless logs") {
			t.Errorf("%s: what is removed has no output to see any more: %s", phase, got.stderr)
		}
	}
	// A job that still runs at the timeout is not removed.
	c := kinds(t, "running")
	late := c.run(t.Context(), "", "run", "hello:1", "--kind", "job", "--rm", "--timeout", "1ms")
	if late.code != 1 || c.workloads["hello"] == nil || !strings.Contains(late.stderr, "cloudless workload rm hello") {
		t.Errorf("%+v", late)
	}
	for _, args := range [][]string{{"--rm"}, {"--rm", "--kind", "daemon"}, {"--rm", "--kind", "job", "--detach"}} {
		refused := newCluster(t).run(t.Context(), "", append([]string{"run", "hello:1"}, args...)...)
		if refused.code != 2 || !strings.Contains(refused.stderr, "--rm") {
			t.Errorf("%v: %+v", args, refused)
		}
	}
}
