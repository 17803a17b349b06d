package oneport

import (
	"net"
	"testing"
)

func TestGRPCIsToldByItsContentType(t *testing.T) {
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
