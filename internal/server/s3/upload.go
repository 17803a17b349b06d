package s3

import (
	"context"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// CreateMultipartUpload implements backend.Backend.
func (s *store) CreateMultipartUpload(ctx context.Context, in s3response.CreateMultipartUploadInput) (s3response.InitiateMultipartUploadResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.InitiateMultipartUploadResult{}, err
	}
	if err := unlocked(in.ObjectLockMode, in.ObjectLockLegalHoldStatus); err != nil {
		return s3response.InitiateMultipartUploadResult{}, err
	}
	tags, err := backend.ParseObjectTags(text(in.Tagging))
	if err != nil {
		return s3response.InitiateMultipartUploadResult{}, err
	}
	r := object.UploadRequest{
		Key: text(in.Key), Tags: copyMap(tags), Author: author(ctx),
		Headers: &objectv1.Headers{
			ContentType: text(in.ContentType), ContentEncoding: encodingOf(in.ContentEncoding), ContentLanguage: text(in.ContentLanguage),
			ContentDisposition: text(in.ContentDisposition), CacheControl: text(in.CacheControl), Expires: text(in.Expires),
			WebsiteRedirect: text(in.WebsiteRedirectLocation), User: copyMap(in.Metadata),
		},
	}
	if in.ChecksumAlgorithm != "" {
		r.Checksum = &objectv1.Checksum{
			Algorithm: strings.Clone(string(in.ChecksumAlgorithm)), Type: strings.Clone(string(in.ChecksumType)),
		}
	}
	u, err := s.objects.CreateUpload(callOf(ctx).ctx, b, r)
	if err != nil {
		return s3response.InitiateMultipartUploadResult{}, s.fail(err, about{bucket: b.Name, key: r.Key})
	}
	showEncryption(ctx, u.GetEncryption())
	return s3response.InitiateMultipartUploadResult{Bucket: b.Name, Key: r.Key, UploadId: object.UploadID(u)}, nil
}

// author is the access key of a call.
func author(ctx context.Context) string {
	account, _ := ctx.Value(string(utils.ContextKeyAccount)).(auth.Account)
	return strings.Clone(account.Access)
}

// UploadPart implements backend.Backend.
func (s *store) UploadPart(ctx context.Context, in *s3.UploadPartInput) (*s3.UploadPartOutput, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return nil, err
	}
	p := object.Part{Key: text(in.Key), Upload: text(in.UploadId), Number: int(number(in.PartNumber)), Size: -1}
	where := about{bucket: b.Name, key: p.Key, upload: p.Upload, part: number(in.PartNumber)}
	u, _, _, err := s.objects.Parts(callOf(ctx).ctx, b, p.Key, p.Upload, maxParts, 1)
	if err != nil {
		return nil, s.fail(err, where)
	}
	if in.ContentLength != nil {
		p.Size = *in.ContentLength
	}
	body, err := partBody(in, u.GetChecksum())
	if err != nil {
		return nil, s.fail(err, where)
	}
	p.Body = body
	// A part has one checksum: the one that the whole object gets, or else ours.
	own, kind := body, unasked
	if u.GetChecksum().GetType() != "" {
		kind = u.GetChecksum().GetType()
	} else if body.algorithm != ownChecksum {
		if own, err = summed(body, sums{}, ownChecksum); err != nil {
			return nil, s.fail(err, where)
		}
		p.Body = own
	}
	p.Checksum = func() *objectv1.Checksum { return own.checksum(types.ChecksumType(kind)) }
	part, err := s.objects.PutPart(callOf(ctx).ctx, b, p)
	if err != nil {
		return nil, s.fail(cutOff(ctx, err), where)
	}
	showEncryption(ctx, u.GetEncryption())
	out := &s3.UploadPartOutput{ETag: quoted(part.GetEtag())}
	if body.asked || u.GetChecksum().GetType() != "" {
		setPartChecksum(out, shown(body.checksum(types.ChecksumTypeFullObject)))
	}
	return out, nil
}

