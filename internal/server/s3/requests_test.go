package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/cloudless/cloudless/internal/object/objecttest"
)

func TestKeysOfAnyKind(t *testing.T) {
	g := newGateway(t)
	g.bucket("odd")
	for i, key := range []string{
		"a b", "a+b", "a%2Fb", "a//b", "/leading", "trailing/", "a/../b", "a/./b", "ä☃😀", "\x01\x1f", "q?x=1&y#z", "`'\"<>&", "~*()!",
		"..a", strings.Repeat("k", 1024), strings.Repeat("ü", 512),
	} {
		want := bytesOf(i + 1)
		out, err := g.own().PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("odd"), Key: &key, Body: bytes.NewReader(want)})
		if err != nil {
			t.Errorf("putting %q: %v", key, err)
			continue
		}
		if got := g.get("odd", key); !bytes.Equal(got, want) {
			t.Errorf("%q has another content", key)
		}
		listed, err := g.own().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("odd"), Prefix: &key, EncodingType: types.EncodingTypeUrl})
		if err != nil || len(listed.Contents) != 1 {
			t.Errorf("listing %q: %d objects, %v", key, len(listed.Contents), err)
		}
		if _, err := g.own().DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: aws.String("odd"), Key: &key}); err != nil {
			t.Errorf("deleting %q: %v", key, err)
		}
		_ = out
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	g := newGateway(t)
	g.bucket("odd")
	for key, want := range map[string]string{
		strings.Repeat("k", 1025): "KeyTooLongError", "../escape": "400", "\xff": "InvalidURI",
	} {
		_, err := g.own().PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("odd"), Key: &key, Body: strings.NewReader("x")})
		g.refused(want, err)
	}
}

func TestWrongDigestsAreRefused(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	in := func() *s3.PutObjectInput {
		return &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("cat.jpg"), Body: strings.NewReader("hello")}
	}
	wrong := md5.Sum([]byte("other"))
	bad := in()
	bad.ContentMD5 = aws.String(base64.StdEncoding.EncodeToString(wrong[:]))
	_, err := g.own().PutObject(t.Context(), bad)
	g.refused("BadDigest", err)
	bad = in()
	bad.ChecksumCRC32 = aws.String("AAAAAA==")
	_, err = g.own().PutObject(t.Context(), bad)
	g.refused("BadDigest", err)
	_, err = g.own().HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String("photos"), Key: aws.String("cat.jpg")})
	g.refused("NotFound", err)
}

func TestConditionsOfPuts(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	first := g.put("photos", "cat.jpg", []byte("one"))
	put := func(change func(*s3.PutObjectInput)) error {
		in := &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("cat.jpg"), Body: strings.NewReader("two")}
		change(in)
		_, err := g.own().PutObject(t.Context(), in)
		return err
	}
	g.refused("PreconditionFailed", put(func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") }))
	g.refused("PreconditionFailed", put(func(in *s3.PutObjectInput) { in.IfMatch = aws.String(`"00000000000000000000000000000000"`) }))
	g.refused("NoSuchKey", put(func(in *s3.PutObjectInput) { in.IfMatch, in.Key = first.ETag, aws.String("dog.jpg") }))
	g.refused("", put(func(in *s3.PutObjectInput) { in.IfMatch = first.ETag }))
	g.refused("", put(func(in *s3.PutObjectInput) { in.IfNoneMatch, in.Key = aws.String("*"), aws.String("dog.jpg") }))
}

func TestErrorsOfTheStore(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.directory.SetQuota("shop", "photos", 100)
	put := func() error {
		_, err := g.own().PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("k"), Body: bytes.NewReader(bytesOf(200))})
		return err
	}
	err := put()
	g.refused("QuotaExceeded", err)
	if !strings.Contains(fmt.Sprint(err), "raise its quota") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	g.directory.SetQuota("shop", "photos", 0)
	for _, node := range []string{"uid-a", "uid-b", "uid-c"} {
		g.disks.Break(node, objecttest.Faults{Full: true})
	}
	g.refused("ServiceUnavailable", put())
}

