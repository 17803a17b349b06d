package objects_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/core/coretest"
	"github.com/cloudless/cloudless/internal/server/objects"
)

// directory has the buckets of a test by their names, all in the default namespace.
type directory map[string]object.Bucket

func (d directory) FindBucket(_ context.Context, namespace, name string) (object.Bucket, *v1.Bucket, error) {
	b, ok := d[name]
	if !ok || namespace != "default" {
		return b, nil, object.ErrNoBucket
	}
	return b, &v1.Bucket{}, nil
}

// cluster is the service over real names and nodes in memory, and a client of it.
type cluster struct {
	t       *testing.T
	disks   *objecttest.Disks
	objects v1.ObjectServiceClient
}

func newCluster(t *testing.T, nodes ...string) *cluster {
	t.Helper()
	disks := objecttest.NewDisks(nodes...)
	store, err := object.New(object.Options{Names: objecttest.NewNames(t), Disks: disks, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(store.Close)
	buckets := directory{
		"photos": {UID: "uid-photos", Name: "photos", Namespace: "default", NamespaceUID: "uid-default"},
		"small":  {UID: "uid-small", Name: "small", Namespace: "default", NamespaceUID: "uid-default", Quota: 1000},
		"notes":  {UID: "uid-notes", Name: "notes", Namespace: "default", NamespaceUID: "uid-default", Versioning: "enabled"},
	}
	service, err := objects.New(objects.Options{Store: store, Disks: disks, Directory: buckets, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	return &cluster{t, disks, v1.NewObjectServiceClient(serve(t, func(s *grpc.Server) { v1.RegisterObjectServiceServer(s, service) }))}
}

// serve answers on a connection in memory, and maps errors as the server does.
func serve(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			answer, err := h(ctx, r)
			return answer, core.StatusOf(err)
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return core.StatusOf(h(service, stream))
		}))
	register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put sends content in messages of odd sizes.
func (c *cluster) put(header *v1.PutObjectHeader, content []byte) (*v1.Object, error) {
	c.t.Helper()
	stream, err := c.objects.PutObject(c.t.Context())
	must(c.t, err)
	_ = stream.Send(&v1.PutObjectRequest{Part: &v1.PutObjectRequest_Header{Header: header}})
	for len(content) > 0 {
		n := min(len(content), 100_001)
		if stream.Send(&v1.PutObjectRequest{Part: &v1.PutObjectRequest_Data{Data: content[:n]}}) != nil {
			break
		}
		content = content[n:]
	}
	return stream.CloseAndRecv()
}

func (c *cluster) mustPut(bucket, key string, content []byte) *v1.Object {
	c.t.Helper()
	o, err := c.put(&v1.PutObjectHeader{Bucket: bucket, Key: key, Size: int64(len(content)), ContentType: "image/jpeg"}, content)
	must(c.t, err)
	return o
}

func (c *cluster) get(request *v1.GetObjectRequest) (*v1.Object, []byte, error) {
	c.t.Helper()
	stream, err := c.objects.GetObject(c.t.Context(), request)
	must(c.t, err)
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	var content []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetObject(), content, nil
		}
		if err != nil {
			return first.GetObject(), content, err
		}
		content = append(content, m.GetData()...)
	}
}

// random returns bytes that differ with the seed.
func random(size int, seed byte) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{seed})
	_, _ = source.Read(data)
	return data
}

func TestAnObjectIsReadAsItWasPut(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	content := random(9<<20, 1)
	put := c.mustPut("photos", "2026/cat.jpg", content)
	if put.GetBucket() != "photos" || put.GetNamespace() != "default" || put.GetKey() != "2026/cat.jpg" || put.GetSize() != int64(len(content)) || put.GetTime() == nil {
		t.Errorf("the object was put as %v", put)
	}
	o, got, err := c.get(&v1.GetObjectRequest{Bucket: "photos", Key: "2026/cat.jpg"})
	must(t, err)
	if !bytes.Equal(got, content) || o.GetEtag() != put.GetEtag() || o.GetContentType() != "image/jpeg" {
		t.Errorf("got %d bytes of %v", len(got), o)
	}
	_, got, err = c.get(&v1.GetObjectRequest{Bucket: "photos", Key: "2026/cat.jpg", Offset: 4<<20 - 10, Length: 20, IfMatch: put.GetEtag()})
	must(t, err)
	if !bytes.Equal(got, content[4<<20-10:][:20]) {
		t.Errorf("a range of 20 bytes has %d bytes, or others", len(got))
	}
	head, err := c.objects.HeadObject(t.Context(), &v1.HeadObjectRequest{Bucket: "photos", Key: "2026/cat.jpg"})
	must(t, err)
	if head.GetEtag() != put.GetEtag() {
		t.Errorf("its head is %v", head)
	}
}

