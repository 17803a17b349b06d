package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
	"github.com/cloudless/cloudless/internal/state"
)

// unfinished is a body that never arrives.
type unfinished struct{ done <-chan struct{} }

func (u unfinished) Read([]byte) (int, error) {
	<-u.done
	return 0, io.EOF
}

// The answer comes although the message was never sent.
func TestAnonymousCallIsRefusedBeforeItsMessageIsRead(t *testing.T) {
	c := newCluster(t)
	for who, as := range map[string]*user{"nobody": c.dial(nil, ""), "garbage": c.dial(nil, "garbage")} {
		stream, err := as.conn.NewStream(c.ctx, &grpc.StreamDesc{ClientStreams: true}, v1.WorkloadService_CreateWorkload_FullMethodName)
		must(t, err)
		wantCode(t, stream.RecvMsg(&v1.Workload{}), codes.Unauthenticated)
		if t.Failed() {
			t.Fatalf("as %s", who)
		}
	}
}

// A certificate alone is not enough: the state must know its bearer.
func TestCertificatesOfNonMembersAreRefusedBeforeTheirMessageIsRead(t *testing.T) {
	c := newCluster(t)
	never := "0190aaaa-0000-7000-8000-000000000000"
	callers := map[string]*user{
		"a node":   c.dial(c.certificateOf(identity.KindNode, never), ""),
		"a server": c.dial(c.certificateOf(identity.KindServer, never), ""),
	}
	for who, as := range callers {
		for _, method := range []string{
			v1.WorkloadService_CreateWorkload_FullMethodName, v1.EnrollmentService_Enroll_FullMethodName,
			v1.PeerService_DropImage_FullMethodName, v1.PeerService_CopyImage_FullMethodName, v1.PeerService_PassCalls_FullMethodName,
		} {
			want := codes.Unauthenticated
			if who == "a server" && method == v1.WorkloadService_CreateWorkload_FullMethodName {
				want = codes.PermissionDenied
			}
			if got := c.callUnfinished(as, method); status.Code(got) != want {
				t.Errorf("%s calls %s: %v", who, method, got)
			}
		}
	}
}

func TestDeletedTokenIsRefusedBeforeTheMessageIsRead(t *testing.T) {
	c := newCluster(t)
	c.as(core.RoleAdmin) // who stays
	as := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "gone"}))
	_, err := as.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"}) // authenticates the connection
	must(t, err)
	wantCode(t, c.callUnfinished(as, v1.WorkloadService_CreateWorkload_FullMethodName), codes.Unauthenticated)
}

// The server authenticates the caller before and after it reads the message.
func TestTokenDeletedDuringTheMessageIsRefused(t *testing.T) {
	c := newCluster(t)
	c.as(core.RoleAdmin) // who stays
	as := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "gone"}))
	stream, err := as.conn.NewStream(c.ctx, &grpc.StreamDesc{ClientStreams: true}, v1.WorkloadService_CreateWorkload_FullMethodName)
	must(t, err)
	_, err = as.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"}) // the server has seen the headers of both calls
	must(t, err)
	must(t, stream.SendMsg(&v1.CreateWorkloadRequest{}))
	must(t, stream.CloseSend())
	wantCode(t, stream.RecvMsg(&v1.Workload{}), codes.Unauthenticated, "the API token is not valid")
}

// A connection that was authenticated once is also closed if it then brings nothing but refused calls.
func TestRefusedCallsCloseAnAuthenticatedConnection(t *testing.T) {
	c := newCluster(t)
	c.as(core.RoleAdmin) // who stays
	as := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin, Name: "gone"}))
	_, err := as.DeleteToken(c.ctx, &v1.DeleteTokenRequest{Name: "gone"})
	must(t, err)
	var connection string
	for range oneport.DefaultLimits().Refusals + 2 {
		var from peer.Peer
		_, err := as.ListNodes(c.ctx, &v1.ListNodesRequest{}, grpc.Peer(&from))
		if status.Code(err) == codes.Unavailable || connection != "" && from.LocalAddr.String() != connection {
			return
		}
		wantCode(t, err, codes.Unauthenticated)
		connection = from.LocalAddr.String()
	}
	t.Error("all calls came over one connection")
}

