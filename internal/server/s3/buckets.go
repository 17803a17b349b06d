package s3

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/cloudless/cloudless/api"
	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// ListBuckets implements backend.Backend. It shows the buckets that the key may read.
func (s *store) ListBuckets(ctx context.Context, in s3response.ListBucketsInput) (s3response.ListAllMyBucketsResult, error) {
	key, err := caller(ctx, s.directory)
	if err != nil {
		return s3response.ListAllMyBucketsResult{}, s.fail(err, about{})
	}
	ns := key.GetMetadata().GetNamespace()
	all, err := s.directory.ListBuckets(callOf(ctx).ctx, ns)
	if err != nil {
		return s3response.ListAllMyBucketsResult{}, s.fail(err, about{})
	}
	out := s3response.ListAllMyBucketsResult{
		Owner: s3response.CanonicalUser{ID: ns, DisplayName: ns}, Prefix: strings.Clone(in.Prefix),
	}
	for _, b := range all {
		name := b.GetMetadata().GetName()
		if !strings.HasPrefix(name, in.Prefix) || name <= in.ContinuationToken || !s.directory.Allowed(callOf(ctx).ctx, key, api.VerbGet, kindBucket, name) {
			continue
		}
		if len(out.Buckets.Bucket) == int(in.MaxBuckets) {
			out.ContinuationToken = out.Buckets.Bucket[len(out.Buckets.Bucket)-1].Name
			break
		}
		out.Buckets.Bucket = append(out.Buckets.Bucket, s3response.ListAllMyBucketsEntry{
			Name: name, CreationDate: b.GetMetadata().GetCreateTime().AsTime().Truncate(time.Second),
		})
	}
	return out, nil
}

// HeadBucket implements backend.Backend.
func (s *store) HeadBucket(ctx context.Context, in *s3.HeadBucketInput) (*s3.HeadBucketOutput, error) {
	_, err := s.bucket(ctx, in.Bucket)
	return &s3.HeadBucketOutput{}, err
}

// CreateBucket implements backend.Backend.
func (s *store) CreateBucket(ctx context.Context, in *s3.CreateBucketInput, acl []byte) error {
	key, err := caller(ctx, s.directory)
	if err != nil || key == nil {
		return s.fail(err, about{})
	}
	name := text(in.Bucket)
	if in.ObjectLockEnabledForBucket != nil && *in.ObjectLockEnabledForBucket {
		return s3err.GetAPIError(s3err.ErrNotImplemented)
	}
	var tags map[string]string
	if in.CreateBucketConfiguration != nil {
		if tags, err = backend.ParseCreateBucketTags(in.CreateBucketConfiguration.Tags); err != nil {
			return err
		}
	}
	ns := key.GetMetadata().GetNamespace()
	if acl, err = ownedBy(acl, ns); err != nil {
		return s.fail(err, about{bucket: name})
	}
	err = s.directory.CreateBucket(callOf(ctx).ctx, key, &v1.Bucket{
		Metadata: &v1.Metadata{Namespace: ns, Name: name},
		Spec: &v1.BucketSpec{S3: &v1.BucketDocuments{
			Acl: acl, Ownership: strings.Clone(string(in.ObjectOwnership)), Tags: copyMap(tags),
		}},
	})
	return s.fail(err, about{bucket: name})
}

// ownedBy makes a namespace the owner in an ACL: versitygw names the key that has made the bucket, which must not keep
// its power when its role changes.
func ownedBy(document []byte, namespace string) ([]byte, error) {
	acl, err := auth.ParseACL(document)
	if err != nil {
		return nil, err
	}
	for i, grantee := range acl.Grantees {
		if grantee.Access == acl.Owner && grantee.Type == types.TypeCanonicalUser {
			acl.Grantees[i].Access = namespace
		}
	}
	acl.Owner = namespace
	return json.Marshal(acl)
}

