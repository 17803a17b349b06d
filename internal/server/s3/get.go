package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// selected is the part of an object that a client wants.
type selected struct {
	offset, length int64
	// contentRange is nil for the whole object.
	contentRange *string
	// parts is how many parts the object was uploaded in, if the client wants one of them.
	parts *int32
}

// choose finds the part that a client wants.
func choose(v *objectv1.Version, wanted string, number *int32) (selected, error) {
	size := v.GetSize()
	if number != nil {
		return choosePart(v, *number)
	}
	offset, length, ranged, err := backend.ParseObjectRange(size, wanted)
	if err != nil || !ranged {
		return selected{length: size}, err
	}
	return selected{offset: offset, length: length, contentRange: contentRange(offset, length, size)}, nil
}

func contentRange(offset, length, size int64) *string {
	return filled(fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, size))
}

func choosePart(v *objectv1.Version, number int32) (selected, error) {
	size := v.GetSize()
	if !inParts(v) {
		if number > 1 {
			return selected{}, s3err.GetInvalidPartNumberRangeErr(1, number)
		}
		s := selected{length: size}
		if size > 0 {
			s.contentRange = contentRange(0, size, size)
		}
		return s, nil
	}
	count := int32(len(v.GetSegments()))
	if number > count {
		return selected{}, s3err.GetInvalidPartNumberRangeErr(count, number)
	}
	s := selected{parts: &count}
	for _, segment := range v.GetSegments()[:number-1] {
		s.offset += segment.GetSize()
	}
	s.length = v.GetSegments()[number-1].GetSize()
	s.contentRange = contentRange(s.offset, s.length, size)
	return s, nil
}

// inParts is whether an object was uploaded in parts.
func inParts(v *objectv1.Version) bool {
	return len(v.GetSegments()) > 0 && v.GetSegments()[0].GetPart() > 0
}

// GetObject implements backend.Backend.
func (s *store) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return nil, err
	}
	key, version := text(in.Key), text(in.VersionId)
	o, reader, err := s.objects.Open(callOf(ctx).ctx, b, key, version)
	if err != nil {
		return gone(o, err), s.missing(err, b, key, version)
	}
	wanted, err := s.wanted(o, in)
	if err != nil {
		reader.Close()
		return nil, err
	}
	showEncryption(ctx, o.Version.GetEncryption())
	head := headOf(b, o)
	out := getOutput(head)
	out.ContentLength, out.ContentRange, out.PartsCount = &wanted.length, wanted.contentRange, wanted.parts
	if in.ChecksumMode == types.ChecksumModeEnabled && wanted.contentRange == nil {
		setChecksum(out, shown(o.Version.GetChecksum()))
	}
	out.Body = &content{reader: reader, ReadCloser: reader.ReadRange(callOf(ctx).ctx, wanted.offset, wanted.length)}
	return out, nil
}

func (s *store) wanted(o object.Object, in *s3.GetObjectInput) (selected, error) {
	if err := backend.EvaluatePreconditions(o.Version.GetEtag(), *moment(o.Version.GetTime()), backend.PreConditions{
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch, IfModSince: in.IfModifiedSince, IfUnmodeSince: in.IfUnmodifiedSince,
	}); err != nil {
		return selected{}, err
	}
	return choose(o.Version, text(in.Range), in.PartNumber)
}

// content is the body of an answer. It is read in large pieces if the reader wants that.
type content struct {
	io.ReadCloser
	reader *object.Reader
}

// WriteTo implements io.WriterTo.
func (c *content) WriteTo(w io.Writer) (int64, error) {
	return c.ReadCloser.(io.WriterTo).WriteTo(w)
}

// Close implements io.Closer.
func (c *content) Close() error {
	err := c.ReadCloser.Close()
	c.reader.Close()
	return err
}

// gone is the answer for a delete marker, or nil.
func gone(o object.Object, err error) *s3.GetObjectOutput {
	if !errors.Is(err, object.ErrDeleteMarker) {
		return nil
	}
	yes := true
	return &s3.GetObjectOutput{DeleteMarker: &yes, LastModified: moment(o.Version.GetTime())}
}

// missing is the error of a read. A delete marker cannot be read by its version.
func (s *store) missing(err error, b object.Bucket, key, version string) error {
	if errors.Is(err, object.ErrDeleteMarker) && version != "" {
		return s3err.GetAPIError(s3err.ErrMethodNotAllowed)
	}
	if errors.Is(err, object.ErrNoVersion) && badVersion(version) {
		return s3err.GetInvalidArgumentErr(s3err.InvalidArgVersionId, version)
	}
	return s.fail(err, about{bucket: b.Name, key: key, version: version})
}

// badVersion is whether an id is none at all. Clients may ask for ids of other stores, which are of letters and digits.
func badVersion(id string) bool {
	return strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// HeadObject implements backend.Backend.
func (s *store) HeadObject(ctx context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return nil, err
	}
	key, version := text(in.Key), text(in.VersionId)
	o, err := s.objects.Head(callOf(ctx).ctx, b, key, version)
	if err != nil {
		var out *s3.HeadObjectOutput
		if g := gone(o, err); g != nil && version != "" {
			out = &s3.HeadObjectOutput{DeleteMarker: g.DeleteMarker, LastModified: g.LastModified}
		}
		return out, s.missing(err, b, key, version)
	}
	wanted, err := s.wanted(o, &s3.GetObjectInput{
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch, IfModifiedSince: in.IfModifiedSince,
		IfUnmodifiedSince: in.IfUnmodifiedSince, Range: in.Range, PartNumber: in.PartNumber,
	})
	if err != nil {
		return nil, err
	}
	showEncryption(ctx, o.Version.GetEncryption())
	out := headOf(b, o)
	out.ContentLength, out.ContentRange, out.PartsCount = &wanted.length, wanted.contentRange, wanted.parts
	if in.ChecksumMode == types.ChecksumModeEnabled && wanted.contentRange == nil {
		setHeadChecksum(out, shown(o.Version.GetChecksum()))
	}
	return out, nil
}

