package s3

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/cloudless/cloudless/internal/object"
)

// DeleteObject implements backend.Backend.
func (s *store) DeleteObject(ctx context.Context, in *s3.DeleteObjectInput) (*s3.DeleteObjectOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return nil, err
	}
	key, version := text(in.Key), text(in.VersionId)
	condition, err := s.deletable(ctx, b, key, version, in)
	if err != nil {
		return nil, err
	}
	removed, err := s.objects.Delete(callOf(ctx).ctx, b, key, version, condition)
	if absent(err) && !badVersion(version) {
		return &s3.DeleteObjectOutput{VersionId: filled(version)}, nil
	}
	if err != nil {
		if condition.IfMatch != "" && errors.Is(err, object.ErrPrecondition) {
			return nil, s3err.GetPreconditionFailedErr(s3err.ConditionIfMatch)
		}
		return nil, s.missing(err, b, key, version)
	}
	return deleteOutput(b, removed), nil
}

// absent is whether there was nothing to delete, which is as good as if it had been deleted.
func absent(err error) bool {
	return errors.Is(err, object.ErrNoKey) || errors.Is(err, object.ErrNoVersion)
}

// deletable checks the conditions of a request. They hold until the object is deleted: what is returned says that it
// still is the same, and a version does not change.
func (s *store) deletable(ctx context.Context, b object.Bucket, key, version string, in *s3.DeleteObjectInput) (object.Condition, error) {
	if in.IfMatch == nil && in.IfMatchLastModifiedTime == nil && in.IfMatchSize == nil {
		return object.Condition{}, nil
	}
	o, err := s.objects.Head(callOf(ctx).ctx, b, key, version)
	if absent(err) || errors.Is(err, object.ErrDeleteMarker) {
		return object.Condition{}, nil
	}
	if err != nil {
		return object.Condition{}, s.fail(err, about{bucket: b.Name, key: key})
	}
	err = backend.EvaluateObjectDeletePreconditions(o.Version.GetEtag(), *moment(o.Version.GetTime()), o.Version.GetSize(), backend.ObjectDeletePreconditions{
		IfMatch: in.IfMatch, IfMatchLastModTime: in.IfMatchLastModifiedTime, IfMatchSize: in.IfMatchSize,
	})
	if err != nil || version != "" {
		return object.Condition{}, err
	}
	return object.Condition{IfMatch: o.Version.GetEtag()}, nil
}

func deleteOutput(b object.Bucket, removed object.Object) *s3.DeleteObjectOutput {
	if b.Versioning == "" {
		return &s3.DeleteObjectOutput{}
	}
	marker := removed.Version.GetDeleteMarker()
	return &s3.DeleteObjectOutput{DeleteMarker: &marker, VersionId: filled(removed.VersionID)}
}

// maxDeletes is how many objects one request may delete.
const maxDeletes = 1000

// DeleteObjects implements backend.Backend.
func (s *store) DeleteObjects(ctx context.Context, in *s3.DeleteObjectsInput) (s3response.DeleteResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.DeleteResult{}, err
	}
	if len(in.Delete.Objects) > maxDeletes {
		return s3response.DeleteResult{}, s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	removals := make([]object.Removal, len(in.Delete.Objects))
	for i, o := range in.Delete.Objects {
		removals[i] = object.Removal{Key: text(o.Key), VersionID: text(o.VersionId)}
	}
	answers, err := s.objects.DeleteAll(callOf(ctx).ctx, b, removals)
	if err != nil {
		return s3response.DeleteResult{}, s.fail(err, about{bucket: b.Name})
	}
	out := s3response.DeleteResult{Deleted: []types.DeletedObject{}, Error: []types.Error{}}
	for i, answer := range answers {
		r := &removals[i]
		if answer.Err != nil && (!absent(answer.Err) || badVersion(r.VersionID)) {
			out.Error = append(out.Error, s3err.ObjectDeleteError(&r.Key, filled(r.VersionID), s.missing(answer.Err, b, r.Key, r.VersionID)))
			continue
		}
		d := types.DeletedObject{Key: &r.Key, VersionId: filled(r.VersionID)}
		if b.Versioning != "" {
			marker := answer.Object.Version.GetDeleteMarker()
			if d.DeleteMarker = &marker; marker {
				d.DeleteMarkerVersionId = filled(answer.Object.VersionID)
			}
		}
		out.Deleted = append(out.Deleted, d)
	}
	return out, nil
}
