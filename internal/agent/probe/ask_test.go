package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// at is a target with a port at 127.0.0.1. An address that refuses connections comes first.
func at(t *testing.T, address string) (Target, int32) {
	t.Helper()
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	w := spec.Normalized(&v1.WorkloadSpec{Ports: []*v1.Port{{Port: int32(to.Port())}}})
	return Target{Workload: w, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.77"), to.Addr()}}, int32(to.Port())
}

func (t Target) http(ctx context.Context, h *v1.HttpProbe) Result {
	w := spec.Normalized(&v1.WorkloadSpec{Probes: &v1.Probes{Liveness: &v1.Probe{Http: h}}})
	return t.Ask(ctx, w.GetProbes().GetLiveness())
}

func TestHTTPProbe(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/bad":
			http.Error(w, "the database is away", http.StatusServiceUnavailable)
		case "/named":
			if r.Host != "shop.example" || r.Header.Get("X-Probe") != "1" || r.UserAgent() != userAgent || r.URL.RawQuery != "full=1" {
				t.Errorf("got %s %v %s", r.Host, r.Header, r.URL.RawQuery)
			}
		case "/huge":
			w.WriteHeader(http.StatusInternalServerError)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}
	})
	for _, server := range []*httptest.Server{httptest.NewServer(handler), httptest.NewTLSServer(handler)} {
		defer server.Close()
		scheme, address, _ := strings.Cut(server.URL, "://")
		target, port := at(t, address)
		for path, want := range map[string]string{
			"": "", "/moved": "", "/named?full=1": "", "/bad": "answered with status 503", "/huge": "answered with status 500",
		} {
			got := target.http(t.Context(), &v1.HttpProbe{Path: path, Scheme: scheme, Host: "shop.example", Headers: map[string]string{"X-Probe": "1"}, Port: port})
			if got.OK != (want == "") || !strings.Contains(got.Reason, want) || got.Unknown {
				t.Errorf("%s%s: %+v", scheme, path, got)
			}
			if path == "/bad" && !strings.Contains(got.Output, "the database is away") {
				t.Errorf("the output is %q", got.Output)
			}
		}
	}
}

func TestTCPProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target, port := at(t, l.Addr().String())
	if got := target.Ask(t.Context(), &v1.Probe{Tcp: &v1.TcpProbe{}}); !got.OK {
		t.Errorf("the first port of the workload: %+v", got)
	}
	l.Close()
	if got := target.Ask(t.Context(), &v1.Probe{Tcp: &v1.TcpProbe{Port: port}}); got.OK || !strings.HasPrefix(got.Reason, "nothing listens on port ") {
		t.Errorf("a closed port: %+v", got)
	}
}

func TestGRPCProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(server, state)
	state.SetServingStatus("shop.Cart", healthv1.HealthCheckResponse_NOT_SERVING)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	target, _ := at(t, l.Addr().String())
	for service, want := range map[string]string{"": "", "shop.Cart": "answered NOT_SERVING", "shop.Lost": "does not know service shop.Lost"} {
		got := target.Ask(t.Context(), &v1.Probe{Grpc: &v1.GrpcProbe{Service: service}})
		if got.OK != (want == "") || !strings.Contains(got.Reason, want) {
			t.Errorf("service %q: %+v", service, got)
		}
	}
	other := grpc.NewServer()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = other.Serve(plain) }()
	defer other.Stop()
	target, _ = at(t, plain.Addr().String())
	if got := target.Ask(t.Context(), &v1.Probe{Grpc: &v1.GrpcProbe{}}); !strings.Contains(got.Reason, "has no gRPC health service") {
		t.Errorf("a server without the health service: %+v", got)
	}
}

func TestExecProbe(t *testing.T) {
	exec := &v1.Probe{Exec: &v1.ExecProbe{Command: []string{"check"}}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		code int
		err  error
		want Result
	}{
		"success":        {t.Context(), 0, nil, Result{OK: true}},
		"failure":        {t.Context(), 2, nil, Result{Reason: "command check exited with code 2", Output: "said"}},
		"no command":     {t.Context(), 0, ErrNoCommand, Result{Reason: "command check cannot be run in the replica", Output: ErrNoCommand.Error()}},
		"timeout":        {ended, 0, context.Canceled, Result{Reason: "the command did not end in time", Output: "said"}},
		"broken driver":  {t.Context(), 0, errors.New("no containerd"), Result{Unknown: true, Reason: "no containerd"}},
		"busy until end": {ended, 0, Unasked(errors.New("busy")), Result{Unknown: true, Reason: "busy"}},
	} {
		target := Target{Exec: func(context.Context, []string) (int, string, error) { return c.code, "said", c.err }}
		if got := target.Ask(c.ctx, exec); got != c.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	var out Output
	_, _ = out.Write([]byte(strings.Repeat("x", 10*maxOutput)))
	if len(out.String()) != 2*maxOutput {
		t.Errorf("%d bytes are kept", len(out.String()))
	}
}

// The sockets of this very process, which are in its own tables of /proc.
func TestListeningFindsRealSockets(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	local, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	port := func(a net.Addr) int32 { return int32(netip.MustParseAddrPort(a.String()).Port()) }
	w := &v1.WorkloadSpec{Ports: []*v1.Port{{Port: port(l.Addr())}, {Port: port(u.LocalAddr()), Protocol: "udp"}}}
	if got := Listening(os.Getpid(), w); !got.OK {
		t.Errorf("both listen: %+v", got)
	}
	w.Ports = append(w.Ports, &v1.Port{Port: port(local.Addr())})
	if got := Listening(os.Getpid(), w); got.OK || !strings.Contains(got.Reason, "at a loopback address only") {
		t.Errorf("one is local: %+v", got)
	}
	w.Network = networkHost
	if got := Listening(os.Getpid(), w); !got.OK {
		t.Errorf("on the host's network: %+v", got)
	}
	l.Close()
	if got := Listening(os.Getpid(), w); got.OK || !strings.Contains(got.Reason, "It does not listen on port ") {
		t.Errorf("one is closed: %+v", got)
	}
}

// Connections come after all listening sockets and are not read; a connected UDP socket serves nobody.
func TestConnectionsAreNotListeners(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:0050 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 00000000:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
`
	found, err := parseSockets(strings.NewReader(table), "tcp")
	if err != nil || len(found) != 1 || found[0].address.Port() != 8080 {
		t.Errorf("found %v, %v", found, err)
	}
	if _, err := parseSockets(strings.NewReader("0: nonsense 0 0A"), "tcp"); err == nil {
		t.Error("nonsense was read")
	}
}