func TestUnsupportedCallsSaySo(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	_, err := g.own().PutBucketEncryption(t.Context(), &s3.PutBucketEncryptionInput{
		Bucket: aws.String("photos"), ServerSideEncryptionConfiguration: &types.ServerSideEncryptionConfiguration{Rules: []types.ServerSideEncryptionRule{{}}},
	})
	g.refused("NotImplemented", err)
	_, err = g.own().CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("locked"), ObjectLockEnabledForBucket: aws.Bool(true)})
	g.refused("NotImplemented", err)
	_, err = g.own().PutBucketWebsite(t.Context(), &s3.PutBucketWebsiteInput{
		Bucket: aws.String("photos"), WebsiteConfiguration: &types.WebsiteConfiguration{IndexDocument: &types.IndexDocument{Suffix: aws.String("index.html")}},
	})
	g.refused("NotImplemented", err)
}

// A body is stored while it arrives: chunks are on the nodes before the client has sent the end.
func TestBodiesStreamIn(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	signed, err := s3.NewPresignClient(g.own()).PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("large")})
	if err != nil {
		t.Fatal(err)
	}
	const size = 24 << 20
	body, send := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, signed.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = size
	done := make(chan error, 1)
	go func() {
		answer, err := g.http.Do(r)
		if err == nil {
			err = answer.Body.Close()
		}
		done <- err
	}()
	data := bytesOf(size)
	if _, err := send.Write(data[:16<<20]); err != nil {
		t.Fatal(err)
	}
	for stored := false; !stored; {
		for _, node := range []string{"uid-a", "uid-b", "uid-c"} {
			stored = stored || g.disks.Count(node) > 0
		}
		select {
		case err := <-done:
			t.Fatalf("the request ended before its body: %v", err)
		default:
		}
	}
	if _, err := send.Write(data[16<<20:]); err != nil {
		t.Fatal(err)
	}
	send.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(g.get("photos", "large"), data) {
		t.Error("the object has another content")
	}
}

// An answer is read from the nodes while the client takes it: one that reads nothing keeps a few chunks in memory.
func TestAnswersStreamOut(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.put("photos", "large", bytesOf(96<<20))
	out, err := g.own().GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("photos"), Key: aws.String("large")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, node := range []string{"uid-a", "uid-b", "uid-c"} {
		gets, _ := g.disks.Calls(node)
		read += gets
	}
	if read > 16 { // of 24, and a few are in the buffers of the connection
		t.Errorf("%d of 24 chunks were read for a client that has taken one byte", read)
	}
	if err := out.Body.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStalledUploadEnds(t *testing.T) {
	g := newGatewayWith(t, Options{Stall: 50 * time.Millisecond})
	g.bucket("photos")
	signed, err := s3.NewPresignClient(g.own()).PresignPutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("slow")})
	if err != nil {
		t.Fatal(err)
	}
	body, send := io.Pipe()
	defer send.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, signed.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = 1 << 20
	go func() { _, _ = send.Write(make([]byte, 1000)) }()
	answer, err := g.http.Do(r)
	if err != nil {
		return // the connection was closed, which is an end too
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if !strings.Contains(string(text), "RequestTimeout") {
		t.Errorf("a stalled upload is answered with %s: %s", answer.Status, text)
	}
}

func TestOneGatewayPerProcess(t *testing.T) {
	g := newGateway(t)
	_, err := New(Options{Store: g.store, Directory: g.directory, Logger: discard})
	if err == nil {
		t.Error("a process has two gateways")
	}
}

func TestSignedRequestsAreRecognized(t *testing.T) {
	for _, c := range []struct {
		url, header string
		want        bool
	}{
		{"/v1/nodes", "", false},
		{"/v1/nodes", "Bearer abc", false},
		{"/photos", "AWS4-HMAC-SHA256 Credential=clkey/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00", true},
		{"/photos", "AWS clkey:signature", true},
		{"/photos?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=clkey%2F20260101%2Fus-east-1%2Fs3%2Faws4_request", "", true},
		{"/photos?AWSAccessKeyId=clkey&Signature=x", "", true},
		{"/v1/nodes?filter=X-Amz-Credential", "", false},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", c.header)
		if Signed(r) != c.want {
			t.Errorf("%s with %q: signed is %v", c.url, c.header, !c.want)
		}
	}
}