// A node may reach a server that does not know it yet.
func TestUnknownNodeIsLookedUpOnce(t *testing.T) {
	c := newCluster(t)
	uid := "0190aaaa-0000-7000-8000-000000000000"
	catchUps := 0
	c.catchUpWithLeader = func(context.Context) error {
		catchUps++
		c.change(func(_ *state.Snapshot, b *state.Batch) {
			b.Create(&v1.Node{Metadata: &v1.Metadata{Uid: uid, Name: "machine"}, Spec: &v1.NodeSpec{}})
		})
		return nil
	}
	as := c.dial(c.certificateOf(identity.KindNode, uid), "")
	for range 2 {
		must(t, knock(c.ctx, as.conn, "/grpc.health.v1.Health/Check", false))
	}
	if catchUps != 1 {
		t.Errorf("%d catch-ups", catchUps)
	}
}

// callUnfinished makes a call, sends nothing, and returns the answer.
func (c *cluster) callUnfinished(as *user, method string) error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute) // only for calls without an answer
	defer cancel()
	stream, err := as.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
	must(c.t, err)
	return stream.RecvMsg(&v1.Workload{})
}

func TestAnonymousRequestIsRefusedBeforeItsBodyIsRead(t *testing.T) {
	c := newCluster(t)
	for _, protocols := range [][]string{{"http/1.1"}, {"h2", "http/1.1"}} {
		for _, path := range []string{
			"/v1/workloads", "/v1/enroll", "/v2/app/blobs/uploads/", v1.EnrollmentService_Enroll_FullMethodName,
		} {
			answer := c.postUnfinished(path, "application/json", protocols...)
			if answer.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s by %s: %s", path, protocols[0], answer.Status)
			}
		}
	}
}

// postUnfinished sends the headers of an anonymous request, and returns the headers of the answer.
func (c *cluster) postUnfinished(path, contentType string, protocols ...string) *http.Response {
	c.t.Helper()
	return c.postUnfinishedAs(nil, path, contentType, protocols...)
}

func (c *cluster) postUnfinishedAs(member *identity.Credentials, path, contentType string, protocols ...string) *http.Response {
	c.t.Helper()
	var source identity.CertificateSource
	if member != nil {
		source = member.Certificate
	}
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute) // only for requests without an answer
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://cloudless"+path, unfinished{done})
	must(c.t, err)
	r.Header.Set("Content-Type", contentType)
	response, err := c.webSpeaking(source, protocols...).Do(r)
	close(done)
	must(c.t, err)
	_ = response.Body.Close()
	return response
}

// Clients that also offer HTTP/1.1 reach gRPC through net/http.
func TestAnonymousCallThroughHTTPIsRefusedBeforeItsMessageIsRead(t *testing.T) {
	c := newCluster(t)
	response := c.postUnfinished(v1.WorkloadService_CreateWorkload_FullMethodName, "application/grpc", "h2", "http/1.1")
	if got, want := response.Header.Get("Grpc-Status"), fmt.Sprint(int(codes.Unauthenticated)); got != want {
		t.Errorf("status %q, want %s; headers %v", got, want, response.Header)
	}
	if message := response.Header.Get("Grpc-Message"); !strings.Contains(message, "needs") {
		t.Errorf("it says %q", message)
	}
}

// Load balancers ask for the health of a server again and again. The server closes such a connection in time.
func TestHealthChecksPerConnectionAreLimited(t *testing.T) {
	c := newCluster(t)
	web := c.webWithoutHTTP2()
	most := oneport.DefaultLimits().Refusals
	for i := 1; i <= 2*most; i++ {
		r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "https://cloudless/healthz", http.NoBody)
		must(t, err)
		response, err := web.Do(r)
		must(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		must(t, err)
		_ = response.Body.Close()
		if last := i%most == 0; response.Close != last || response.StatusCode != http.StatusOK {
			t.Errorf("answer %d is %s and ends the connection: %v, want %v", i, response.Status, response.Close, last)
		}
	}
}

