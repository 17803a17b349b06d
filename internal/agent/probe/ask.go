package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Target is a replica as probes reach it from its node.
type Target struct {
	Workload *v1.WorkloadSpec
	// Addresses are those that the program listens on, the preferred one first.
	Addresses []netip.Addr
	// Exec runs a command in the replica and returns the beginning of its output. The end of ctx kills it. The error is
	// ErrNoCommand if the command does not exist in the replica, and Unasked if the machine could not run it.
	Exec func(ctx context.Context, command []string) (code int, output string, err error)
}

// ErrNoCommand says that a command does not exist in the replica, or cannot be run there.
var ErrNoCommand = errors.New("the command cannot be run")

// unasked wraps an error that says nothing about the program.
type unasked struct{ error }

// Unasked marks an error that says nothing about the program: the command was not run, for a reason of the machine.
func Unasked(err error) error { return unasked{err} }

// Ask makes one attempt of a probe.
func (t Target) Ask(ctx context.Context, p *v1.Probe) Result {
	switch {
	case p.GetHttp() != nil:
		return t.askHTTP(ctx, p.GetHttp())
	case p.GetTcp() != nil:
		return t.askTCP(ctx, spec.ProbePort(t.Workload, p.GetTcp().GetPort()))
	case p.GetGrpc() != nil:
		return t.askGRPC(ctx, p.GetGrpc())
	default:
		return t.askExec(ctx, p.GetExec().GetCommand())
	}
}

// dial connects to a port at the first address that accepts.
func (t Target) dial(ctx context.Context, port int32) (conn net.Conn, err error) {
	err = errors.New("the replica has no address")
	for _, a := range t.Addresses {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

func (t Target) askTCP(ctx context.Context, port int32) Result {
	conn, err := t.dial(ctx, port)
	if err != nil {
		return unreachable(port, err)
	}
	_ = conn.Close()
	return Result{OK: true}
}

// unreachable is the result of a failed connection, in short words for the commonest reason.
func unreachable(port int32, err error) Result {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return Result{Reason: fmt.Sprintf("nothing listens on port %d", port)}
	}
	return Result{Reason: fmt.Sprintf("port %d cannot be reached: %v", port, err)}
}

// userAgent lets programs recognize probes in their logs.
const userAgent = "cloudless-probe"

func (t Target) askHTTP(ctx context.Context, h *v1.HttpProbe) Result {
	port := spec.ProbePort(t.Workload, h.GetPort())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.GetScheme()+"://"+net.JoinHostPort(t.host(), strconv.Itoa(int(port)))+h.GetPath(), nil)
	if err != nil {
		return Result{Unknown: true, Reason: err.Error()}
	}
	request.Header.Set("User-Agent", userAgent)
	for key, value := range h.GetHeaders() {
		request.Header.Set(key, value)
	}
	request.Host = h.GetHost()
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx, port) },
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: h.GetHost()}, // it asks whether the program works, not who it is
	}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(request) // follows no redirect
	if err != nil {
		if refused := new(net.OpError); errors.As(err, &refused) && refused.Op == "dial" {
			return unreachable(port, err)
		}
		return Result{Reason: fmt.Sprintf("GET %s on port %d failed: %v", h.GetPath(), port, err)}
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusOK && answer.StatusCode < http.StatusBadRequest {
		return Result{OK: true}
	}
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 2*maxOutput))
	return Result{Reason: fmt.Sprintf("GET %s on port %d answered with status %d", h.GetPath(), port, answer.StatusCode), Output: string(body)}
}

// maxHeader is how large the header of an answer may be.
const maxHeader = 64 << 10

// host is the address that a request names if its probe names no host.
func (t Target) host() string {
	if len(t.Addresses) == 0 {
		return "localhost"
	}
	return t.Addresses[0].String()
}

func (t Target) askGRPC(ctx context.Context, g *v1.GrpcProbe) Result {
	port := spec.ProbePort(t.Workload, g.GetPort())
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(t.host(), strconv.Itoa(int(port))),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return t.dial(ctx, port) }))
	if err != nil {
		return Result{Unknown: true, Reason: err.Error()}
	}
	defer conn.Close()
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: g.GetService()})
	what := fmt.Sprintf("the gRPC health service on port %d", port)
	switch {
	case err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING:
		return Result{OK: true}
	case err == nil:
		return Result{Reason: fmt.Sprintf("%s answered %s", what, answer.GetStatus())}
	case status.Code(err) == codes.Unimplemented:
		return Result{Reason: fmt.Sprintf("the program on port %d has no gRPC health service", port)}
	case status.Code(err) == codes.NotFound:
		return Result{Reason: fmt.Sprintf("%s does not know service %s", what, cmp.Or(g.GetService(), `""`))}
	case status.Code(err) == codes.Unavailable && ctx.Err() == nil:
		return Result{Reason: fmt.Sprintf("port %d cannot be reached: %s", port, status.Convert(err).Message())}
	}
	return Result{Reason: fmt.Sprintf("%s failed: %s", what, status.Convert(err).Message())}
}

func (t Target) askExec(ctx context.Context, command []string) Result {
	code, output, err := t.Exec(ctx, command)
	if _, is := errors.AsType[unasked](err); is {
		return Result{Unknown: true, Reason: err.Error()}
	}
	switch {
	case errors.Is(err, ErrNoCommand):
		return Result{Reason: fmt.Sprintf("command %s cannot be run in the replica", command[0]), Output: err.Error()}
	case err != nil && ctx.Err() != nil:
		return Result{Reason: "the command did not end in time", Output: output}
	case err != nil:
		return Result{Unknown: true, Reason: err.Error()}
	case code != 0:
		return Result{Reason: fmt.Sprintf("command %s exited with code %d", command[0], code), Output: output}
	}
	return Result{OK: true}
}

// Output keeps the beginning of what a command prints.
type Output struct {
	mu   sync.Mutex // both streams write to it
	kept []byte
}

// Write takes everything, and keeps what fits.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if room := 2*maxOutput - len(o.kept); room > 0 {
		o.kept = append(o.kept, b[:min(room, len(b))]...)
	}
	return len(b), nil
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}