func TestRefusalsSayWhatHelps(t *testing.T) {
	c := newCluster(t, "a")
	put := c.mustPut("photos", "cat.jpg", []byte("meow"))
	c.mustPut("notes", "todo", []byte("sleep"))
	_, err := c.objects.DeleteObject(t.Context(), &v1.DeleteObjectRequest{Bucket: "notes", Key: "todo"})
	must(t, err)

	_, err = c.objects.HeadObject(t.Context(), &v1.HeadObjectRequest{Bucket: "videos", Key: "cat"})
	coretest.WantCode(t, err, codes.NotFound, "videos does not exist in namespace default", "cloudless bucket create videos")
	_, err = c.objects.HeadObject(t.Context(), &v1.HeadObjectRequest{Bucket: "photos", Key: "dog.jpg"})
	coretest.WantCode(t, err, codes.NotFound, `"dog.jpg"`, "cloudless object ls photos")
	_, err = c.objects.HeadObject(t.Context(), &v1.HeadObjectRequest{Bucket: "notes", Key: "todo"})
	coretest.WantCode(t, err, codes.NotFound, "was deleted", "cloudless object ls notes/todo --versions")
	_, _, err = c.get(&v1.GetObjectRequest{Bucket: "photos", Key: "cat.jpg", IfMatch: "another"})
	coretest.WantCode(t, err, codes.FailedPrecondition, put.GetEtag(), "from its beginning")
	_, _, err = c.get(&v1.GetObjectRequest{Bucket: "photos", Key: "cat.jpg", Offset: 5})
	coretest.WantCode(t, err, codes.OutOfRange, "4 bytes")
	_, err = c.put(&v1.PutObjectHeader{Bucket: "photos", Key: "cat.jpg", Size: 4, IfAbsent: true}, []byte("miau"))
	coretest.WantCode(t, err, codes.FailedPrecondition, "exists already")
	_, err = c.put(&v1.PutObjectHeader{Bucket: "photos", Key: "short", Size: 5}, []byte("four"))
	coretest.WantCode(t, err, codes.InvalidArgument, "5 bytes were announced")
	_, err = c.put(&v1.PutObjectHeader{Bucket: "small", Key: "large", Size: 2000}, random(2000, 1))
	coretest.WantCode(t, err, codes.ResourceExhausted, "bucket small", "raise its quota")
	stream, err := c.objects.PutObject(t.Context())
	must(t, err)
	must(t, stream.Send(&v1.PutObjectRequest{Part: &v1.PutObjectRequest_Data{Data: []byte("no header")}}))
	_, err = stream.CloseAndRecv()
	coretest.WantCode(t, err, codes.InvalidArgument, "header")
	_, err = c.objects.HeadObject(t.Context(), &v1.HeadObjectRequest{Bucket: "photos", Key: "it's a cat"})
	coretest.WantCode(t, err, codes.NotFound)
	_, err = c.objects.ListObjects(t.Context(), &v1.ListObjectsRequest{Bucket: "photos", Page: &v1.Page{Token: "x"}})
	coretest.WantCode(t, err, codes.InvalidArgument, "next of the page before")
}

func TestWithoutNodesNothingIsStored(t *testing.T) {
	c := newCluster(t, "a")
	c.disks.Break("uid-a", objecttest.Faults{Full: true})
	_, err := c.put(&v1.PutObjectHeader{Bucket: "photos", Key: "cat", Size: -1}, random(1<<20, 1))
	coretest.WantCode(t, err, codes.Unavailable, "cloudless storage status")
}

func TestAnUploadInPartsGoesOn(t *testing.T) {
	c := newCluster(t, "a", "b")
	header := &v1.PutObjectHeader{Bucket: "photos", Key: "video", ContentType: "video/mp4", Metadata: map[string]string{"by": "ada"}}
	u, err := c.objects.CreateObjectUpload(t.Context(), &v1.CreateObjectUploadRequest{Header: header, Resume: "file 1"})
	must(t, err)
	one, two := random(5<<20, 1), random(100, 2)
	first := c.part("video", u.GetId(), 1, one)
	again, err := c.objects.CreateObjectUpload(t.Context(), &v1.CreateObjectUploadRequest{Header: header, Resume: "file 1"})
	must(t, err)
	if again.GetId() != u.GetId() {
		t.Fatal("the same caller with the same file begins another upload")
	}
	parts, err := c.objects.ListObjectParts(t.Context(), &v1.ListObjectPartsRequest{Bucket: "photos", Key: "video", Upload: u.GetId()})
	must(t, err)
	if len(parts.GetItems()) != 1 || parts.GetItems()[0].GetEtag() != first.GetEtag() {
		t.Fatalf("the upload has %v", parts.GetItems())
	}
	second := c.part("video", u.GetId(), 2, two)
	o, err := c.objects.CompleteObjectUpload(t.Context(), &v1.CompleteObjectUploadRequest{
		Bucket: "photos", Key: "video", Upload: u.GetId(), Parts: []*v1.ObjectPart{first, second},
	})
	must(t, err)
	if o.GetContentType() != "video/mp4" || o.GetMetadata()["by"] != "ada" || !strings.HasSuffix(o.GetEtag(), "-2") {
		t.Errorf("the parts have become %v", o)
	}
	_, got, err := c.get(&v1.GetObjectRequest{Bucket: "photos", Key: "video"})
	must(t, err)
	if !bytes.Equal(got, append(one, two...)) {
		t.Error("the object is not what its parts were")
	}
	_, err = c.objects.AbortObjectUpload(t.Context(), &v1.AbortObjectUploadRequest{Bucket: "photos", Key: "video", Upload: u.GetId()})
	coretest.WantCode(t, err, codes.NotFound, "begin again")
}