// DeleteBucket implements backend.Backend.
func (s *store) DeleteBucket(ctx context.Context, name string) error {
	key, err := caller(ctx, s.directory)
	if err != nil {
		return s.fail(err, about{})
	}
	if key == nil {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	name = strings.Clone(name)
	err = s.directory.DeleteBucket(callOf(ctx).ctx, key, name)
	if errors.Is(err, object.ErrNotEmpty) {
		if err = s.abortUploads(ctx, name); err == nil {
			err = s.directory.DeleteBucket(callOf(ctx).ctx, key, name)
		}
	}
	if b, _, findErr := s.find(ctx, name); errors.Is(err, object.ErrNotEmpty) && findErr == nil && b.Versioning != "" {
		return s3err.GetAPIError(s3err.ErrVersionedBucketNotEmpty)
	}
	return s.fail(err, about{bucket: name})
}

// abortUploads gives up the unfinished uploads of a bucket that has nothing else: in S3 they do not keep a bucket.
func (s *store) abortUploads(ctx context.Context, name string) error {
	b, _, err := s.find(ctx, name)
	if err != nil {
		return err
	}
	usage, err := s.objects.Usage(callOf(ctx).ctx, b)
	if err != nil {
		return err
	}
	if usage.GetVersions() > 0 {
		return object.ErrNotEmpty
	}
	for more := true; more; {
		var uploads []*objectv1.Upload
		if uploads, more, err = s.objects.Uploads(callOf(ctx).ctx, b, "", "", "", uploadsPage); err != nil {
			return err
		}
		for _, u := range uploads {
			err := s.objects.AbortUpload(callOf(ctx).ctx, b, u.GetKey(), object.UploadID(u))
			if err != nil && !errors.Is(err, object.ErrNoUpload) {
				return err
			}
		}
	}
	return nil
}

// GetBucketAcl implements backend.Backend.
func (s *store) GetBucketAcl(ctx context.Context, in *s3.GetBucketAclInput) ([]byte, error) {
	b, full, err := s.find(ctx, text(in.Bucket))
	if err != nil {
		return nil, err
	}
	if acl := full.GetSpec().GetS3().GetAcl(); len(acl) > 0 {
		return slices.Clone(acl), nil
	}
	return json.Marshal(auth.ACL{Owner: b.Namespace, Grantees: []auth.Grantee{{
		Permission: auth.PermissionFullControl, Access: b.Namespace, Type: types.TypeCanonicalUser,
	}}})
}

// PutBucketAcl implements backend.Backend.
func (s *store) PutBucketAcl(ctx context.Context, bucket string, acl []byte) error {
	return s.change(ctx, bucket, func(spec *v1.BucketSpec, d *v1.BucketDocuments) { d.Acl = slices.Clone(acl) })
}

// change stores another spec of a bucket. The change gets the bucket's documents too, which are never nil.
func (s *store) change(ctx context.Context, bucket string, change func(*v1.BucketSpec, *v1.BucketDocuments)) error {
	key, err := caller(ctx, s.directory)
	if err != nil {
		return s.fail(err, about{})
	}
	if key == nil {
		return s3err.GetAPIError(s3err.ErrAccessDenied)
	}
	bucket = strings.Clone(bucket)
	err = s.directory.UpdateBucket(callOf(ctx).ctx, key, bucket, func(spec *v1.BucketSpec) {
		if spec.GetS3() == nil {
			spec.S3 = &v1.BucketDocuments{}
		}
		change(spec, spec.S3)
	})
	return s.fail(err, about{bucket: bucket})
}

// documents returns what S3 clients have set for a bucket.
func (s *store) documents(ctx context.Context, bucket string) (*v1.BucketDocuments, error) {
	_, full, err := s.find(ctx, bucket)
	return full.GetSpec().GetS3(), err
}

// PutBucketVersioning implements backend.Backend.
func (s *store) PutBucketVersioning(ctx context.Context, bucket string, status types.BucketVersioningStatus) error {
	versioning := strings.ToLower(string(status))
	return s.change(ctx, bucket, func(spec *v1.BucketSpec, _ *v1.BucketDocuments) { spec.Versioning = versioning })
}

// GetBucketVersioning implements backend.Backend.
func (s *store) GetBucketVersioning(ctx context.Context, bucket string) (s3response.GetBucketVersioningOutput, error) {
	b, err := s.bucket(ctx, &bucket)
	if err != nil {
		return s3response.GetBucketVersioningOutput{}, err
	}
	var out s3response.GetBucketVersioningOutput
	for _, status := range types.BucketVersioningStatus("").Values() {
		if b.Versioning == strings.ToLower(string(status)) {
			out.Status = &status
		}
	}
	return out, nil
}

// PutBucketPolicy implements backend.Backend.
func (s *store) PutBucketPolicy(ctx context.Context, bucket string, policy []byte) error {
	return s.change(ctx, bucket, func(_ *v1.BucketSpec, d *v1.BucketDocuments) { d.Policy = slices.Clone(policy) })
}

// GetBucketPolicy implements backend.Backend.
func (s *store) GetBucketPolicy(ctx context.Context, bucket string) ([]byte, error) {
	d, err := s.documents(ctx, bucket)
	if err != nil {
		return nil, err
	}
	if len(d.GetPolicy()) == 0 {
		return nil, s3err.GetBucketErr(s3err.ErrNoSuchBucketPolicy, bucket)
	}
	return d.GetPolicy(), nil
}

// DeleteBucketPolicy implements backend.Backend.
func (s *store) DeleteBucketPolicy(ctx context.Context, bucket string) error {
	return s.PutBucketPolicy(ctx, bucket, nil)
}

// PutBucketCors implements backend.Backend.
func (s *store) PutBucketCors(ctx context.Context, bucket string, cors []byte) error {
	return s.change(ctx, bucket, func(_ *v1.BucketSpec, d *v1.BucketDocuments) { d.Cors = slices.Clone(cors) })
}

// GetBucketCors implements backend.Backend. It is called for requests whose signature is not checked yet, too.
func (s *store) GetBucketCors(ctx context.Context, bucket string) ([]byte, error) {
	ns, err := claimedNamespace(ctx, s.directory)
	if err != nil {
		return nil, s.fail(err, about{bucket: bucket})
	}
	_, full, err := s.directory.FindBucket(callOf(ctx).ctx, ns, bucket)
	if err != nil {
		return nil, s.fail(err, about{bucket: strings.Clone(bucket)})
	}
	cors := full.GetSpec().GetS3().GetCors()
	if len(cors) == 0 {
		return nil, s3err.GetBucketErr(s3err.ErrNoSuchCORSConfiguration, bucket)
	}
	return cors, nil
}

// DeleteBucketCors implements backend.Backend.
func (s *store) DeleteBucketCors(ctx context.Context, bucket string) error {
	return s.PutBucketCors(ctx, bucket, nil)
}

// PutBucketOwnershipControls implements backend.Backend.
func (s *store) PutBucketOwnershipControls(ctx context.Context, bucket string, ownership types.ObjectOwnership) error {
	kept := strings.Clone(string(ownership))
	return s.change(ctx, bucket, func(_ *v1.BucketSpec, d *v1.BucketDocuments) { d.Ownership = kept })
}

// GetBucketOwnershipControls implements backend.Backend.
func (s *store) GetBucketOwnershipControls(ctx context.Context, bucket string) (types.ObjectOwnership, error) {
	d, err := s.documents(ctx, bucket)
	if err != nil {
		return "", err
	}
	switch ownership := d.GetOwnership(); ownership {
	case "":
		return types.ObjectOwnershipBucketOwnerEnforced, nil
	case noOwnership:
		return "", s3err.GetBucketErr(s3err.ErrOwnershipControlsNotFound, bucket)
	default:
		return types.ObjectOwnership(ownership), nil
	}
}

// noOwnership marks buckets whose ownership controls were deleted. Without a mark they have those of a new bucket.
const noOwnership = "none"

// DeleteBucketOwnershipControls implements backend.Backend.
func (s *store) DeleteBucketOwnershipControls(ctx context.Context, bucket string) error {
	return s.PutBucketOwnershipControls(ctx, bucket, noOwnership)
}

// PutBucketTagging implements backend.Backend.
func (s *store) PutBucketTagging(ctx context.Context, bucket string, tags map[string]string) error {
	kept := copyMap(tags)
	return s.change(ctx, bucket, func(_ *v1.BucketSpec, d *v1.BucketDocuments) { d.Tags = kept })
}

// GetBucketTagging implements backend.Backend.
func (s *store) GetBucketTagging(ctx context.Context, bucket string) (map[string]string, error) {
	d, err := s.documents(ctx, bucket)
	if err != nil {
		return nil, err
	}
	if len(d.GetTags()) == 0 {
		return nil, s3err.GetBucketErr(s3err.ErrBucketTaggingNotFound, bucket)
	}
	return d.GetTags(), nil
}

// DeleteBucketTagging implements backend.Backend.
func (s *store) DeleteBucketTagging(ctx context.Context, bucket string) error {
	return s.PutBucketTagging(ctx, bucket, nil)
}

// GetObjectLockConfiguration implements backend.Backend. versitygw asks before every put.
func (s *store) GetObjectLockConfiguration(ctx context.Context, bucket string) ([]byte, error) {
	if _, err := s.bucket(ctx, &bucket); err != nil {
		return nil, err
	}
	return nil, s3err.GetAPIError(s3err.ErrObjectLockConfigurationNotFound)
}
