package cli

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
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

	// The same program again is no change; what does not hold is refused before anything is sent.
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

// buildProgram builds for an architecture; that of the node is arm64.
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