func (c *cluster) part(key, upload string, number int32, content []byte) *v1.ObjectPart {
	c.t.Helper()
	stream, err := c.objects.PutObjectPart(c.t.Context())
	must(c.t, err)
	must(c.t, stream.Send(&v1.PutObjectPartRequest{Part: &v1.PutObjectPartRequest_Header{Header: &v1.PutObjectPartHeader{
		Bucket: "photos", Key: key, Upload: upload, Number: number, Size: int64(len(content)),
	}}}))
	for len(content) > 0 {
		n := min(len(content), 1<<20)
		must(c.t, stream.Send(&v1.PutObjectPartRequest{Part: &v1.PutObjectPartRequest_Data{Data: content[:n]}}))
		content = content[n:]
	}
	p, err := stream.CloseAndRecv()
	must(c.t, err)
	return p
}

func TestAListGoesThroughAllPages(t *testing.T) {
	c := newCluster(t, "a")
	var want []string
	for _, key := range []string{"a/1", "a/2", "b", strings.Repeat("long", 256), "z"} {
		c.mustPut("photos", key, []byte(key))
		want = append(want, key)
	}
	var got []string
	for token := ""; ; {
		page, err := c.objects.ListObjects(t.Context(), &v1.ListObjectsRequest{Bucket: "photos", Page: &v1.Page{Size: 1, Token: token}})
		must(t, err)
		for _, o := range page.GetItems() {
			got = append(got, o.GetKey())
		}
		if token = page.GetNext(); token == "" {
			break
		}
		if len(token) > 2048 {
			t.Fatalf("a token of %d characters is longer than a request may have", len(token))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("listed %q, want %q", got, want)
	}
	page, err := c.objects.ListObjects(t.Context(), &v1.ListObjectsRequest{Bucket: "photos", Delimiter: "/"})
	must(t, err)
	if len(page.GetPrefixes()) != 1 || page.GetPrefixes()[0] != "a/" || len(page.GetItems()) != 3 {
		t.Errorf("the folder a/ is listed as %v and %d objects", page.GetPrefixes(), len(page.GetItems()))
	}
}

func TestPiecesAreLocatedByTheNamesOfNodes(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	c.mustPut("photos", "cat", random(5<<20, 1))
	answer, err := c.objects.LocateObject(t.Context(), &v1.LocateObjectRequest{Bucket: "photos", Key: "cat"})
	must(t, err)
	if len(answer.GetPieces()) != 2 || answer.GetPieces()[1].GetOffset() != 4<<20 || answer.GetNextOffset() != 0 {
		t.Fatalf("the object is in %v", answer.GetPieces())
	}
	for _, p := range answer.GetPieces() {
		if p.GetCopies() != 3 || len(p.GetNodes()) < 2 || len(p.GetNodes()[0]) != 1 {
			t.Errorf("a piece is %v", p)
		}
	}
}

func TestACopyNeedsNoContent(t *testing.T) {
	c := newCluster(t, "a")
	content := random(5<<20, 1)
	c.mustPut("photos", "cat", content)
	_, err := c.objects.CopyObject(t.Context(), &v1.CopyObjectRequest{Bucket: "notes", Key: "cat 2", SourceBucket: "photos", SourceKey: "cat"})
	must(t, err)
	_, got, err := c.get(&v1.GetObjectRequest{Bucket: "notes", Key: "cat 2"})
	must(t, err)
	if !bytes.Equal(got, content) {
		t.Error("the copy is not the object")
	}
	_, err = c.objects.CopyObject(t.Context(), &v1.CopyObjectRequest{Bucket: "notes", Key: "x", SourceBucket: "photos", SourceKey: "dog"})
	coretest.WantCode(t, err, codes.NotFound, "cloudless object ls photos")
}
