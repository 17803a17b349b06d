package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
)

// CompleteMultipartUpload implements backend.Backend.
func (s *store) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (s3response.CompleteMultipartUploadResult, string, error) {
	var none s3response.CompleteMultipartUploadResult
	b, err := s.bucket(ctx, in.Bucket)
	if err != nil {
		return none, "", err
	}
	r := object.CompleteRequest{Key: text(in.Key), Upload: text(in.UploadId), Size: -1}
	if r.Condition, err = conditionOf(in.IfMatch, in.IfNoneMatch); err != nil {
		return none, "", err
	}
	where := about{bucket: b.Name, key: r.Key, upload: r.Upload, condition: unmet(r.Condition)}
	u, stored, err := s.parts(ctx, b, r.Key, r.Upload)
	if err != nil && !errors.Is(err, object.ErrNoUpload) {
		return none, "", s.fail(err, where)
	}
	j := &joint{upload: r.Upload, wanted: u.GetChecksum(), in: in, stored: stored}
	if u == nil { // it may have been completed already, and the client did not get the answer
		r.Parts, err = j.claimed()
	} else {
		r.Parts, err = j.join()
		r.Checksum = j.sum
	}
	if err != nil {
		return none, "", s.fail(err, where)
	}
	o, err := s.objects.CompleteUpload(callOf(ctx).ctx, b, r)
	if err != nil {
		return none, "", s.fail(err, where)
	}
	showEncryption(ctx, o.Version.GetEncryption())
	return completeOutput(b, o), shownVersion(b, o), nil
}

// parts returns an upload with all of its parts.
func (s *store) parts(ctx context.Context, b object.Bucket, key, upload string) (*objectv1.Upload, map[int32]*objectv1.Part, error) {
	stored := map[int32]*objectv1.Part{}
	for after := 0; ; {
		u, page, more, err := s.objects.Parts(callOf(ctx).ctx, b, key, upload, after, 1000)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range page {
			after = int(p.GetNumber())
			stored[int32(p.GetNumber())] = p
		}
		if !more {
			return u, stored, nil
		}
	}
}

func completeOutput(b object.Bucket, o object.Object) s3response.CompleteMultipartUploadResult {
	sum := shown(o.Version.GetChecksum())
	out := s3response.CompleteMultipartUploadResult{
		Bucket: &b.Name, Key: &o.Key, ETag: quoted(o.Version.GetEtag()),
		ChecksumCRC32: sum.CRC32, ChecksumCRC32C: sum.CRC32C, ChecksumCRC64NVME: sum.CRC64NVME, ChecksumSHA1: sum.SHA1,
		ChecksumSHA256: sum.SHA256, ChecksumSHA512: sum.SHA512, ChecksumMD5: sum.MD5, ChecksumXXHASH64: sum.XXHASH64,
		ChecksumXXHASH3: sum.XXHASH3, ChecksumXXHASH128: sum.XXHASH128,
	}
	if sum.Type != "" {
		out.ChecksumType = &sum.Type
	}
	return out
}

// joint checks the parts of an upload, and computes the checksum of the object that they make.
type joint struct {
	upload string
	// wanted is the checksum that the upload was begun with.
	wanted *objectv1.Checksum
	in     *s3.CompleteMultipartUploadInput
	stored map[int32]*objectv1.Part
	// sum is the checksum of the object, or nil.
	sum *objectv1.Checksum
}

