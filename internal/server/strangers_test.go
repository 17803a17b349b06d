package server

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// unfinished is a body of which nothing ever comes.
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

// postUnfinished sends the headers of a request by nobody, and returns those of the answer.
func (c *cluster) postUnfinished(path, contentType string, protocols ...string) *http.Response {
	c.t.Helper()
	done := make(chan struct{})
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, "https://cloudless"+path, unfinished{done})
	must(c.t, err)
	r.Header.Set("Content-Type", contentType)
	response, err := c.webSpeaking(nil, protocols...).Do(r)
	close(done)
	must(c.t, err)
	_ = response.Body.Close()
	return response
}

// Clients that offer HTTP/1.1, too, come to gRPC through net/http.
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

// Load balancers ask for the health of a server again and again. They are told in time that a connection has served
// its turn.
func TestHealthIsToldSoManyTimesOnOneConnection(t *testing.T) {
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

// The message never arrives as a whole: the connection is cut long before.
func TestEnrollMessageOfMegabytesIsCutOff(t *testing.T) {
	c := newCluster(t)
	_, err := c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{Token: "x", Csr: make([]byte, 7<<20)})
	wantCode(t, err, codes.Unavailable)
}

func TestCallersWithATokenSendMegabytes(t *testing.T) {
	c := newCluster(t)
	_, err := c.as(roleAdmin).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: &v1.Workload{
		Metadata: &v1.Metadata{Name: "web"}, Spec: &v1.WorkloadSpec{Image: strings.Repeat("x", 7<<20)},
	}})
	wantCode(t, err, codes.InvalidArgument, "spec.image")
}

// A burst of machines that join from one address is bigger than what strangers of one address may have open.
func TestMachinesJoinInBursts(t *testing.T) {
	c := newCluster(t, func(o *Options) {
		o.Strangers = oneport.DefaultLimits()
		o.Strangers.SourceBurst, o.Strangers.SourceRate, o.Strangers.SourceHandshakes = 4, 0, 4
	})
	const machines = 60
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: roleNode, Uses: machines})
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

// streamsAllowed is how many streams the server lets a connection have open, 0 for any number.
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