// partBody is the content of a part, with the checksum that its client has sent or that the upload was begun with.
func partBody(in *s3.UploadPartInput, wanted *objectv1.Checksum) (*summing, error) {
	otherwise := types.ChecksumAlgorithm(wanted.GetAlgorithm())
	if otherwise == "" {
		otherwise = ownChecksum
	}
	body, err := summed(in.Body, sums{
		CRC32: in.ChecksumCRC32, CRC32C: in.ChecksumCRC32C, CRC64NVME: in.ChecksumCRC64NVME, SHA1: in.ChecksumSHA1,
		SHA256: in.ChecksumSHA256, SHA512: in.ChecksumSHA512, MD5: in.ChecksumMD5, XXHASH64: in.ChecksumXXHASH64,
		XXHASH3: in.ChecksumXXHASH3, XXHASH128: in.ChecksumXXHASH128,
	}, otherwise)
	if err != nil {
		return nil, err
	}
	switch {
	case !body.asked && wanted.GetType() == string(types.ChecksumTypeComposite):
		return nil, s3err.GetChecksumTypeMismatchErr(otherwise, "null")
	case body.asked && wanted.GetType() != "" && string(body.algorithm) != wanted.GetAlgorithm():
		return nil, s3err.GetChecksumTypeMismatchErr(types.ChecksumAlgorithm(wanted.GetAlgorithm()), body.algorithm)
	}
	return body, nil
}

func setPartChecksum(out *s3.UploadPartOutput, sum s3response.Checksum) {
	out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME = sum.CRC32, sum.CRC32C, sum.CRC64NVME
	out.ChecksumSHA1, out.ChecksumSHA256, out.ChecksumSHA512, out.ChecksumMD5 = sum.SHA1, sum.SHA256, sum.SHA512, sum.MD5
	out.ChecksumXXHASH64, out.ChecksumXXHASH3, out.ChecksumXXHASH128 = sum.XXHASH64, sum.XXHASH3, sum.XXHASH128
}

// AbortMultipartUpload implements backend.Backend.
func (s *store) AbortMultipartUpload(ctx context.Context, in *s3.AbortMultipartUploadInput) error {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return err
	}
	key, upload := text(in.Key), text(in.UploadId)
	if at := in.IfMatchInitiatedTime; at != nil {
		u, _, _, err := s.objects.Parts(callOf(ctx).ctx, b, key, upload, maxParts, 1)
		if err == nil && moment(u.GetTime()).Unix() != at.Unix() {
			return s3err.GetPreconditionFailedErr(s3err.ConditionIfMatchInitiatedTime)
		}
	}
	return s.fail(s.objects.AbortUpload(callOf(ctx).ctx, b, key, upload), about{bucket: b.Name, key: key, upload: upload})
}

// ListParts implements backend.Backend.
func (s *store) ListParts(ctx context.Context, in *s3.ListPartsInput) (s3response.ListPartsResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.ListPartsResult{}, err
	}
	key, upload, after := text(in.Key), text(in.UploadId), 0
	if marker := text(in.PartNumberMarker); marker != "" {
		if after, err = strconv.Atoi(marker); err != nil {
			return s3response.ListPartsResult{}, s3err.GetInvalidArgMaxLimiter("part-number-marker", marker)
		}
	}
	u, parts, more, err := s.objects.Parts(callOf(ctx).ctx, b, key, upload, after, int(number(in.MaxParts)))
	if err != nil {
		return s3response.ListPartsResult{}, s.fail(err, about{bucket: b.Name, key: key, upload: upload})
	}
	out := s3response.ListPartsResult{
		Bucket: b.Name, Key: key, UploadID: upload, MaxParts: int(number(in.MaxParts)), PartNumberMarker: after, IsTruncated: more,
		StorageClass: types.StorageClassStandard, ChecksumAlgorithm: "null", ChecksumType: "null",
		Owner:     s3response.Owner{ID: b.Namespace, DisplayName: b.Namespace},
		Initiator: s3response.Initiator{ID: u.GetAuthor(), DisplayName: u.GetAuthor()},
	}
	if c := u.GetChecksum(); c.GetAlgorithm() != "" {
		out.ChecksumAlgorithm, out.ChecksumType = types.ChecksumAlgorithm(c.GetAlgorithm()), types.ChecksumType(c.GetType())
	}
	for _, p := range parts {
		out.Parts = append(out.Parts, shownPart(p))
		out.NextPartNumberMarker = int(p.GetNumber())
	}
	return out, nil
}