func (j *joint) join() ([]*objectv1.CompletedPart, error) {
	if given := j.in.ChecksumType; given != "" && string(given) != j.wanted.GetType() {
		kind := types.ChecksumType(j.wanted.GetType())
		if kind == "" {
			kind = "null"
		}
		return nil, s3err.GetChecksumTypeMismatchOnMpErr(kind)
	}
	var completed []*objectv1.CompletedPart
	var chosen []*objectv1.Part
	var size int64
	for i, p := range j.in.MultipartUpload.Parts {
		if err := j.ordered(i); err != nil {
			return nil, err
		}
		part, err := j.part(p, i == len(j.in.MultipartUpload.Parts)-1)
		if err != nil {
			return nil, err
		}
		size += part.GetSize()
		chosen = append(chosen, part)
		completed = append(completed, &objectv1.CompletedPart{Number: part.GetNumber(), Etag: part.GetEtag(), Checksum: part.GetChecksum()})
	}
	if want := j.in.MpuObjectSize; want != nil && *want != size {
		return nil, s3err.GetIncorrectMpObjectSizeErr(size, *want)
	}
	var err error
	if j.sum, err = j.checksum(chosen); err != nil {
		return nil, err
	}
	return completed, j.compare()
}

// ordered checks the number of a part.
func (j *joint) ordered(i int) error {
	p := j.in.MultipartUpload.Parts[i]
	if p.PartNumber == nil || p.ETag == nil {
		return s3err.GetAPIError(s3err.ErrMalformedXML)
	}
	if *p.PartNumber < 1 {
		return s3err.GetInvalidArgumentErr(s3err.InvalidArgCompleteMpPartNumber, fmt.Sprint(*p.PartNumber))
	}
	if i > 0 && *p.PartNumber <= *j.in.MultipartUpload.Parts[i-1].PartNumber {
		return s3err.GetAPIError(s3err.ErrInvalidPartOrder)
	}
	return nil
}

// part compares a part of the request with what was uploaded.
func (j *joint) part(p types.CompletedPart, last bool) (*objectv1.Part, error) {
	part := j.stored[*p.PartNumber]
	if part == nil {
		return nil, s3err.GetInvalidPartErr(j.upload, *p.PartNumber, text(p.ETag))
	}
	if !last && part.GetSize() < backend.MinPartSize {
		return nil, s3err.GetEntityTooSmallErr(part.GetSize(), backend.MinPartSize)
	}
	if !backend.AreEtagsSame(part.GetEtag(), *p.ETag) {
		return nil, s3err.GetInvalidPartErr(j.upload, *p.PartNumber, part.GetEtag())
	}
	return part, j.partChecksum(p, part)
}

// partChecksum compares the checksum of a part, which the client must repeat if the upload was begun with one.
func (j *joint) partChecksum(p types.CompletedPart, part *objectv1.Part) error {
	given := sums{
		CRC32: p.ChecksumCRC32, CRC32C: p.ChecksumCRC32C, CRC64NVME: p.ChecksumCRC64NVME, SHA1: p.ChecksumSHA1,
		SHA256: p.ChecksumSHA256, SHA512: p.ChecksumSHA512, MD5: p.ChecksumMD5, XXHASH64: p.ChecksumXXHASH64,
		XXHASH3: p.ChecksumXXHASH3, XXHASH128: p.ChecksumXXHASH128,
	}
	n, value := given.count()
	algorithm, _ := given.given()
	stored := shown(part.GetChecksum())
	switch {
	case n > 1:
		return s3err.GetInvalidArgumentErr(s3err.InvalidArgChecksumPart, value)
	case stored.Algorithm == "" && n > 0:
		return s3err.GetInvalidPartErr(j.upload, *p.PartNumber, *p.ETag)
	case stored.Algorithm == "":
		return nil
	case n == 0:
		return s3err.APIError{
			Code: "InvalidRequest", HTTPStatusCode: http.StatusBadRequest,
			Description: fmt.Sprintf("The upload was created using a %s checksum. The complete request must include the checksum for each part. It was missing for part %d in the request.", strings.ToLower(string(stored.Algorithm)), *p.PartNumber),
		}
	case !utils.IsValidChecksum(value, algorithm):
		return s3err.GetInvalidArgumentErr(s3err.InvalidArgChecksumPart, value)
	case algorithm != stored.Algorithm:
		return s3err.APIError{
			Code: "BadDigest", HTTPStatusCode: http.StatusBadRequest,
			Description: fmt.Sprintf("The %s you specified for part %d did not match what we received.", strings.ToLower(string(algorithm)), *p.PartNumber),
		}
	case value != part.GetChecksum().GetValue():
		return s3err.GetInvalidPartErr(j.upload, *p.PartNumber, *p.ETag)
	}
	return nil
}