// showEncryption has the answer say how content is encrypted, which versitygw never does.
func showEncryption(ctx context.Context, e *objectv1.Encryption) {
	callOf(ctx).encrypted = e.GetKey() != ""
}

// headOf is what clients may know of an object, without the size of the part that they want.
func headOf(b object.Bucket, o object.Object) *s3.HeadObjectOutput {
	h := o.Version.GetHeaders()
	out := &s3.HeadObjectOutput{
		AcceptRanges: filled("bytes"), ETag: quoted(o.Version.GetEtag()), LastModified: moment(o.Version.GetTime()),
		VersionId: filled(shownVersion(b, o)), StorageClass: types.StorageClassStandard, Metadata: h.GetUser(),
		ContentType: filled(h.GetContentType()), ContentEncoding: filled(h.GetContentEncoding()),
		ContentLanguage: filled(h.GetContentLanguage()), ContentDisposition: filled(h.GetContentDisposition()),
		CacheControl: filled(h.GetCacheControl()), ExpiresString: filled(h.GetExpires()),
		WebsiteRedirectLocation: filled(h.GetWebsiteRedirect()),
	}
	if n := int32(len(o.Version.GetTags())); n > 0 {
		out.TagCount = &n
	}
	if at := o.Version.GetExpireTime(); at > 0 {
		out.Expiration = filled(fmt.Sprintf("expiry-date=%q, rule-id=\"expiry\"", time.Unix(0, at).UTC().Format(time.RFC1123)))
	}
	return out
}

func getOutput(h *s3.HeadObjectOutput) *s3.GetObjectOutput {
	return &s3.GetObjectOutput{
		AcceptRanges: h.AcceptRanges, ETag: h.ETag, LastModified: h.LastModified, VersionId: h.VersionId,
		StorageClass: h.StorageClass, Metadata: h.Metadata, ContentType: h.ContentType, ContentEncoding: h.ContentEncoding,
		ContentLanguage: h.ContentLanguage, ContentDisposition: h.ContentDisposition, CacheControl: h.CacheControl,
		ExpiresString: h.ExpiresString, WebsiteRedirectLocation: h.WebsiteRedirectLocation, TagCount: h.TagCount,
		Expiration: h.Expiration,
	}
}

func setChecksum(out *s3.GetObjectOutput, sum s3response.Checksum) {
	out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME = sum.CRC32, sum.CRC32C, sum.CRC64NVME
	out.ChecksumSHA1, out.ChecksumSHA256, out.ChecksumSHA512, out.ChecksumMD5 = sum.SHA1, sum.SHA256, sum.SHA512, sum.MD5
	out.ChecksumXXHASH64, out.ChecksumXXHASH3, out.ChecksumXXHASH128 = sum.XXHASH64, sum.XXHASH3, sum.XXHASH128
	out.ChecksumType = sum.Type
}

func setHeadChecksum(out *s3.HeadObjectOutput, sum s3response.Checksum) {
	out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME = sum.CRC32, sum.CRC32C, sum.CRC64NVME
	out.ChecksumSHA1, out.ChecksumSHA256, out.ChecksumSHA512, out.ChecksumMD5 = sum.SHA1, sum.SHA256, sum.SHA512, sum.MD5
	out.ChecksumXXHASH64, out.ChecksumXXHASH3, out.ChecksumXXHASH128 = sum.XXHASH64, sum.XXHASH3, sum.XXHASH128
	out.ChecksumType = sum.Type
}

// GetObjectAttributes implements backend.Backend.
func (s *store) GetObjectAttributes(ctx context.Context, in *s3.GetObjectAttributesInput) (s3response.GetObjectAttributesResponse, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.GetObjectAttributesResponse{}, err
	}
	key, version := text(in.Key), text(in.VersionId)
	o, err := s.objects.Head(callOf(ctx).ctx, b, key, version)
	if err != nil {
		var out s3response.GetObjectAttributesResponse
		if g := gone(o, err); g != nil && version != "" {
			out.DeleteMarker, out.VersionId = g.DeleteMarker, &o.VersionID
			return out, s3err.GetAPIError(s3err.ErrNoSuchKey)
		}
		return out, s.missing(err, b, key, version)
	}
	sum, size, etag := shown(o.Version.GetChecksum()), o.Version.GetSize(), o.Version.GetEtag()
	return s3response.GetObjectAttributesResponse{
		ETag: &etag, ObjectSize: &size, StorageClass: types.StorageClassStandard,
		LastModified: moment(o.Version.GetTime()), VersionId: filled(shownVersion(b, o)),
		Checksum: &types.Checksum{
			ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
			ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
			ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128, ChecksumType: sum.Type,
		},
	}, nil
}
