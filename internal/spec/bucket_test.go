package spec

import (
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestBucketsThatS3ClientsCouldNotUseAreRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		spec  *v1.BucketSpec
		field string
		words string
	}{
		{"photos", &v1.BucketSpec{Quota: "100Gi", Replicas: 3}, "", ""},
		{strings.Repeat("a", 63), nil, "", ""},
		{"", nil, "metadata.name", "is missing"},
		{"ab", nil, "metadata.name", "3 to 63 characters"},
		{"Photos", nil, "metadata.name", "lower-case"},
		{"my.photos", nil, "metadata.name", "lower-case"},
		{strings.Repeat("a", 64), nil, "metadata.name", "63"},
		{"xn--photos", nil, "metadata.name", "xn--"},
		{"photos-s3alias", nil, "metadata.name", "-s3alias"},
		{"photos", &v1.BucketSpec{Replicas: 4}, "spec.replicas", "3"},
		{"photos", &v1.BucketSpec{Replicas: -1}, "spec.replicas", "0"},
		{"photos", &v1.BucketSpec{Quota: "much"}, "spec.quota", ""},
		{"photos", &v1.BucketSpec{Quota: "0"}, "spec.quota", "more than 0"},
		{"photos", &v1.BucketSpec{Versioning: "on"}, "spec.versioning", "enabled"},
		{"photos", &v1.BucketSpec{UploadTtl: "1m"}, "spec.uploadTtl", "at least 1h"},
		{"photos", &v1.BucketSpec{Expiry: []*v1.ExpiryRule{{After: "0s"}}}, "spec.expiry[0].after", "more than 0"},
		{"photos", &v1.BucketSpec{Expiry: []*v1.ExpiryRule{{}}}, "spec.expiry[0].after", ""},
		{"photos", &v1.BucketSpec{Expiry: []*v1.ExpiryRule{{Prefix: "a", After: "1h"}, {Prefix: "a", After: "2h"}}}, "spec.expiry[1].prefix", "spec.expiry[0]"},
	} {
		err := Validate(&v1.Bucket{Metadata: &v1.Metadata{Name: c.name}, Spec: c.spec})
		switch {
		case c.field == "" && err != nil:
			t.Errorf("bucket %q with %v is refused: %v", c.name, c.spec, err)
		case c.field != "" && (err == nil || !strings.Contains(err.Error(), c.field) || !strings.Contains(err.Error(), c.words)):
			t.Errorf("bucket %q with %v: got %v, want a refusal of %s with %q", c.name, c.spec, err, c.field, c.words)
		}
	}
}

func TestBucketsHaveOneForm(t *testing.T) {
	b := &v1.Bucket{Metadata: &v1.Metadata{Name: "photos"}, Spec: &v1.BucketSpec{
		Quota: "1024Mi", UploadTtl: "60m", S3: &v1.BucketDocuments{},
		Expiry: []*v1.ExpiryRule{{Prefix: "tmp/", After: "60m"}, {After: "48h"}},
	}}
	NormalizeBucket(b)
	s := b.GetSpec()
	if b.GetMetadata().GetNamespace() != "default" || s.GetQuota() != "1Gi" || s.GetUploadTtl() != "1h" || s.GetS3() != nil ||
		s.GetExpiry()[0].GetAfter() != "48h" || s.GetExpiry()[1].GetAfter() != "1h" {
		t.Errorf("the canonical form is %v", b)
	}
}