// The same holds for certificates that the state does not know.
func TestCertificatesOfNonMembersAreRefusedThroughHTTP(t *testing.T) {
	c := newCluster(t)
	for _, kind := range []identity.Kind{identity.KindNode, identity.KindServer} {
		for _, method := range []string{v1.WorkloadService_CreateWorkload_FullMethodName, v1.EnrollmentService_Enroll_FullMethodName} {
			want := codes.Unauthenticated
			if kind == identity.KindServer && !isOpen(method) {
				want = codes.PermissionDenied
			}
			response := c.postUnfinishedAs(c.certificateOf(kind, "never"), method, "application/grpc", "h2", "http/1.1")
			if got := response.Header.Get("Grpc-Status"); got != fmt.Sprint(int(want)) {
				t.Errorf("a %s calls %s: status %q, want %d", kind, method, got, want)
			}
		}
	}
}

// The message never arrives completely: the connection is cut long before.
func TestEnrollMessageOfMegabytesIsCutOff(t *testing.T) {
	c := newCluster(t)
	_, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: "x", Csr: make([]byte, 7<<20)})
	wantCode(t, err, codes.Unavailable)
}

func TestAuthenticatedCallersMaySendMegabytes(t *testing.T) {
	c := newCluster(t)
	_, err := c.as(core.RoleAdmin).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: strings.Repeat("x", 7<<20)},
	}})
	wantCode(t, err, codes.InvalidArgument, "spec.image")
}

// A burst of machines that join from one address exceeds the connections that one address may have open without an
// identity.
func TestMachinesJoinInBursts(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		o.Strangers = oneport.DefaultLimits()
		o.Strangers.SourceBurst, o.Strangers.SourceRate, o.Strangers.SourceHandshakes = 4, 0, 4
	})
	const machines = 60
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: machines})
	var all sync.WaitGroup
	for i := range machines {
		all.Go(func() {
			if _, err := c.enroll(fmt.Sprintf("machine-%d", i), token); err != nil {
				t.Errorf("machine %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// streamsAllowed returns how many streams the server lets a connection have open; 0 means any number.
func (c *cluster) streamsAllowed(member *identity.Credentials) uint32 {
	c.t.Helper()
	var source identity.CertificateSource
	if member != nil {
		source = member.Certificate
	}
	config := identity.ClientTLS(c.ca.Trust(), source)
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", c.Address(), config)
	must(c.t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(c.t, err)
	frames := http2.NewFramer(conn, conn)
	must(c.t, frames.WriteSettings())
	frame, err := frames.ReadFrame()
	must(c.t, err)
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok {
		c.t.Fatalf("the server begins with %v", frame)
	}
	most, _ := settings.Value(http2.SettingMaxConcurrentStreams)
	return most
}

// A server relays the sessions of all agents that are connected to it over one connection.
func TestStreamsAreLimitedExceptForServers(t *testing.T) {
	c := newCluster(t)
	if got := c.streamsAllowed(nil); got != callerStreams {
		t.Errorf("a caller without a certificate may have %d streams", got)
	}
	if got := c.streamsAllowed(c.certificateOf(identity.KindNode, "n-1")); got != memberStreams {
		t.Errorf("a node may have %d streams", got)
	}
	if got := c.streamsAllowed(c.certificateOf(identity.KindServer, "s-2")); got != 0 {
		t.Errorf("a server may have only %d streams", got)
	}
}

// Calls with an identity show that a server is doing useful work.
func TestOnlyAuthenticatedCallsAreCounted(t *testing.T) {
	c := newCluster(t)
	before := c.memberCalls.Count()
	_ = knock(c.ctx, c.dial(nil, "").conn, "/cloudless.v1.ClusterService/WhoAmI", false)
	if got := c.memberCalls.Count(); got != before {
		t.Errorf("a stranger's call is counted: %d", got-before)
	}
	must(t, knock(c.ctx, c.as(core.RoleViewer).conn, "/cloudless.v1.ClusterService/WhoAmI", false))
	if got := c.memberCalls.Count(); got != before+1 {
		t.Errorf("one call with a token is counted %d times", got-before)
	}
}
