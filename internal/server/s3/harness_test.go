package s3

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/s3/s3test"
)

// gateway is a gateway behind a port of the test, over a store with nodes in memory.
type gateway struct {
	t         testing.TB
	url       string
	names     *objecttest.Names
	disks     *objecttest.Disks
	store     *object.Store
	directory *s3test.Directory
	http      *http.Client
}

const (
	keyID  = "clkey00000000000000a"
	secret = "a secret of forty characters, more or less"
)

func newGateway(t testing.TB) *gateway {
	return newGatewayWith(t, Options{})
}

func newGatewayWith(t testing.TB, o Options) *gateway {
	t.Helper()
	g := &gateway{t: t, names: objecttest.NewNames(t), disks: objecttest.NewDisks("a", "b", "c")}
	var err error
	g.store, err = object.New(object.Options{Names: g.names, Disks: g.disks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.store.Close)
	g.directory = s3test.NewDirectory(g.store)
	g.directory.AddKey(keyID, secret, "shop", "operator")
	o.Store, o.Directory = g.store, g.directory
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	handler, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handler.Close)
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	g.url = server.URL
	g.http = server.Client()
	g.http.Transport.(*http.Transport).TLSClientConfig.MinVersion = tls.VersionTLS13
	return g
}

var discard = slog.New(slog.DiscardHandler)

// client returns a client with a key.
func (g *gateway) client(id, secret string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &g.url, Region: "us-east-1", UsePathStyle: true, HTTPClient: g.http, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(id, secret, ""),
	})
}

// own is the client with the key that may do everything in namespace shop.
func (g *gateway) own() *s3.Client { return g.client(keyID, secret) }

func (g *gateway) bucket(name string) {
	g.t.Helper()
	if _, err := g.own().CreateBucket(g.t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) put(bucket, key string, data []byte) *s3.PutObjectOutput {
	g.t.Helper()
	out, err := g.own().PutObject(g.t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(data)})
	if err != nil {
		g.t.Fatal(err)
	}
	return out
}

func (g *gateway) get(bucket, key string) []byte {
	g.t.Helper()
	out, err := g.own().GetObject(g.t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		g.t.Fatal(err)
	}
	defer out.Body.Close()
	data, err := io.ReadAll(out.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return data
}

// code is the code of an error of S3, or what else it is.
func code(err error) string {
	var known smithy.APIError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return known.ErrorCode()
	}
	return err.Error()
}

func (g *gateway) refused(want string, err error) {
	g.t.Helper()
	if got := code(err); got != want {
		g.t.Errorf("the error is %q instead of %q (%v)", got, want, err)
	}
}

func bytesOf(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> (i % 5))
	}
	return data
}
