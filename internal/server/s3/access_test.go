package s3

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/auth"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/s3/s3test"
)

const otherID = "clkey00000000000000b"

func TestKeySeesTheBucketsOfItsNamespaceOnly(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.put("photos", "cat.jpg", bytesOf(10))
	g.directory.AddKey(otherID, secret, "other", "operator")
	other := g.client(otherID, secret)

	_, err := other.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("photos"), Key: aws.String("cat.jpg")})
	g.refused("NoSuchBucket", err)
	_, err = other.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("photos")})
	g.refused("", err) // the name is free in that namespace
	listed, err := other.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("photos")})
	if err != nil || len(listed.Contents) != 0 {
		t.Errorf("the new bucket has %d objects: %v", len(listed.Contents), err)
	}
}

func TestRoleOfTheKeyCounts(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.put("photos", "cat.jpg", bytesOf(10))
	bucket, key := aws.String("photos"), aws.String("cat.jpg")
	g.directory.AddKey(otherID, secret, "shop", "viewer")
	viewer := g.client(otherID, secret)

	_, err := viewer.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: bucket, Key: key})
	g.refused("", err)
	_, err = viewer.PutObject(t.Context(), &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("x")})
	g.refused("AccessDenied", err)
	_, err = viewer.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: bucket, Key: key})
	g.refused("AccessDenied", err)
	_, err = viewer.DeleteBucket(t.Context(), &s3.DeleteBucketInput{Bucket: bucket})
	g.refused("AccessDenied", err)
	_, err = viewer.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("more")})
	g.refused("AccessDenied", err)
}

func TestKeyLosesItsPowerOverBucketsThatItMade(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.directory.AddKey(keyID, secret, "shop", "none")
	_, err := g.own().PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("photos"), Key: aws.String("k"), Body: strings.NewReader("x")})
	g.refused("AccessDenied", err)
}

func TestKeyForOneBucketSeesNoOther(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.bucket("music")
	g.directory.AddKey(otherID, secret, "shop", "operator", "music")
	bound := g.client(otherID, secret)
	listed, err := bound.ListBuckets(t.Context(), &s3.ListBucketsInput{})
	if err != nil || len(listed.Buckets) != 1 || *listed.Buckets[0].Name != "music" {
		t.Errorf("a key for the bucket music sees %d buckets: %v", len(listed.Buckets), err)
	}
	_, err = bound.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("photos")})
	g.refused("AccessDenied", err)
	_, err = bound.CopyObject(t.Context(), &s3.CopyObjectInput{Bucket: aws.String("music"), Key: aws.String("k"), CopySource: aws.String("photos/k")})
	g.refused("AccessDenied", err)
}

func TestPolicyGivesAKeyMoreThanItsRole(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.put("photos", "cat.jpg", bytesOf(10))
	g.directory.AddKey(otherID, secret, "shop", "none")
	get := &s3.GetObjectInput{Bucket: aws.String("photos"), Key: aws.String("cat.jpg")}
	_, err := g.client(otherID, secret).GetObject(t.Context(), get)
	g.refused("AccessDenied", err)
	_, err = g.own().PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: aws.String("photos"), Policy: aws.String(`{"Version": "2012-10-17",
		"Statement": [{"Effect": "Allow", "Principal": {"AWS": "` + otherID + `"}, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*"}]}`)})
	g.refused("", err)
	_, err = g.client(otherID, secret).GetObject(t.Context(), get)
	g.refused("", err)
}

func TestNothingIsLookedForBeforeTheSignatureIsChecked(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	before := g.directory.Lookups()
	for _, c := range []struct{ id, secret, want string }{
		{keyID, "another secret", "SignatureDoesNotMatch"},
		{"clunknown", secret, "InvalidAccessKeyId"},
	} {
		_, err := g.client(c.id, c.secret).PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("photos"), Key: aws.String("k"), Body: strings.NewReader(strings.Repeat("x", 1<<20)),
		})
		g.refused(c.want, err)
	}
	if n := g.directory.Lookups() - before; n != 0 {
		t.Errorf("buckets were looked for %d times for callers without an identity", n)
	}
}

func TestTwoKeysInOneRequestDoNotMix(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	g.put("photos", "cat.jpg", bytesOf(10))
	g.directory.AddKey(otherID, secret, "other", "operator")
	// The signature is that of the other key. The header claims the key of the bucket's namespace.
	signed, err := s3.NewPresignClient(g.client(otherID, secret)).PresignGetObject(t.Context(), &s3.GetObjectInput{
		Bucket: aws.String("photos"), Key: aws.String("cat.jpg"),
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, signed.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+keyID+"/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00")
	answer, err := g.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode < 400 {
		t.Errorf("the object of another namespace was answered with %s", answer.Status)
	}
}

func TestPublicBucketsAreThoseOfTheDefaultNamespace(t *testing.T) {
	g := newGateway(t)
	g.directory.AddKey(otherID, secret, "default", "operator")
	c := g.client(otherID, secret)
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("public")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("public"), Key: aws.String("k"), Body: strings.NewReader("hello")}); err != nil {
		t.Fatal(err)
	}
	if got := g.anonymous("public/k"); got != http.StatusForbidden {
		t.Errorf("an anonymous caller gets %d from a private bucket", got)
	}
	if _, err := c.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: aws.String("public"), Policy: aws.String(`{"Version": "2012-10-17",
		"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::public/*"}]}`)}); err != nil {
		t.Fatal(err)
	}
	if got := g.anonymous("public/k"); got != http.StatusOK {
		t.Errorf("an anonymous caller gets %d from a public bucket", got)
	}
}

func (g *gateway) anonymous(path string) int {
	g.t.Helper()
	answer, err := g.http.Get(g.url + "/" + path)
	if err != nil {
		g.t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// The numbers of versitygw's decisions are not exported, so that a new version could give them another meaning.
func TestDecisionsMeanWhatTheyShould(t *testing.T) {
	d := s3test.NewDirectory((*object.Store)(nil))
	d.AddKey(keyID, secret, "shop", "viewer")
	a := &accounts{directory: d}
	var _ auth.PolicyEvaluator = a
	var _ auth.IAMService = a
	for action, want := range map[auth.Action]int{
		auth.GetObjectAction: decidesAllow, auth.PutObjectAction: decidesNothing, auth.Action("s3:Unknown"): decidesNothing,
	} {
		result, err := a.EvaluatePolicy(keyID, "", []auth.Action{action}, []string{"arn:aws:s3:::photos/cat.jpg"}, nil)
		if err != nil || int(result.Decisions[0][0]) != want {
			t.Errorf("%s is decided as %d instead of %d: %v", action, result.Decisions[0][0], want, err)
		}
	}
}
