package oneport

import (
	"net"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cloudless/cloudless/internal/identity"
)

func TestGRPCIsRecognizedByItsContentType(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc":               true,
		"application/grpc+proto":         true,
		"application/grpc;charset=utf-8": true,
		"application/grpc-web":           false,
		"application/grpc-web+proto":     false,
		"application/json":               false,
		"":                               false,
	} {
		if isGRPC(contentType) != want {
			t.Errorf("isGRPC(%q) = %v", contentType, !want)
		}
	}
}

func TestCredentialsRefuseAConnectionThatIsNotOfThePort(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	creds := (&Port{}).GRPCCredentials()
	if _, _, err := creds.ServerHandshake(near); err == nil {
		t.Error("a connection without TLS was taken for one with")
	}
	if _, _, err := creds.ClientHandshake(t.Context(), "x", near); err == nil {
		t.Error("a client was given the credentials of a server")
	}
}

func TestDataOfMembersCanBeHeld(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	held, letGo := make(chan identity.ID, 100), make(chan struct{})
	o.Hold = func(id identity.ID) func() {
		return func() {
			held <- id
			<-letGo
		}
	}
	s := serve(t, c, o)
	client := s.dial(t, identity.ClientTLS(c.ca.Trust(), c.member(t, identity.KindNode, "n-1").Certificate))
	answered := make(chan error, 1)
	go func() {
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		answered <- err
	}()
	if id := <-held; id.Kind() != identity.KindNode || id.Name() != "n-1" {
		t.Errorf("%s was held", id)
	}
	select {
	case <-answered:
		t.Error("what is held was answered")
	default:
	}
	close(letGo)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestStrangersAreNotHeld(t *testing.T) {
	c := newCluster(t)
	o := c.options(t)
	o.Hold = func(id identity.ID) func() {
		t.Errorf("%s was held", id)
		return nil
	}
	s := serve(t, c, o)
	if _, err := s.dial(t, identity.ClientTLS(c.ca.Trust(), nil)).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}
