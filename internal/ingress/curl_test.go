package ingress

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

func TestCurlSpeaksEveryVersion(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	n := newNode(t, service("web", says(t, "hello")), certified("a.test"),
		routedAs(&v1.RouteSpec{Tls: &v1.RouteTls{Mode: "own"}, Http: &v1.RouteHttp{Plain: "serve"}}, "a.test", "web"))
	authority := filepath.Join(t.TempDir(), "ca.pem")
	must.Succeed(t, os.WriteFile(authority, []byte(n.config.Certificates["c-a.test"].GetChain()), 0o600))
	for _, c := range []struct {
		scheme, flag, want string
		port               int
	}{
		{"http", "--http1.0", "hello 1.1", n.http}, // the answer has the version of the server
		{"http", "--http1.1", "hello 1.1", n.http},
		{"http", "--http2-prior-knowledge", "hello 2", n.http},
		{"https", "--http1.1", "hello 1.1", n.https},
		{"https", "--http2", "hello 2", n.https},
	} {
		out, err := exec.CommandContext(t.Context(), curl, "-sS", c.flag, "--cacert", authority, "--resolve", fmt.Sprintf("a.test:%d:127.0.0.1", c.port),
			"-w", " %{http_version}", fmt.Sprintf("%s://a.test:%d/", c.scheme, c.port)).CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%s %s: %q, %v, want %q", c.scheme, c.flag, out, err, c.want)
		}
	}
}
