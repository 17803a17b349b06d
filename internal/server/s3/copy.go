package s3

import (
	"context"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

const (
	// maxCopy is the most that one request copies, as in S3. Larger objects are copied in parts.
	maxCopy = 5 << 30
	// copyAttempts is how often a copy begins again because its source was overwritten in between.
	copyAttempts = 3
)

// source is what is copied, as it was when the conditions of the client were checked.
type source struct {
	bucket       object.Bucket
	key, version string
	object       object.Object
}

// from is the source for the store. It makes sure that nothing else is copied than what was checked.
func (s source) from() object.Source {
	return object.Source{Bucket: s.bucket, Key: s.key, VersionID: s.version, ETag: s.object.Version.GetEtag()}
}

// shownVersion is the version of the source for an answer.
func (s source) shownVersion() *string {
	return filled(shownVersion(s.bucket, s.object))
}

func (s *store) source(ctx context.Context, header, owner *string, conditions backend.PreConditions) (source, error) {
	bucket, key, version, err := backend.ParseCopySource(text(header))
	if err != nil {
		return source{}, err
	}
	b, err := s.bucket(ctx, &bucket)
	if err != nil {
		return source{}, err
	}
	if err := owned(b, owner); err != nil {
		return source{}, err
	}
	o, err := s.objects.Head(callOf(ctx).ctx, b, key, version)
	if err != nil {
		return source{}, s.missing(err, b, key, version)
	}
	if err := backend.EvaluatePreconditions(o.Version.GetEtag(), *moment(o.Version.GetTime()), conditions); err != nil {
		if errors.Is(err, s3err.GetAPIError(s3err.ErrNotModified)) {
			err = s3err.GetPreconditionFailedErr(s3err.ConditionIfNoneMatch) // there is no 304 for a copy
		}
		return source{}, err
	}
	return source{bucket: b, key: key, version: version, object: o}, nil
}

// CopyObject implements backend.Backend.
func (s *store) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	for attempt := 1; ; attempt++ {
		out, err := s.copyObject(ctx, in)
		if !errors.Is(err, object.ErrPrecondition) {
			return out, err
		}
		if attempt == copyAttempts {
			return out, s3err.APIError{
				Code: "OperationAborted", HTTPStatusCode: 409,
				Description: "The source is overwritten again and again while it is copied. Try again.",
			}
		}
	}
}

func (s *store) copyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	if err := unlocked(in.ObjectLockMode, in.ObjectLockLegalHoldStatus); err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	src, err := s.source(ctx, in.CopySource, in.ExpectedSourceBucketOwner, backend.PreConditions{
		IfMatch: in.CopySourceIfMatch, IfNoneMatch: in.CopySourceIfNoneMatch,
		IfModSince: in.CopySourceIfModifiedSince, IfUnmodeSince: in.CopySourceIfUnmodifiedSince,
	})
	if err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	key := text(in.Key)
	replaces := in.MetadataDirective == types.MetadataDirectiveReplace
	switch {
	case src.object.Version.GetSize() > maxCopy:
		return s3response.CopyObjectOutput{}, s3err.GetCopySourceObjectTooLargeErr(maxCopy)
	case src.bucket.UID == b.UID && src.key == key && src.version == "" && !replaces:
		return s3response.CopyObjectOutput{}, s3err.GetAPIError(s3err.ErrInvalidCopyDest)
	}
	r := object.PutRequest{Key: key, Headers: copiedHeaders(in, src.object.Version.GetHeaders(), replaces)}
	if in.TaggingDirective == types.TaggingDirectiveReplace {
		tags, err := backend.ParseObjectTags(text(in.Tagging))
		if err != nil {
			return s3response.CopyObjectOutput{}, err
		}
		if r.Tags = copyMap(tags); r.Tags == nil {
			r.Tags = map[string]string{}
		}
	}
	o, err := s.copyContent(ctx, b, r, src, in.ChecksumAlgorithm)
	if errors.Is(err, object.ErrPrecondition) {
		return s3response.CopyObjectOutput{}, err
	}
	if err != nil {
		return s3response.CopyObjectOutput{}, s.fail(err, about{bucket: b.Name, key: key})
	}
	showEncryption(ctx, o.Version.GetEncryption())
	return copyOutput(b, o, src), nil
}