// checksum is that of the object: of all of its bytes, or of the checksums of its parts. It is nil if a part was copied,
// so that its checksum is not known.
func (j *joint) checksum(parts []*objectv1.Part) (*objectv1.Checksum, error) {
	algorithm, kind := types.ChecksumAlgorithm(j.wanted.GetAlgorithm()), types.ChecksumType(j.wanted.GetType())
	if kind == "" {
		algorithm, kind = ownChecksum, types.ChecksumTypeFullObject
	}
	for _, p := range parts {
		if p.GetChecksum().GetAlgorithm() != string(algorithm) {
			return nil, nil
		}
	}
	value, err := j.combined(algorithm, kind, parts)
	if err != nil {
		return nil, fmt.Errorf("computing the checksum of the parts: %w", err)
	}
	return &objectv1.Checksum{Algorithm: string(algorithm), Type: string(kind), Value: value}, nil
}

func (*joint) combined(algorithm types.ChecksumAlgorithm, kind types.ChecksumType, parts []*objectv1.Part) (string, error) {
	if kind == types.ChecksumTypeComposite {
		all, err := utils.NewCompositeChecksumReader(utils.HashType(strings.ToLower(string(algorithm))))
		if err != nil {
			return "", err
		}
		for _, p := range parts {
			if err := all.Process(p.GetChecksum().GetValue()); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%s-%d", all.Sum(), len(parts)), nil
	}
	value := parts[0].GetChecksum().GetValue()
	for _, p := range parts[1:] {
		var err error
		if value, err = utils.AddCRCChecksum(algorithm, value, p.GetChecksum().GetValue(), p.GetSize()); err != nil {
			return "", err
		}
	}
	return value, nil
}

// compare fails if the client has sent another checksum for the object.
func (j *joint) compare() error {
	given := sums{
		CRC32: j.in.ChecksumCRC32, CRC32C: j.in.ChecksumCRC32C, CRC64NVME: j.in.ChecksumCRC64NVME, SHA1: j.in.ChecksumSHA1,
		SHA256: j.in.ChecksumSHA256, SHA512: j.in.ChecksumSHA512, MD5: j.in.ChecksumMD5, XXHASH64: j.in.ChecksumXXHASH64,
		XXHASH3: j.in.ChecksumXXHASH3, XXHASH128: j.in.ChecksumXXHASH128,
	}
	if j.wanted.GetType() == "" || j.sum == nil {
		return nil
	}
	algorithm := types.ChecksumAlgorithm(j.sum.GetAlgorithm())
	value := *given.of(algorithm)
	if value == nil {
		return nil
	}
	want := *value
	if j.sum.GetType() == string(types.ChecksumTypeComposite) && !strings.Contains(want, "-") {
		want = fmt.Sprintf("%s-%d", want, len(j.in.MultipartUpload.Parts))
	}
	if want != j.sum.GetValue() {
		return s3err.GetChecksumBadDigestErr(algorithm)
	}
	return nil
}

// claimed are the parts as the client gives them.
func (j *joint) claimed() ([]*objectv1.CompletedPart, error) {
	var completed []*objectv1.CompletedPart
	for i, p := range j.in.MultipartUpload.Parts {
		if err := j.ordered(i); err != nil {
			return nil, err
		}
		completed = append(completed, &objectv1.CompletedPart{Number: uint32(*p.PartNumber), Etag: strings.Trim(text(p.ETag), `"`)})
	}
	return completed, nil
}