func shownPart(p *objectv1.Part) s3response.Part {
	sum := shown(p.GetChecksum())
	return s3response.Part{
		PartNumber: int(p.GetNumber()), LastModified: *moment(p.GetTime()), ETag: *quoted(p.GetEtag()), Size: p.GetSize(),
		ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
		ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
		ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128,
	}
}

// uploadsPage is how many uploads are read at once.
const uploadsPage = 1000

// ListMultipartUploads implements backend.Backend.
func (s *store) ListMultipartUploads(ctx context.Context, in *s3.ListMultipartUploadsInput) (s3response.ListMultipartUploadsResult, error) {
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return s3response.ListMultipartUploadsResult{}, err
	}
	as := spellingOf(ctx)
	out := s3response.ListMultipartUploadsResult{
		Bucket: b.Name, Prefix: *as.write(text(in.Prefix)), Delimiter: *as.write(text(in.Delimiter)), MaxUploads: int(number(in.MaxUploads)),
		KeyMarker: *as.write(text(in.KeyMarker)), UploadIDMarker: text(in.UploadIdMarker), EncodingType: string(as.encoding()),
	}
	key, upload := text(in.KeyMarker), text(in.UploadIdMarker)
	if key == "" {
		upload = "" // as in S3, it means nothing without a key
	}
	if upload != "" && badVersion(upload) {
		return out, s3err.GetInvalidArgumentErr(s3err.InvalidArgUploadIdMarker, upload)
	}
	page := &uploadPage{out: &out, as: as, prefix: text(in.Prefix), delimiter: text(in.Delimiter), bucket: b, behind: key}
	for more := out.MaxUploads > 0; more && !out.IsTruncated; {
		var uploads []*objectv1.Upload
		uploads, more, err = s.objects.Uploads(callOf(ctx).ctx, b, page.prefix, key, upload, uploadsPage)
		if err != nil {
			return out, s.fail(err, about{bucket: b.Name, upload: upload})
		}
		for _, u := range uploads {
			if !page.add(u) {
				break
			}
			key, upload = u.GetKey(), object.UploadID(u)
		}
	}
	if !out.IsTruncated {
		out.NextKeyMarker, out.NextUploadIDMarker = "", ""
	}
	return out, nil
}

// uploadPage is a page of unfinished uploads that is being filled.
type uploadPage struct {
	out               *s3response.ListMultipartUploadsResult
	as                spelling
	prefix, delimiter string
	bucket            object.Bucket
	// behind is the last common prefix, or where the page begins.
	behind string
}

// add adds an upload or its common prefix. It returns false if the page was full.
func (p *uploadPage) add(u *objectv1.Upload) bool {
	common := ""
	if rest := strings.TrimPrefix(u.GetKey(), p.prefix); p.delimiter != "" {
		if before, _, found := strings.Cut(rest, p.delimiter); found {
			common = p.prefix + before + p.delimiter
		}
	}
	if common != "" && common == p.behind {
		return true
	}
	if len(p.out.Uploads)+len(p.out.CommonPrefixes) == p.out.MaxUploads {
		p.out.IsTruncated = true
		return false
	}
	p.out.NextUploadIDMarker = object.UploadID(u)
	if common != "" {
		p.behind, p.out.NextKeyMarker = common, *p.as.write(common)
		p.out.CommonPrefixes = append(p.out.CommonPrefixes, s3response.CommonPrefix{Prefix: *p.as.write(common)})
		return true
	}
	p.out.NextKeyMarker = *p.as.write(u.GetKey())
	p.out.Uploads = append(p.out.Uploads, s3response.Upload{
		Key: *p.as.write(u.GetKey()), UploadID: object.UploadID(u), Initiated: *moment(u.GetTime()), StorageClass: types.StorageClassStandard,
		Owner:             s3response.Owner{ID: p.bucket.Namespace, DisplayName: p.bucket.Namespace},
		Initiator:         s3response.Initiator{ID: u.GetAuthor(), DisplayName: u.GetAuthor()},
		ChecksumAlgorithm: types.ChecksumAlgorithm(u.GetChecksum().GetAlgorithm()), ChecksumType: types.ChecksumType(u.GetChecksum().GetType()),
	})
	return true
}
