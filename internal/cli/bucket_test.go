package cli

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// bucketStore is what a cluster remembers of buckets and access keys.
type bucketStore struct {
	cloudlessv1.UnimplementedBucketServiceServer
	c       *cluster
	buckets map[string]*cloudlessv1.Bucket
	key     *cloudlessv1.CreateAccessKeyRequest // the newest one
	forced  bool
}

func (c *cluster) registerBuckets(server *grpc.Server) {
	c.store = &bucketStore{c: c, buckets: map[string]*cloudlessv1.Bucket{}}
	cloudlessv1.RegisterBucketServiceServer(server, c.store)
}

func (s *bucketStore) keep(b *cloudlessv1.Bucket) *cloudlessv1.Bucket {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	b = proto.CloneOf(b)
	b.Metadata.Namespace = "default"
	b.Metadata.Version++
	b.Status = &cloudlessv1.BucketStatus{Phase: "ready", Objects: 7, Versions: 9, Bytes: 3 << 20, Copies: 3}
	s.buckets[b.GetMetadata().GetName()] = b
	return b
}

func (s *bucketStore) CreateBucket(_ context.Context, request *cloudlessv1.CreateBucketRequest) (*cloudlessv1.Bucket, error) {
	return s.keep(request.GetBucket()), nil
}

func (s *bucketStore) ApplyBucket(_ context.Context, request *cloudlessv1.ApplyBucketRequest) (*cloudlessv1.ApplyBucketResponse, error) {
	return &cloudlessv1.ApplyBucketResponse{Bucket: s.keep(request.GetBucket()), Result: "updated"}, nil
}

func (s *bucketStore) UpdateBucket(_ context.Context, request *cloudlessv1.UpdateBucketRequest) (*cloudlessv1.Bucket, error) {
	return s.keep(request.GetBucket()), nil
}

func (s *bucketStore) GetBucket(_ context.Context, request *cloudlessv1.GetBucketRequest) (*cloudlessv1.Bucket, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if b := s.buckets[request.GetName()]; b != nil {
		return b, nil
	}
	return nil, status.Errorf(codes.NotFound, "bucket %s does not exist in namespace default", request.GetName())
}

func (s *bucketStore) ListBuckets(context.Context, *cloudlessv1.ListBucketsRequest) (*cloudlessv1.ListBucketsResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	answer := &cloudlessv1.ListBucketsResponse{}
	for _, b := range s.buckets {
		answer.Items = append(answer.Items, b)
	}
	return answer, nil
}

func (s *bucketStore) DeleteBucket(_ context.Context, request *cloudlessv1.DeleteBucketRequest) (*cloudlessv1.Bucket, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.forced = request.GetForce()
	b := s.buckets[request.GetName()]
	delete(s.buckets, request.GetName())
	return b, nil
}

func newKey(s *cloudlessv1.AccessKeySpec) *cloudlessv1.AccessKey {
	return &cloudlessv1.AccessKey{
		Metadata: &cloudlessv1.Metadata{Name: "clabcdefghijklmnopqr", Namespace: "default", CreateTime: timestamppb.Now()}, Spec: s,
		Status: &cloudlessv1.AccessKeyStatus{Author: "spiffe://c/user/ann"},
	}
}

func (s *bucketStore) CreateAccessKey(_ context.Context, request *cloudlessv1.CreateAccessKeyRequest) (*cloudlessv1.CreateAccessKeyResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.key = request
	return &cloudlessv1.CreateAccessKeyResponse{
		AccessKey: newKey(request.GetSpec()), Secret: "top-secret", Endpoints: []string{"https://192.0.2.7:7700"}, Region: "us-east-1",
	}, nil
}

func (s *bucketStore) ListAccessKeys(context.Context, *cloudlessv1.ListAccessKeysRequest) (*cloudlessv1.ListAccessKeysResponse, error) {
	return &cloudlessv1.ListAccessKeysResponse{Items: []*cloudlessv1.AccessKey{newKey(&cloudlessv1.AccessKeySpec{Role: "viewer", Buckets: []string{"photos"}, Purpose: "web"})}}, nil
}

func (s *bucketStore) DeleteAccessKey(_ context.Context, request *cloudlessv1.DeleteAccessKeyRequest) (*cloudlessv1.AccessKey, error) {
	return newKey(nil), nil
}

