package s3

import (
	"context"
	"errors"
	"strings"

	"github.com/versity/versitygw/s3err"

	"github.com/cloudless/cloudless/internal/object"
)

// GetObjectTagging implements backend.Backend.
func (s *store) GetObjectTagging(ctx context.Context, bucket, key, version string) (map[string]string, error) {
	b, err := s.bucket(ctx, &bucket)
	if err != nil {
		return nil, err
	}
	o, err := s.objects.Head(callOf(ctx).ctx, b, key, version)
	if err != nil {
		return nil, s.missing(err, b, key, version)
	}
	return o.Version.GetTags(), nil
}

// PutObjectTagging implements backend.Backend.
func (s *store) PutObjectTagging(ctx context.Context, bucket, key, version string, tags map[string]string) error {
	b, err := s.bucket(ctx, &bucket)
	if err != nil {
		return err
	}
	key, version = strings.Clone(key), strings.Clone(version)
	err = s.objects.SetTags(callOf(ctx).ctx, b, key, version, copyMap(tags))
	if version == "" && errors.Is(err, object.ErrNoVersion) {
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	}
	return s.missing(err, b, key, version)
}

// DeleteObjectTagging implements backend.Backend.
func (s *store) DeleteObjectTagging(ctx context.Context, bucket, key, version string) error {
	return s.PutObjectTagging(ctx, bucket, key, version, nil)
}
