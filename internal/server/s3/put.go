package s3

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// PutObject implements backend.Backend.
func (s *store) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	if err := unlocked(in.ObjectLockMode, in.ObjectLockLegalHoldStatus); err != nil {
		return s3response.PutObjectOutput{}, err
	}
	tags, err := backend.ParseObjectTags(text(in.Tagging))
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	condition, err := conditionOf(in.IfMatch, in.IfNoneMatch)
	if err != nil {
		return s3response.PutObjectOutput{}, err
	}
	otherwise := in.ChecksumAlgorithm
	if otherwise == "" {
		otherwise = ownChecksum
	}
	body, err := summed(in.Body, sums{
		CRC32: in.ChecksumCRC32, CRC32C: in.ChecksumCRC32C, CRC64NVME: in.ChecksumCRC64NVME, SHA1: in.ChecksumSHA1,
		SHA256: in.ChecksumSHA256, SHA512: in.ChecksumSHA512, MD5: in.ChecksumMD5, XXHASH64: in.ChecksumXXHASH64,
		XXHASH3: in.ChecksumXXHASH3, XXHASH128: in.ChecksumXXHASH128,
	}, otherwise)
	if err != nil {
		return s3response.PutObjectOutput{}, s.fail(err, about{bucket: b.Name})
	}
	key := text(in.Key)
	o, err := s.objects.Put(callOf(ctx).ctx, b, object.PutRequest{
		Key: key, Body: body, Size: sizeOf(ctx, in), Condition: condition, Tags: copyMap(tags),
		Headers: &objectv1.Headers{
			ContentType: text(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentLanguage: text(in.ContentLanguage),
			ContentDisposition: text(in.ContentDisposition), CacheControl: text(in.CacheControl), Expires: text(in.Expires),
			WebsiteRedirect: text(in.WebsiteRedirectLocation), User: copyMap(in.Metadata),
		},
		Checksum: func() *objectv1.Checksum { return body.checksum(types.ChecksumTypeFullObject) },
	})
	if err != nil {
		return s3response.PutObjectOutput{}, s.fail(cutOff(ctx, err), about{bucket: b.Name, key: key, condition: unmet(condition)})
	}
	showEncryption(ctx, o.Version.GetEncryption())
	return putOutput(b, o), nil
}

// sizeOf is the size of the content, or -1. A form is longer than the file in it.
func sizeOf(ctx context.Context, in s3response.PutObjectInput) int64 {
	if in.ContentLength == nil || callOf(ctx).form {
		return -1
	}
	return *in.ContentLength
}

func putOutput(b object.Bucket, o object.Object) s3response.PutObjectOutput {
	sum := shown(o.Version.GetChecksum())
	size := o.Version.GetSize()
	version := shownVersion(b, o)
	if o.Version.GetNull() {
		version = "" // as in S3: such a version is only named when it is listed or read
	}
	return s3response.PutObjectOutput{
		ETag: *quoted(o.Version.GetEtag()), VersionID: version, Size: &size, ChecksumType: sum.Type,
		ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
		ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
		ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128,
	}
}

// unlocked refuses what only buckets with object lock can do.
func unlocked(mode types.ObjectLockMode, hold types.ObjectLockLegalHoldStatus) error {
	if mode != "" || hold == types.ObjectLockLegalHoldStatusOn {
		return s3err.GetAPIError(s3err.ErrMissingObjectLockConfigurationNoSpaces)
	}
	return nil
}

// conditionOf is the condition of a put.
func conditionOf(ifMatch, ifNoneMatch *string) (object.Condition, error) {
	c := object.Condition{IfMatch: strings.Trim(text(ifMatch), `"`), IfNoneMatch: strings.Trim(text(ifNoneMatch), `"`)}
	switch {
	case c.IfNoneMatch != "" && c.IfNoneMatch != "*":
		return c, s3err.GetNotImplementedErr("If-None-Match", s3err.NmpAdditionalMessageIfNoneMatch)
	case c.IfNoneMatch != "" && c.IfMatch != "":
		return c, s3err.GetNotImplementedErr("If-Match,If-None-Match", s3err.NmpAdditionalMessageMultipleCondHeaders)
	}
	return c, nil
}

// unmet is which of the conditions of a put was not met.
func unmet(c object.Condition) s3err.Condition {
	if c.IfNoneMatch != "" {
		return s3err.ConditionIfNoneMatch
	}
	return s3err.ConditionIfMatch
}

// cutOff says it in S3's words if a body in chunks had another size than announced.
func cutOff(ctx context.Context, err error) error {
	if callOf(ctx).chunked && errors.Is(err, object.ErrIncomplete) {
		return s3err.GetAPIError(s3err.ErrContentLengthMismatch)
	}
	return err
}

// encodingOf leaves out of an encoding what only describes how the body was sent.
func encodingOf(header *string) string {
	var kept []string
	for encoding := range strings.SplitSeq(text(header), ",") {
		if encoding = strings.TrimSpace(encoding); encoding != "" && !strings.EqualFold(encoding, "aws-chunked") {
			kept = append(kept, encoding)
		}
	}
	return strings.Join(kept, ",")
}