func TestBucketCommandsSayWhatTheyDid(t *testing.T) {
	c := newCluster(t)
	for _, step := range []struct {
		line string
		want []string
	}{
		{"bucket create photos --replicas 3 --quota 100Gi --expire 720h --expire tmp/=24h -l team=web", []string{"bucket photos created with 3 copies of each object", "cloudless bucket key photos"}},
		{"bucket ls", []string{"OBJECTS", "USED", "QUOTA", "photos", "7", "3Mi", "100Gi"}},
		{"get buckets", []string{"photos", "100Gi"}},
		{"bucket get photos", []string{"Name:", "photos", "Versions:", "100Gi", "after 720h", "after 24h for keys with tmp/", "team=web"}},
		{"bucket update photos --quota unlimited --expire none --versioning enabled --encrypt", []string{"bucket photos updated"}},
		{"bucket get photos -o json", []string{`"versioning": "enabled"`, `"replicas": 3`, `"encrypted": true`}},
		{"bucket update photos --quota 2Gi", []string{"bucket photos updated"}},
		{"bucket get photos", []string{"Encryption:", "on"}},
		{"bucket update photos --encrypt=false", []string{"bucket photos updated"}},
		{"bucket get photos", []string{"Encryption:", "off"}},
		{"bucket apply photos --quota 1Gi", []string{"bucket photos updated"}},
		{"bucket key photos --read-only --ttl 720h --purpose web", []string{
			"Access key:", "clabcdefghijklmnopqr", "top-secret", "https://192.0.2.7:7700", "us-east-1", "viewer on photos", "cloudless ca show > ca.pem",
			"aws s3 ls s3://photos", "restic --cacert ca.pem -r s3:https://192.0.2.7:7700/photos/backup init", "rclone --ca-cert ca.pem ls cloudless:photos",
		}},
		{"bucket key photos -o json", []string{`"secret": "top-secret"`, `"region": "us-east-1"`}},
		{"bucket key ls", []string{"KEY", "ROLE", "clabcdefghijklmnopqr", "viewer", "photos", "user/ann", "never", "web"}},
		{"get accesskeys", []string{"clabcdefghijklmnopqr", "viewer"}},
		{"bucket key rm clabcdefghijklmnopqr", []string{"access key clabcdefghijklmnopqr removed"}},
		{"bucket rm photos --force", []string{"bucket photos removed"}},
	} {
		got := run(t, c, strings.Fields(step.line)...)
		for _, text := range step.want {
			if got.code != 0 || !strings.Contains(got.stdout, text) {
				t.Errorf("%s does not show %q: %+v", step.line, text, got)
			}
		}
	}
	run(t, c, "bucket", "create", "photos")
	run(t, c, "bucket", "update", "photos", "--replicas", "2").
		expect(t, 0, "bucket photos updated\n", "What is in the bucket keeps its number of copies until it is put again.\n")
	if c.store.key.GetSpec().GetRole() != "operator" || !c.store.forced {
		t.Errorf("the newest key is %v, the deletion was forced: %t", c.store.key, c.store.forced)
	}
}

func TestWrongBucketsAreRefusedBeforeTheyAreSent(t *testing.T) {
	c := newCluster(t)
	for line, want := range map[string]string{
		"bucket create":                             "NAME is missing",
		"bucket create ab":                          "3 to 63 characters",
		"bucket create My_Photos":                   "metadata.name",
		"bucket create photos --quota much":         "spec.quota",
		"bucket create photos --quota 0":            "must be more than 0",
		"bucket create photos --replicas 5":         "spec.replicas",
		"bucket create photos --expire tmp/=":       "has no time",
		"bucket create photos --expire soon":        "spec.expiry[0].after",
		"bucket update photos":                      "nothing is to change",
		"bucket update photos --quota 1Gi":          "bucket photos does not exist",
		"bucket key":                                "BUCKET is missing",
		"bucket key photos --read-only --role what": "leave it out, or --role",
		"edit accesskey clabc":                      "make another with: cloudless bucket key BUCKET",
	} {
		got := run(t, c, strings.Fields(line)...)
		if got.code == 0 || !strings.Contains(got.stderr, want) || len(c.store.buckets) != 0 {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
}