// copiedHeaders are the headers of a copy: those of the source, or of the request.
func copiedHeaders(in s3response.CopyObjectInput, from *objectv1.Headers, replaces bool) *objectv1.Headers {
	if !replaces {
		h := &objectv1.Headers{}
		if from != nil {
			h = proto.CloneOf(from)
		}
		h.WebsiteRedirect = text(in.WebsiteRedirectLocation) // it is never copied
		return h
	}
	return &objectv1.Headers{
		ContentType: text(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentLanguage: text(in.ContentLanguage),
		ContentDisposition: text(in.ContentDisposition), CacheControl: text(in.CacheControl), Expires: text(in.Expires),
		WebsiteRedirect: text(in.WebsiteRedirectLocation), User: copyMap(in.Metadata),
	}
}

// copyContent copies by reference, unless the client wants a checksum that the source does not have.
func (s *store) copyContent(ctx context.Context, b object.Bucket, r object.PutRequest, src source, algorithm types.ChecksumAlgorithm) (object.Object, error) {
	has := src.object.Version.GetChecksum()
	if algorithm == "" || has.GetAlgorithm() == string(algorithm) && has.GetType() == string(types.ChecksumTypeFullObject) {
		return s.objects.Copy(callOf(ctx).ctx, b, r, src.from())
	}
	body, end, err := s.open(ctx, src, 0, -1)
	if err != nil {
		return object.Object{}, err
	}
	defer end()
	sum, err := summed(body, sums{}, algorithm)
	if err != nil {
		return object.Object{}, err
	}
	if r.Tags == nil {
		r.Tags = src.object.Version.GetTags()
	}
	r.Body, r.Size = sum, src.object.Version.GetSize()
	r.Checksum = func() *objectv1.Checksum { return sum.checksum(types.ChecksumTypeFullObject) }
	return s.objects.Put(callOf(ctx).ctx, b, r)
}

// open reads a source. The caller calls end.
func (s *store) open(ctx context.Context, src source, offset, length int64) (body io.Reader, end func(), err error) {
	o, reader, err := s.objects.Open(callOf(ctx).ctx, src.bucket, src.key, src.version)
	if err != nil {
		return nil, nil, err
	}
	if o.Version.GetEtag() != src.object.Version.GetEtag() {
		reader.Close()
		return nil, nil, object.ErrPrecondition
	}
	c := &content{reader: reader, ReadCloser: reader.ReadRange(callOf(ctx).ctx, offset, length)}
	return c, func() { _ = c.Close() }, nil
}

func copyOutput(b object.Bucket, o object.Object, src source) s3response.CopyObjectOutput {
	sum := shown(o.Version.GetChecksum())
	return s3response.CopyObjectOutput{
		VersionId: filled(shownVersion(b, o)), CopySourceVersionId: src.shownVersion(),
		CopyObjectResult: &s3response.CopyObjectResult{
			ETag: quoted(o.Version.GetEtag()), LastModified: moment(o.Version.GetTime()), ChecksumType: sum.Type,
			ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
			ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
			ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128,
		},
	}
}

// UploadPartCopy implements backend.Backend.
func (s *store) UploadPartCopy(ctx context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	p := object.Part{Key: text(in.Key), Upload: text(in.UploadId), Number: int(number(in.PartNumber))}
	where := about{bucket: b.Name, key: p.Key, upload: p.Upload, part: number(in.PartNumber), condition: s3err.ConditionIfMatch}
	u, _, _, err := s.objects.Parts(callOf(ctx).ctx, b, p.Key, p.Upload, maxParts, 1)
	if err != nil {
		return s3response.CopyPartResult{}, s.fail(err, where)
	}
	src, err := s.source(ctx, in.CopySource, in.ExpectedSourceBucketOwner, backend.PreConditions{
		IfMatch: in.CopySourceIfMatch, IfNoneMatch: in.CopySourceIfNoneMatch,
		IfModSince: in.CopySourceIfModifiedSince, IfUnmodeSince: in.CopySourceIfUnmodifiedSince,
	})
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	offset, length, err := backend.ParseCopySourceRange(src.object.Version.GetSize(), text(in.CopySourceRange))
	if err != nil {
		return s3response.CopyPartResult{}, err
	}
	length = min(length, src.object.Version.GetSize()-offset)
	if length > maxCopy {
		return s3response.CopyPartResult{}, s3err.GetCopySourceObjectTooLargeErr(maxCopy)
	}
	part, err := s.copyPart(ctx, b, p, src, u.GetChecksum(), offset, length)
	if err != nil {
		return s3response.CopyPartResult{}, s.fail(err, where)
	}
	showEncryption(ctx, u.GetEncryption())
	sum := shown(part.GetChecksum())
	out := s3response.CopyPartResult{
		ETag: quoted(part.GetEtag()), LastModified: *moment(part.GetTime()),
		ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
		ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
		ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128,
	}
	if v := src.shownVersion(); v != nil {
		out.CopySourceVersionId = *v
	}
	return out, nil
}

// copyPart copies by reference, unless the upload was begun with a checksum.
func (s *store) copyPart(ctx context.Context, b object.Bucket, p object.Part, src source, wanted *objectv1.Checksum, offset, length int64) (*objectv1.Part, error) {
	if wanted.GetType() == "" {
		from := src.from()
		from.Offset, from.Length = offset, length
		return s.objects.CopyPart(callOf(ctx).ctx, b, p, from)
	}
	body, end, err := s.open(ctx, src, offset, length)
	if err != nil {
		return nil, err
	}
	defer end()
	sum, err := summed(body, sums{}, types.ChecksumAlgorithm(wanted.GetAlgorithm()))
	if err != nil {
		return nil, err
	}
	p.Body, p.Size = sum, length
	p.Checksum = func() *objectv1.Checksum { return sum.checksum(types.ChecksumType(wanted.GetType())) }
	return s.objects.PutPart(callOf(ctx).ctx, b, p)
}
