package ingress

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// grpcurl lists the services by reflection, which is a bidirectional stream, and calls one of them.
func TestGrpcurlListsAndCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("builds grpcurl; make test runs it")
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	go func() { _ = s.Serve(l) }() // ends with Stop
	defer s.Stop()
	n := newNode(t, routedAs(&v1.RouteSpec{Tls: &v1.RouteTls{Mode: "own"}}, "a.test", "grpc"), certified("a.test"), service("grpc", l.Addr().String()))
	authority := filepath.Join(t.TempDir(), "ca.pem")
	must.Succeed(t, os.WriteFile(authority, []byte(n.config.Certificates["c-a.test"].GetChain()), 0o600))
	for want, what := range map[string]string{"grpc.health.v1.Health": "list", `"SERVING"`: "grpc.health.v1.Health/Check"} {
		out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../tools/go.mod", "grpcurl", "-cacert", authority, "-authority", "a.test",
			fmt.Sprintf("127.0.0.1:%d", n.https), what).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("grpcurl %s: %s, %v", what, out, err)
		}
	}
}
